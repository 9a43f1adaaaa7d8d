"""Starting one program as several processes: on this machine, on the nodes of a Slurm job, or on the hosts of a TPU.

Idea: on this machine `run_processes` starts them, labels their output, and ends all when one fails. `Supervision`
decides which signal they get, and is pure. Slurm and gcloud start the processes of other machines; for them `batch_job`
and `slice_command` write the text.
"""
