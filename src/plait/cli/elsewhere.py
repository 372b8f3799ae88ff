"""Commands and options of other schedulers, and what does the same here."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

_SHELL = "plait shell -g 1 opens one on a node; plait exec j-3 -- bash next to a running job"
_LIST, _CANCEL = "plait ls lists jobs", "plait cancel j-3 ends a job"
_SERVICE = "plait down, plait up for the service"
_SHOW, _PRIORITY = "plait show j-3; plait explain j-3 says why it waits", "plait update j-3 --priority 5"
_SUBMIT, _PAUSE = (
    "plait submit -g 1 -- python train.py",
    "plait hold j-3, of a job that waits; plait requeue j-3 stops it",
)
#: Commands that people of other tools type after `plait`, and one of a package that may not be installed.
COMMANDS: Mapping[str, str] = {
    "sbatch": f"{_SUBMIT}; plait slurm sbatch job.sh reads #SBATCH lines",
    "srun": "plait submit --wait -g 1 -- python train.py; plait logs -f j-3 follows what it prints",
    **dict.fromkeys(("salloc", "sattach", "attach", "ssh"), _SHELL),
    "port-forward": "plait notebook reaches JupyterLab on a node",
    "jupyter": "plait notebook -g 1",
    "sshare": "plait project ls",
    "squeue": f"plait slurm squeue; {_LIST}, plait queue in the policy's order",
    **dict.fromkeys(("scancel", "kill", "delete", "rm", "qdel", "bkill"), _CANCEL),
    "sinfo": "plait nodes, plait slurm sinfo",
    "sacct": "plait history, plait costs",
    "scontrol": "plait show j-3; plait update, hold, release and requeue change it",
    **dict.fromkeys(("qsub", "bsub"), _SUBMIT),
    "apply": "plait submit -f job.yaml",
    **dict.fromkeys(("jobs", "list", "ps", "qstat", "bjobs"), _LIST),
    "get": f"{_LIST}; {_SHOW}",
    **dict.fromkeys(("describe", "info"), _SHOW),
    "tail": "plait logs -f j-3",
    "stop": f"{_CANCEL}; plait requeue j-3 sends it back to the queue; plait down ends the service",
    "start": f"plait up starts the service; {_SUBMIT} starts a job",
    **dict.fromkeys(("pause", "suspend"), _PAUSE),
    "resume": "plait release j-3, of a held job; plait nodes resume n1, of a drained node",
    "drain": "plait nodes drain n1",
    "restart": f"plait requeue j-3; plait clone j-3 submits it again; {_SERVICE}",
    **dict.fromkeys(("job", "run-job", "launch", "create"), f"{_SUBMIT}; {_LIST}; {_SHOW}; {_CANCEL}"),
    **dict.fromkeys(("cordon", "uncordon", "maintenance"), "plait nodes drain n1, plait nodes resume n1"),
    **dict.fromkeys(("bhosts", "partitions", "gpus", "show-gpus", "machines"), "plait nodes"),
    **dict.fromkeys(("bqueues", "quota", "quotas", "sacctmgr", "accounts", "bugroup"), "plait project ls"),
    **dict.fromkeys(("reserve", "reservations", "brsvadd", "brsvs"), "plait nodes reserve, reservations"),
    **dict.fromkeys(("sprio", "position"), "plait queue; plait explain j-3 says why it waits"),
    **dict.fromkeys(("sreport", "cost-report", "sacctutil", "billing"), "plait costs, plait history"),
    **dict.fromkeys(("sstat", "metrics", "usage", "nvidia-smi"), "plait exec j-3 -- nvidia-smi; plait nodes"),
    **dict.fromkeys(("bpeek", "log", "output"), "plait logs -f j-3"),
    **dict.fromkeys(("bstop", "bresume"), "plait hold j-3, plait release j-3"),
    **dict.fromkeys(("users", "user", "tokens"), "plait token ls, plait token new ann"),
    **dict.fromkeys(("scale", "autostop", "autoscale"), "plait up -o max-nodes=8, of the backends that start nodes"),
    **dict.fromkeys(("top", "watch", "monitor", "dashboard"), "watch plait ls; plait nodes; plait web, in a browser"),
    "whoami": "plait status; PLAIT_TOKEN is the user",
    "config": "plait up -h lists the settings; plait status shows the service",
    "check": "plait doctor",
    **dict.fromkeys(("nice", "priority"), _PRIORITY),
    "login": "PLAIT_URL and PLAIT_TOKEN, from plait token new",
    "reproduce": "pip install ./papers, in a checkout of plait, adds it",
}
_LS = ("list", "show", "get", "ls")
_GONE, _NEW = ("rm", "delete", "remove", "del"), ("add", "create", "new", "set")
#: Commands that people of other tools type after one of these groups.
BELOW: Mapping[str, Mapping[str, str]] = {
    "nodes": {
        **dict.fromkeys(_LS, "plait nodes"), **dict.fromkeys(_NEW, "plait nodes enrol n3, if no backend starts nodes"),
        **dict.fromkeys(_GONE, "plait nodes drain n1; plait nodes forget n1, of one that has gone"),
        "cordon": "plait nodes drain n1", "uncordon": "plait nodes resume n1", "undrain": "plait nodes resume n1",
        "release": "plait nodes unreserve r-1",
    },
    **{
        group: {
            **dict.fromkeys(_LS, f"plait {group} ls"), **dict.fromkeys(_NEW, f"plait {group} {new}"),
            **dict.fromkeys(_GONE, f"plait {group} {gone}"),
        }
        for group, new, gone in (("project", "set vision", "rm vision"), ("token", "new ann", "revoke t-1f2e3d4c"))
    },
}  # fmt: skip
_GPUS, _PROCESS = "--gpus 8; the nodes are chosen for it", "--gpus 8; one process runs on each GPU"
_CPUS, _MEMORY = "--cpus 8, of the whole job", "--memory 16G, of the whole job"
_POOL = "all nodes are one pool; --project names a quota, --class and --priority an order"
_AFTER = "--after j-3, --after-any j-3, --after-fail j-3"
_MAIL = "--notify CHANNEL, of those in the file of plait up --notify FILE"
_NODES = "nodes are chosen for the job; plait nodes drain n1 keeps jobs off a node"
#: Options that people of other tools give to `plait submit`.
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("--gres", "-G", "--num-gpus"), "--gpus 2"),
    **dict.fromkeys(("--gpus-per-task", "--nproc-per-node", "--ntasks", "--ntasks-per-node"), _PROCESS),
    **dict.fromkeys(("--nnodes", "-N"), _GPUS),
    **dict.fromkeys(("--cpus-per-task", "-c"), _CPUS),
    **dict.fromkeys(("--mem", "--mem-per-cpu"), _MEMORY),
    "--mem-per-gpu": f"{_MEMORY}; --gpu-memory is that of a GPU",
    "--reservation": "plait nodes reserve -h shows how; jobs of the project need no option",
    **dict.fromkeys(("--nodelist", "--exclude", "-x"), _NODES),
    **dict.fromkeys(("--constraint", "-C"), "--gpu-kind a100"),
    **dict.fromkeys(("--partition", "-p"), _POOL),
    "--nice": "--priority -5",
    "--qos": "--priority 5 or --class opportunistic",
    **dict.fromkeys(("--account", "-A"), "--project"),
    **dict.fromkeys(("--job-name", "-J"), "--name"),
    **dict.fromkeys(("--chdir", "-D"), "--workdir"),
    **dict.fromkeys(("-t", "--time-limit", "--timeout"), "--time 2h"),
    **dict.fromkeys(("--dependency", "-d"), _AFTER),
    "-a": "--array 0-19%4",
    "-o": "--output FILE",
    "--error": "--output FILE has both",
    "--export": "--export-all, or --env NAME",
    **dict.fromkeys(("--mail-user", "--mail-type"), _MAIL),
    "--wrap": "plait submit -- bash -c 'COMMAND'",
    "--image": "--container",
    "--parsable": "plait submit prints nothing but the id on standard output",
    **dict.fromkeys(("--test-only", "--dry-run"), "--what-if"),
    "--no-requeue": "--retries 0; a job without checkpoints is never stopped by a policy",
    "--requeue": "--retries 3; a preempted job always goes back to the queue",
}


def near(name: str, known: Iterable[str]) -> list[str]:
    """The known names that a name was most likely meant to be: similar ones, otherwise those that begin with it.

    >>> near("sumbit", ["submit", "status"]), near("sim", ["simulate"]), near("lss", ["ls"])
    (['submit'], ['simulate'], ['ls'])
    >>> near("hold", ["worlds"]), near("nice", ["cancel"])
    ([], [])
    """
    names = list(known)
    similar = get_close_matches(name, names, n=2, cutoff=0.75) or [one for one in names if sorted(one) == sorted(name)]
    return similar or [one for one in names if len(name.strip("-")) > 1 and one.startswith(name)]
