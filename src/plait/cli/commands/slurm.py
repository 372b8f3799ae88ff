"""`plait slurm sbatch`, `srun`, `squeue`, `scancel`, `sinfo`: Slurm's commands in plait, for scripts and habits.

They are commands of a group, so no program of a real Slurm on the same machine is hidden; a user may alias them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from plait.cli.commands.jobs import await_ends, cancel, logs
from plait.cli.connection import client
from plait.cli.submission import Asked, requests_of, runs_here
from plait.core.errors import InputError
from plait.core.resources import CPU_KIND
from plait.live.notes import note

if TYPE_CHECKING:
    from plait.live.api.jobs import JobRow
    from plait.live.client.client import Client

#: The words of a command are its own to read: Slurm's options are not those of plait.
_OWN: dict[str, Any] = {
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": ["--help"]}
}
app = typer.Typer(help="Slurm's sbatch, srun, squeue, scancel and sinfo, in plait.")

#: Options that set something in plait: name -> short name.
_READ = {
    "job-name": "J", "time": "t", "gres": "", "gpus": "G", "gpus-per-node": "", "gpus-per-task": "", "nodes": "N",
    "ntasks": "n", "ntasks-per-node": "", "cpus-per-task": "c", "mem": "", "mem-per-cpu": "", "mem-per-gpu": "",
    "account": "A", "dependency": "d", "begin": "b", "signal": "", "chdir": "D", "export": "", "array": "a",
    "output": "o",
}  # fmt: skip
#: Options without a counterpart, and what takes their place, if anything does.
_IGNORED = {
    "error": ("e", "it goes to --output"), "partition": ("p", "all nodes are one pool"),
    "qos": ("q", "plait update --priority"),
    "constraint": ("C", "--gres=gpu:KIND:1 or plait submit --gpu-kind"), "nodelist": ("w", ""), "exclude": ("x", ""),
    "mail-type": ("", "plait submit --notify"), "mail-user": ("", "plait submit --notify"), "comment": ("", ""),
    "reservation": ("", ""), "licenses": ("L", ""), "open-mode": ("", ""), "input": ("i", ""), "gpu-bind": ("", ""),
    "cpus-per-gpu": ("", "--cpus-per-task"), "nice": ("", "plait update --priority"), "threads-per-core": ("", ""),
    "hint": ("", ""), "distribution": ("m", ""), "mpi": ("", ""), "cluster": ("M", ""), "wckey": ("", ""),
}  # fmt: skip
_FLAGS_READ = {"exclusive": "", "hold": "H", "parsable": "", "requeue": "", "no-requeue": "", "wait": "W"}
_FLAGS_IGNORED = {
    "overcommit": "O", "verbose": "v", "quiet": "Q", "unbuffered": "u", "label": "l",
    "oversubscribe": "s", "contiguous": "", "pty": "", "overlap": "", "exact": "", "kill-on-bad-exit": "K",
    "no-kill": "k", "preserve-env": "E", "disable-status": "X", "spread-job": "", "use-min-nodes": "",
}  # fmt: skip
#: Refused, because the job would do something else without them.
_REFUSED = {
    "wrap": ("", "plait slurm sbatch has a script; plait submit -- bash -c 'COMMAND'"),
}
#: Options that count GPUs, the first that is given counts.
_COUNTS = ("gpus", "gpus-per-task", "gpus-per-node", "gres")
#: Of Slurm's kinds of dependency, the field of a job.
_AFTER = {"afterok": "after", "afterany": "after_any", "afternotok": "after_fail"}
#: Of Slurm's placeholders in names of output files, what plait fills in.
_OUTPUT = {"j": "{job}", "A": "{array}", "a": "{index}", "%": "%"}
_MEGABYTES = {"K": 1e-3, "M": 1.0, "G": 1e3, "T": 1e6}
#: States of jobs, as squeue shortens them.
_SHORT = {"waiting": "PD", "starting": "CF", "running": "R", "stopping": "CG", "unreachable": "R"}
#: Options of `srun` in a script that have no value.
_SRUN_FLAGS = "|".join(
    f"--{name}|-{short}" if short else f"--{name}" for name, short in {"exclusive": "", **_FLAGS_IGNORED}.items()
)
#: Jobs that one request lists, which is the maximum of the service.
_PAGE = 10_000
#: Before the first line of a script: variables that it may read, and `srun`, which runs its command in each process.
_PRELUDE = (
    "export SLURM_JOB_ID=${PLAIT_JOB#j-} SLURM_PROCID=$RANK SLURM_LOCALID=$LOCAL_RANK SLURM_NTASKS=$WORLD_SIZE "
    "SLURM_SUBMIT_DIR=$PWD ${PLAIT_ARRAY_INDEX+SLURM_ARRAY_TASK_ID=$PLAIT_ARRAY_INDEX}; "
    "srun() { while [[ ${1-} == -* ]]; do case $1 in --) shift; break;; "
    f"--*=*|{_SRUN_FLAGS}) shift;; -[a-zA-Z]?*) shift;; "
    '*) shift 2 || { echo "srun: $1 has no value and no command behind it" >&2; return 2; };; esac; done; "$@"; }; '
    "export -f srun; "
)


class _Parser(argparse.ArgumentParser):
    """Slurm's options of a job; errors are `InputError`."""

    def __init__(self, where: str) -> None:
        super().__init__(add_help=False, allow_abbrev=False)
        self.where = where
        for name, short in _READ.items():
            self._add(name, short)
        for name, (short, _) in {**_IGNORED, **_REFUSED}.items():
            self._add(name, short)
        for name, short in {**_FLAGS_READ, **_FLAGS_IGNORED}.items():
            self._add(name, short, action="store_true", default=None)

    def _add(self, name: str, short: str, **how: Any) -> None:
        self.add_argument(f"--{name}", *([f"-{short}"] if short else []), dest=name, **how)

    def error(self, message: str) -> NoReturn:
        raise InputError(f"{self.where}: {message}")


