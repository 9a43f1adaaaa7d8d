#!/bin/bash
# The name in squeue, and of the log.
#SBATCH --job-name=<name>
# One process on each node.
#SBATCH --nodes=<hosts>
#SBATCH --ntasks-per-node=1
# The partition.
#SBATCH --partition=<place>
# One log, to which a job that is queued again appends.
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
# The job is queued again when a node fails, or when another job preempts it.
#SBATCH --requeue
# Before the time limit this script gets SIGTERM, so that there is time to save the run.
#SBATCH --signal=B:TERM@<notice_s>

# The program reads the folder of its checkpoints here; all nodes must share it.
export CHECKPOINT_DIR=<checkpoint_dir:sh>

# One process uses all GPUs of its node. Without this variable JAX gives it one.
if [ -n "${SLURM_GPUS_ON_NODE:-}" ]; then
    export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
fi

# The name of this job for scancel and scontrol. The number of an array's task may name the whole array.
job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
job=${job:-$SLURM_JOB_ID}

# A SIGTERM to this script goes to the program, which saves its run and ends with status <stopped_status>.
stopped=
trap 'stopped=yes; scancel --signal=TERM "$job"' TERM

# Each host. One that ends because of another has status <lost_status>, which counts as 1: so the highest status, which is that
# of the job, is that of the host that failed.
host='trap : TERM; "$@"; status=$?; exit $((status == <lost_status> ? 1 : status))'

# When one process fails, the others end by themselves. They may be saving the run, so Slurm waits before it ends them.
srun --kill-on-bad-exit=0 --wait=<wait_s> --label bash -c "$host" host <python:sh> <words:sh> &
step=$!

# A signal ends a wait, not the step.
while wait "$step"; status=$?; [ "$status" -gt 128 ] && kill -0 "$step" 2>/dev/null; do :; done

# The program saved its run after a SIGTERM: it continues in the same job, at most <restarts> times. All else is final.
if [ -n "$stopped" ] && [ "$status" -eq <stopped_status> ] && [ "${SLURM_RESTART_COUNT:-0}" -lt <restarts> ]; then
    scontrol requeue "$job"
fi
exit "$status"
