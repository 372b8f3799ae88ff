"""The commands, put together."""

from typing import Annotated, Any

import typer

from plait.cli.lazy import Entry
from plait.cli.render.console import ADMIN, ANSWERS, CLUSTER, JOBS, LIBRARY, SIMULATE, Panels, Verbatim

HELP = "A scheduler for deep-learning clusters: runs jobs, explains its decisions, simulates other policies."

#: Without arguments such a command prints its help; the rest of the line may be the user's command, options and all.
BARE: dict[str, Any] = {"no_args_is_help": True}
VERBATIM = BARE | {"cls": Verbatim, "context_settings": {"allow_interspersed_args": False}}

#: The commands in the order of the help.
ENTRIES = {
    "submit": Entry(JOBS, "submit:submit", "Submit a job: a command, or a file.", VERBATIM),
    "ls": Entry(JOBS, "jobs:ls", "List jobs that wait or run, newest first."),
    "queue": Entry(JOBS, "jobs:queue", "List what runs and waits in the policy's order."),
    "show": Entry(JOBS, "jobs:show", "Show everything about a job.", BARE),
    "logs": Entry(JOBS, "jobs:logs", "Print the log of a job's newest attempt, or of attempt N.", BARE),
    "wait": Entry(JOBS, "jobs:wait", "Wait until jobs have ended.", BARE),
    "cancel": Entry(JOBS, "jobs:cancel", "Cancel jobs; running ones are stopped.", BARE),
    "requeue": Entry(JOBS, "submit:requeue", "Checkpoint running jobs and send them back to the queue.", BARE),
    "hold": Entry(JOBS, "submit:hold", "Hold waiting jobs: they do not start until `plait release`.", BARE),
    "release": Entry(JOBS, "submit:release", "Release held jobs: they wait for GPUs like others.", BARE),
    "update": Entry(JOBS, "submit:update", "Change priority, class, deadline, time limit or size of jobs.", BARE),
    "clone": Entry(JOBS, "submit:clone", "Submit a job like another one, which may have ended.", BARE),
    "history": Entry(JOBS, "jobs:history", "List jobs that have ended: how they waited, ran and moved."),
    "costs": Entry(JOBS, "jobs:costs", "Show what the last hours cost: by project, user and job."),
    "exec": Entry(JOBS, "interactive:exec_", "Run a command on the node of a running job.", VERBATIM),
    "shell": Entry(JOBS, "interactive:shell", "Open a shell on a node; it ends when it is not used."),
    "notebook": Entry(JOBS, "interactive:notebook", "Run JupyterLab on a node, and reach it at an address here."),
    "run": Entry(JOBS, "run_local:run", "Run a training script here, without a service.", VERBATIM),
    "rehearse": Entry(JOBS, "run_local:rehearse", "Check that a training script resumes exactly.", VERBATIM),
    "up": Entry(CLUSTER, "cluster:up", "Start the service and its nodes, here or on a cluster."),
    "down": Entry(CLUSTER, "cluster:down", "Stop the service and its nodes."),
    "status": Entry(CLUSTER, "status:status", "Show the service: address, policy, nodes and jobs."),
    "doctor": Entry(CLUSTER, "doctor:doctor", "Check the set-up and suggest repairs."),
    "demo": Entry(CLUSTER, "demo:demo", "Train four models apart, then interleaved, and compare."),
    "web": Entry(CLUSTER, "cluster:web", "Open the web page of the service, logged in."),
    "mcp": Entry(CLUSTER, "cluster:mcp", "Serve tools for coding agents, over the Model Context Protocol."),
    "nodes": Entry(CLUSTER, "status:nodes", "List the nodes; drain, reserve and forget them."),
    "slurm": Entry(JOBS, "slurm:app", "Slurm's sbatch, srun, squeue, scancel and sinfo, in plait."),
    "ray": Entry(CLUSTER, "ray:app", "A small Ray cluster here, to try `--backend ray`."),
    "explain": Entry(ANSWERS, "explain:explain", "Explain why a job waits, how it shares, and when it will end.", BARE),
    "what-if": Entry(ANSWERS, "submit:what_if", "Show the queue under another choice: who gains, who loses."),
    "events": Entry(ANSWERS, "status:events", "Print the event log: what happened and what was decided."),
    "replay": Entry(ANSWERS, "admin:replay", "Repeat every decision of an event log and compare."),
    "fidelity": Entry(ANSWERS, "explain:fidelity", "Simulate the submitted jobs and compare completion times."),
    "backup": Entry(ADMIN, "admin:backup", "Copy the store while the service runs.", BARE),
    "restore": Entry(ADMIN, "admin:restore", "Restore the store from a backup; the service must be down.", BARE),
    "policy": Entry(ADMIN, "catalog:policy", "The scheduling policy: show it, change it, check your own."),
    "token": Entry(ADMIN, "admin:token", "Tokens: who may use the service."),
    "project": Entry(ADMIN, "admin:project", "Projects: quotas, shares and time limits."),
    "simulate": Entry(
        SIMULATE, "simulate:simulate", "Simulate traces under one or more policies and compare them.", BARE
    ),
    "compare": Entry(SIMULATE, "simulate:compare", "Compare two runs of the same jobs: who gained, who lost.", BARE),
    "sweep": Entry(SIMULATE, "simulate:sweep", "Run a grid of policies, loads, seeds and clusters.", BARE),
    "advise": Entry(SIMULATE, "advise:advise", "Show what other choices would have changed in a history.", BARE),
    "tune": Entry(SIMULATE, "simulate:tune", "Fit a policy to half of a trace, and judge it on the rest.", BARE),
    "tune-job": Entry(JOBS, "tune_job:tune_job", "Search the hyper-parameters of a training by jobs.", VERBATIM),
    "network": Entry(
        SIMULATE, "plait.cli.commands.network.commands:app", "Networks of clusters: switches, links, and packets."
    ),
    "policies": Entry(LIBRARY, "catalog:policies", "List policies, what they know, and their options."),
    "cite": Entry(LIBRARY, "catalog:cite", "Print the BibTeX entries of the papers behind a policy."),
    "worlds": Entry(LIBRARY, "catalog:worlds", "List the simulated worlds."),
    "trace": Entry(LIBRARY, "trace:app", "Convert, inspect and generate traces; export a live run."),
}


class Plait(Panels):
    """The commands of plait."""

    entries = ENTRIES


app = typer.Typer(
    name="plait",
    cls=Plait,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 unexpected or (wait) a job failed, 2 wrong input, 4 plan or simulation error, "
    "130 interrupted.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from plait.core.version import __version__

        typer.echo(f"plait {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""