def directives(script: str, name: str) -> tuple[dict[str, Any], list[str]]:
    """The options of the `#SBATCH` lines before a script's first command, and the words of those that are unknown.

    Raises `InputError` naming the line.
    """
    found: dict[str, Any] = {}
    unknown: list[str] = []
    for number, line in enumerate(script.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            where = f"{name}:{number}"
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError as error:
                raise InputError(f"{where}: {error}") from None
            given, rest = _Parser(where).parse_known_args(words)
            found |= {key: value for key, value in vars(given).items() if value is not None}
            unknown += rest
    return found, unknown


def fields_of(given: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    """Options of `plait submit` for options of Slurm, and remarks on what is ignored or different."""
    for name, (_, instead) in _REFUSED.items():
        if name in given:
            raise InputError(f"{where}: --{name} is not available; {instead}")
    nodes, tasks = _count(given, "nodes", where), _count(given, "ntasks", where)
    tasks = tasks or (nodes or 1) * (_count(given, "ntasks-per-node", where) or 1)
    remarks = []
    gres = re.sub(r"\([^)]*\)", "", given.get("gres", "")).split(",")  # without sockets
    others = [one for one in gres if one and one.partition(":")[0] != "gpu"]
    counted = {**given, "gres": ",".join(one for one in gres if one not in others)}
    gpus = next(
        (count * times for name, times in zip(_COUNTS, (1, tasks, nodes or 1, nodes or 1), strict=True)
         if (count := _gpus(counted.get(name), name, where))),
        0,
    )  # fmt: skip
    remarks += [f"--gres {one} is ignored" for one in others]
    fields: dict[str, Any] = {
        "gpus": gpus, "name": given.get("job-name"), "project": given.get("account"), "array": given.get("array"),
    }  # fmt: skip
    kinds = re.findall(r"[^,:]+", ",".join(counted.get(name) or "" for name in _COUNTS))
    fields["gpu_kinds"] = list(dict.fromkeys(kind for kind in kinds if kind != "gpu" and not kind.isdigit())) or None
    if given.get("exclusive"):
        fields |= {"exclusive": True, "nodes": nodes or None}
    if "output" in given:
        filled = {**_OUTPUT, "x": given.get("job-name", "")}
        fields["output"] = re.sub(r"%(.)", lambda found: filled.get(found[1], found[0]), given["output"])
    if "time" in given:
        fields["time_limit_s"] = f"{_seconds(given['time'], where)}s"
    if "cpus-per-task" in given:
        fields["cpus"] = float((_count(given, "cpus-per-task", where) or 1) * tasks)
    cpus = fields.get("cpus") or tasks
    if not gpus and tasks > 1:
        fields["cpus"] = float(cpus)
    for name, times in (("mem", nodes or 1), ("mem-per-cpu", cpus), ("mem-per-gpu", max(gpus, 1))):
        if name in given and (megabytes := _megabytes(given[name], name, where)):
            fields["memory"] = f"{round(megabytes * times)}M"
    for kind, jobs in _dependencies(given.get("dependency"), where):
        fields.setdefault(kind, []).extend(jobs)
    if begin := given.get("begin"):
        # `now+2hours` as 2h; other forms as they are
        match = re.fullmatch(r"now\+(\d+)(second|minute|hour|day|week)?s?", begin)
        fields["begin_s"] = f"{match[1]}{(match[2] or 'second')[0]}" if match else begin
    if signal := given.get("signal"):
        fields["signal_s"] = f"{_digits(signal.rpartition('@')[2] if '@' in signal else '60', 'signal', where)}s"
        remarks.append("the request to stop comes as SIGTERM, whatever --signal names")
    if "chdir" in given:
        fields["workdir"] = Path(given["chdir"])
    export = given.get("export", "ALL")
    if export == "NONE":
        fields["node_env"] = True
    else:
        fields["export_all"] = export.split(",")[0] == "ALL"
        fields["env"] = [one for one in export.split(",") if one != "ALL"] or None
    fields |= {"hold": bool(given.get("hold")), "retries": None if given.get("requeue") else 0}
    for name, (_, instead) in _IGNORED.items():
        if name in given:
            remarks.append(f"--{name} is ignored" + (f": {instead}" if instead else ""))
    remarks += [f"--{name} is ignored" for name in _FLAGS_IGNORED if given.get(name)]
    return fields, remarks


def _digits(text: str, name: str, where: str) -> int:
    if not re.fullmatch(r"\d{1,9}", text):
        raise InputError(f"{where}: --{name} has {text[:40]!r}, needs a whole number")
    return int(text)


def _count(given: Mapping[str, Any], name: str, where: str) -> int:
    """A number of nodes or tasks, of a range the first; 0 without one."""
    return _digits(str(given[name]).partition("-")[0], name, where) if name in given else 0


def _gpus(text: str | None, name: str, where: str) -> int:
    """GPUs of `2`, `a100:2`, `gpu:2`, `gpu:a100:2` or `gpu`; 0 for none."""
    total = 0
    for one in text.split(",") if text else ():
        kind, *rest = one.split(":")
        count = rest[-1] if rest else kind
        total += 1 if kind == "gpu" and not count.isdigit() else _digits(count, name, where)
    return total


def _seconds(text: str, where: str) -> int:
    """Seconds of Slurm's forms: minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S.

    >>> [_seconds(text, "") for text in ("90", "30:00", "2:00:00", "1-12", "1-00:30:00")]
    [5400, 1800, 7200, 129600, 88200]
    """
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,6})(?::(\d{1,6}))?(?::(\d{1,6}))?", text)
    if match is None:
        raise InputError(f"{where}: --time is {text[:40]!r}; write minutes, 2:00:00 or 1-12:00:00")
    days, parts = match[1], [int(part) for part in match.groups()[1:] if part is not None]
    if days is None and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return 86400 * int(days or 0) + 3600 * hours + 60 * minutes + seconds


