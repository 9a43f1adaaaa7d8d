#!/bin/bash
# The options of this workload.
options=(
    # The name of the workload, and the cluster that xpk made.
    --workload=<name> --cluster=<place:sh>
    # The zone of the cluster.
    --zone=<zone>
    # The slice <slice>, of <gke> chips.
    --tpu-type=<type>
    # Spot machines: cheaper, and taken back at any time.
    <spot_option>
    # The image has Python, anytpu[tpu] and the program.
    --docker-image=<image:sh>
    # The job starts again, at most this often, when the run was saved (status <stopped_status>), or a host was killed or lost (<lost_status>).
    --max-restarts=<restarts> --restart-on-exit-codes=<lost_status>,<stopped_status>
    # Seconds from SIGTERM to SIGKILL, in which the run is saved.
    --termination-grace-period-seconds=<notice_s>
    # The program reads the folder of its checkpoints here.
    --env=CHECKPOINT_DIR=<checkpoint_dir:kube:sh>
    # The program, on each host; exec, so that it gets the signals.
    --command='exec python '<words:sh:kube:sh>
)
# Words after the name of this file are more options, such as --dry-run.
xpk workload create "${options[@]}" "$@"
