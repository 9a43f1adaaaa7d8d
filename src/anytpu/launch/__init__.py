"""Starting one program as several processes: on this machine, or on the hosts of another engine.

Idea: on this machine `run_processes` starts them, labels their output, and ends all when one fails. `Supervision`
decides which signal they get, and is pure. Engines such as Slurm start the processes of other machines. For them
`job_file` writes the text from a template, and `checking` looks before at what can go wrong.
"""