def _megabytes(text: str, name: str, where: str) -> float:
    match = re.fullmatch(r"(\d{1,12})([KMGT])?B?", text.upper())
    if match is None:
        raise InputError(f"{where}: --{name} is {text[:40]!r}; write 16G or 4000M")
    return int(match[1]) * _MEGABYTES[match[2] or "M"]


def _dependencies(text: str | None, where: str) -> Iterable[tuple[str, list[str]]]:
    for one in (text or "").split(",") if text else ():
        kind, *jobs = one.split(":")
        if kind not in _AFTER or not jobs:
            raise InputError(f"{where}: --dependency {one[:40]!r} is not available; write one of {', '.join(_AFTER)}, "
                             "e.g. afterok:3")  # fmt: skip
        yield _AFTER[kind], [_job(job) for job in jobs]


def _job(text: str) -> str:
    """A job as plait names it.

    >>> _job("3"), _job("5_2"), _job("a-5"), _job("a-5_2")
    ('j-3', 'a-5.2', 'a-5', 'a-5.2')
    """
    if member := re.fullmatch(r"(?:a-)?(\d+)_(\d+)", text):
        return f"a-{member[1]}.{member[2]}"
    return f"j-{text}" if text.isdigit() else text


def _submit(words: Sequence[str], what: str) -> tuple[list[str], Mapping[str, Any]]:
    """Submit what the words of sbatch or srun name; returns the ids of the jobs and the options."""
    parser = _Parser(what)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    read = vars(parser.parse_args(list(words)))
    command = [word for i, word in enumerate(read.pop("command")) if i or word != "--"]
    given = {key: value for key, value in read.items() if value is not None}
    unknown: list[str] = []
    if not command:
        raise InputError(f"{what}: the {'script' if what == 'sbatch' else 'command'} is missing")
    if what == "sbatch":
        script = Path(command[0])
        try:
            text = script.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"sbatch: {script} is not readable: {error}") from error
        written, unknown = directives(text, str(script))
        given = {**written, **given}
        if "array" in given and (place := re.search(r"(?<!\$)\{index\}", text)):
            raise InputError(
                f"{script}:{text.count(chr(10), 0, place.start()) + 1}: {{index}} would be replaced by the index of "
                "the job; write it in another way, e.g. with a space in it"
            )
        given.setdefault("job-name", script.name)
        if not re.match(r"#!.*\b(ba)?sh\b", text):
            raise InputError(f"{script}:1: the script has to begin with #!/bin/bash or #!/bin/sh")
        command = ["bash", "-c", _PRELUDE + text, str(script), *command[1:]]
    elif "array" in given:
        raise InputError("srun: --array is an option of sbatch")
    fields, remarks = fields_of(given, what)
    starts = r"^[^#\n]*\b(torchrun|mpirun|accelerate launch)\b"
    if fields["gpus"] > 1 and what == "sbatch" and (launcher := re.search(starts, command[2], re.M)):
        raise InputError(
            f"{command[3]}: {launcher[1]} starts processes of its own; plait starts one on each GPU, with the "
            "environment of torchrun: write python instead"
        )
    if unknown:
        remarks.append(f"{' '.join(unknown)} is not known and is ignored")
    with client(None) as service:
        if not fields["gpus"] and all(node.gpu_kind != CPU_KIND for node in service.nodes()):
            fields["gpus"] = 1
            remarks.append("the job gets a GPU, though none is requested: this cluster has no CPU slots")
        if not fields["gpus"] and fields.pop("exclusive", False):
            del fields["nodes"]
            remarks.append("--exclusive is ignored: the job requests no GPU and runs on a CPU slot")
        ready = requests_of(Asked(command=command, **fields), os.environ, here=runs_here(None, os.environ))
        answers = service.submit(ready)
    for remark in remarks:
        note(remark)
    return [answer.id for answer in answers], given


