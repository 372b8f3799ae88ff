"""Commands and options of other schedulers, and what does the same here."""

from __future__ import annotations

from collections.abc import Mapping

_LIST, _CANCEL = "plait ls lists jobs", "plait cancel j-3 ends a job"
#: Commands that people of other tools type after `plait`, and one of a package that may not be installed.
COMMANDS: Mapping[str, str] = {
    "sbatch": "plait submit -g 1 -- python train.py; a job needs no script",
    "srun": "plait submit --wait -g 1 -- python train.py; plait logs -f j-3 follows what it prints",
    "squeue": f"{_LIST}, plait queue in the policy's order",
    "scancel": _CANCEL,
    "sinfo": "plait nodes",
    "sacct": "plait history, plait costs",
    "scontrol": "plait show j-3; plait update, hold, release and requeue change it",
    "jobs": _LIST,
    "ps": _LIST,
    "kill": _CANCEL,
    "delete": _CANCEL,
    "stop": f"{_CANCEL}; plait requeue j-3 sends it back to the queue",
    "reproduce": "pip install ./papers, in a checkout of plait, adds it",
}
_GPUS = "--gpus 8; the nodes are chosen for it"
#: Options that people of other tools give to `plait submit`.
OPTIONS: Mapping[str, str] = {
    "--gres": "--gpus 2",
    "--gpus-per-node": _GPUS,
    "--nodes": _GPUS,
    "-N": _GPUS,
    "--ntasks": "--gpus 8; one process runs on each GPU",
    "--ntasks-per-node": "--gpus 8; one process runs on each GPU",
    "--cpus-per-task": "--cpus 8, of the whole job",
    "-c": "--cpus 8, of the whole job",
    "--mem": "--memory 16G, of the whole job",
    "--partition": "all nodes are one pool; --project names a quota, --class and --priority an order",
    "-p": "all nodes are one pool; --project names a quota, --class and --priority an order",
    "--qos": "--priority 5 or --class opportunistic",
    "--account": "--project",
    "-A": "--project",
    "--job-name": "--name",
    "-J": "--name",
    "--chdir": "--workdir",
    "-D": "--workdir",
    "-t": "--time 2h",
    "--dependency": "--after j-3, --after-any j-3, --after-fail j-3",
    "-d": "--after j-3, --after-any j-3, --after-fail j-3",
    "--array": "--file jobs.yaml with a list of jobs, one for each index",
    "-a": "--file jobs.yaml with a list of jobs, one for each index",
    "--output": "plait logs j-3 prints what the job wrote",
    "-o": "plait logs j-3 prints what the job wrote",
    "--error": "plait logs j-3 prints what the job wrote",
    "--export": "--export-all, or --env NAME",
    "--requeue": "--retries 3; a preempted job always goes back to the queue",
}