@app.command("sbatch", **_OWN)
def sbatch(context: typer.Context) -> None:
    """Submit a script; name the options that it ignores.

    \b
    plait slurm sbatch --gres=gpu:2 --time 2:00:00 job.sh
    """
    ids, given = _submit(context.args, "sbatch")
    for job in ids:
        number = job.removeprefix("j-")
        typer.echo(number if given.get("parsable") else f"Submitted batch job {number}")
    if given.get("wait"):
        await_ends(ids, None, None)


@app.command("srun", **_OWN)
def srun(context: typer.Context) -> None:
    """Run a command and print its output; exit 1 if it fails."""
    (job,), _ = _submit(context.args, "srun")
    logs(job, follow=True)
    await_ends([job], None, None)


def _selection(words: Sequence[str], what: str) -> argparse.Namespace:
    parser = _Parser.__new__(_Parser)
    argparse.ArgumentParser.__init__(parser, add_help=False, allow_abbrev=False)
    parser.where = what
    parser.add_argument("--user", "-u")
    parser.add_argument("--me", action="store_true")
    parser.add_argument("--noheader", "-h", action="store_true")
    if what == "squeue":
        parser.add_argument("--jobs", "-j", default="")
    elif what == "scancel":
        parser.add_argument("jobs", nargs="*")
    return parser.parse_args(list(words))


def _rows(service: Client, chosen: argparse.Namespace, *, arrays: bool = False) -> list[JobRow]:
    """Jobs that have not ended, newest first; of one user if one is chosen. `arrays`: each array is one row."""
    user = service.me().user if chosen.me else chosen.user
    rows: dict[str, JobRow] = {}
    before = -1
    while len(rows) > before:  # by id: a job that is submitted meanwhile moves all others by one
        before = len(rows)
        page = service.jobs(state=",".join(_SHORT), user=user, arrays=arrays, limit=_PAGE, offset=before)
        rows |= {row.id: row for row in page}
        if len(page) < _PAGE:
            break
    return list(rows.values())


@app.command("squeue", **_OWN)
def squeue(context: typer.Context) -> None:
    """List jobs that wait or run; -u, --me and -j select."""
    chosen = _selection(context.args, "squeue")
    wanted = {_job(job) for job in chosen.jobs.split(",") if job}
    with client(None) as service:
        rows = _rows(service, chosen)
    form = "{:>12} {:>9} {:>12.12} {:>8.8} {:>2} {:>10} {:>5}  {}"
    if not chosen.noheader:
        typer.echo(form.format("JOBID", "PARTITION", "NAME", "USER", "ST", "TIME", "NODES", "NODELIST(REASON)"))
    for row in rows:
        member = f"{row.array}.{row.array_index}" if row.array else row.id
        if wanted and wanted.isdisjoint((row.id, row.array, member)):
            continue
        where = ",".join(row.nodes) if row.state != "waiting" else f"({row.reason or 'waiting'})"
        nodes = max(len(row.nodes) if row.state != "waiting" else 0, 1)
        typer.echo(form.format(
            member[2:].replace(".", "_"), row.project, row.name or " ".join(row.command[:1]), row.user,
            _SHORT[row.state], clock(row.run_s), nodes, where,
        ))  # fmt: skip


def clock(seconds: float) -> str:
    """A duration as Slurm writes it.

    >>> clock(65), clock(7265), clock(90061)
    ('1:05', '2:01:05', '1-01:01:01')
    """
    minutes, s = divmod(math.floor(seconds), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days}-{h:02}:{m:02}:{s:02}" if days else f"{h}:{m:02}:{s:02}" if h else f"{m}:{s:02}"


@app.command("scancel", **_OWN)
def scancel(context: typer.Context) -> None:
    """Cancel jobs by number or id, or all of a user with -u or --me."""
    chosen = _selection(context.args, "scancel")
    jobs = [_job(job) for job in chosen.jobs]
    if chosen.user or chosen.me:
        with client(None) as service:
            jobs += [row.id for row in _rows(service, chosen, arrays=True)]
    elif not jobs:
        raise InputError("scancel: no job is named; write plait slurm scancel 3, or --me")
    if jobs:
        cancel(jobs)


@app.command("sinfo", **_OWN)
def sinfo(context: typer.Context) -> None:
    """List nodes by state as sinfo does."""
    if context.args:
        note(f"{' '.join(context.args)} is ignored: plait nodes has more columns")
    with client(None) as service:
        nodes = service.nodes()
    states: dict[str, list[str]] = {}
    for node in nodes:
        used, gpus = node.gpus_used, node.gpus or 0
        busy = "idle" if not used else "alloc" if used >= gpus else "mix"
        states.setdefault("drain" if node.drained else busy if node.state == "ready" else "down", []).append(node.id)
    form = "{:<10} {:<5} {:>10} {:>5} {:>6} {}"
    typer.echo(form.format("PARTITION", "AVAIL", "TIMELIMIT", "NODES", "STATE", "NODELIST"))
    for state, names in states.items():
        typer.echo(form.format("plait*", "up", "infinite", len(names), state, ",".join(names)))
