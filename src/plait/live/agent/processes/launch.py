"""Starting one process of a job: its folder, its environment, its runner."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from plait.core.errors import InputError
from plait.live.agent.lease import NodeLease
from plait.live.agent.processes import container
from plait.live.agent.processes.node_environment import node_environment, passed
from plait.live.agent.processes.runner import HELD_BACK
from plait.live.layout import Layout, job_name, job_number, make_private
from plait.live.protocol.wire import Run
from plait.live.system import accounts, procs
from plait.live.system.accounts import Account
from plait.runtime.command_line import parse_script
from plait.runtime.network.grant import FILE, VARIABLE, write_grant
from plait.runtime.page import Page

_PLAIT = Path(__file__).resolve().parents[3]
_PROCESSES = "plait.live.agent.processes"
#: A folder whose sitecustomize hooks torch when a job imports it.
HOOK = _PLAIT / "training" / "hook"
#: torch's profiler logs its starts and stops on the job's standard error; this level is above all of its messages.
QUIET = "99"
#: In the environment of a runner: the file of its node's lease, by which an agent without a journal finds it.
LEASE_VARIABLE = "PLAIT_LEASE"
#: Variables of one job among the jobs that share a process.
_OF_ONE = ("PLAIT_JOB", "PLAIT_EPOCH", "PLAIT_RUN_DIR", "PLAIT_JOB_DIR", "PLAIT_CHECKPOINT_S", "MASTER_PORT")


def mark_of(layout: Layout, job: int, epoch: int, rank: int) -> str:
    """The name by which processes of this rank are known on this machine, different for every home folder."""
    home = hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]
    return f"{home}:{job_name(job)}:{epoch}:{rank}"


def key_of(layout: Layout, mark: str) -> tuple[int, int, int] | None:
    """(job, epoch, rank) of a mark; None for one of another home, or none."""
    job, _, numbers = mark.partition(":")[2].partition(":")
    epoch, _, rank = numbers.partition(":")
    number = job_number(job)
    if number is None or not (epoch.isdecimal() and rank.isdecimal()):
        return None
    key = number, int(epoch), int(rank)
    return key if mark_of(layout, *key) == mark else None


def environment(
    run: Run, layout: Layout, cuda: list[int] | None, threads: int, account: Account | None = None
) -> dict[str, str]:
    """All variables of the job's process: the node's (`node_environment`), the user's, then the fixed ones.

    `cuda` maps the node's GPU numbers to the machine's; None = CPU slots, of `threads` threads each unless the user
    sets another number. `account`: which runs it, None: that of this process.
    """
    env = node_environment(os.environ, passed(layout.home, os.environ))
    if account is not None:
        env.pop("TMPDIR", None)
        env |= account.variables
    env |= (
        {"PYTHONUNBUFFERED": "1", "KINETO_LOG_LEVEL": QUIET}
        | ({"OMP_NUM_THREADS": str(threads)} if cuda is None else {})
        | run.env
    )
    # `python` is found without an activated environment, and nothing of the user's is hidden by it.
    env["PATH"] = os.pathsep.join([env["PATH"], str(Path(sys.executable).parent)])
    paths = [str(HOOK), *filter(None, [env.get("PYTHONPATH")])]
    visible = "" if cuda is None else ",".join(str(cuda[gpu]) for gpu in run.gpus)
    granted = {} if run.network is None else {VARIABLE: str(layout.rank(run.job, run.epoch, run.rank) / FILE)}
    port = run.master_port or (free_port() if run.world == 1 else 0)
    return (
        env
        | granted
        | {
            procs.MARK: mark_of(layout, run.job, run.epoch, run.rank),
            "PLAIT_JOB": job_name(run.job),
            "PLAIT_EPOCH": str(run.epoch),
            "PLAIT_RUN_DIR": str(layout.rank(run.job, run.epoch, run.rank)),
            "PLAIT_JOB_DIR": str(layout.job(run.job)),
            "PLAIT_HOME": str(layout.home),
            "PLAIT_CHECKPOINT_S": f"{run.checkpoint_s:g}",
            "CUDA_VISIBLE_DEVICES": visible,
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # NVML's order, which the numbers are from
            "PYTHONPATH": os.pathsep.join(paths),
            "RANK": str(run.rank),
            "WORLD_SIZE": str(run.world),
            "LOCAL_RANK": str(run.local_rank),
            "LOCAL_WORLD_SIZE": str(run.local_world),
            "MASTER_ADDR": run.master_addr,
            "MASTER_PORT": str(port),
        }
    )


def free_port() -> int:
    """A free port for a job of one process, which no peer has to know in advance."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def meeting_port_taken(run: Run) -> bool:
    """Whether this is rank 0 of a gang and some other program listens where its peers are to meet."""
    if run.world == 1 or run.rank != 0 or not run.master_port:
        return False
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that fade away are no listeners
        try:
            probe.bind(("", run.master_port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def prepare(run: Run, layout: Layout, account: Account | None = None) -> Path:
    """The folder of this rank with its page, of `account` (None: of this process's).

    Raises OSError if the disk refuses, `InputError` if the account cannot run it.
    """
    job = make_private(layout.job(run.job))
    if account is not None:
        accounts.give(job, account)
        accounts.check_reach(account, [job, _PLAIT / "__init__.py", Path(sys.executable).resolve()])
    elif (owner := accounts.owner_of(job)) is not None:
        raise InputError(
            f"{job} belongs to {owner.name}, as which its job ran before; start again: plait up --as-owner"
        )
    with accounts.acting_as(account):
        make_private(job / "checkpoints")
        folder = make_private(layout.rank(run.job, run.epoch, run.rank))
        Page.create(folder / "page.bin").close()
        if run.network is not None:
            write_grant(folder / FILE, run.network)
    return folder


def spawn(run: Run, layout: Layout, env: dict[str, str], lease: NodeLease) -> int:
    """Start the runner of `run` and send it its task; returns its pid. Raises OSError.

    `layout`: of the home folder; `env`: environment of the job; `lease`: file of the node's lease.

    posix_spawn and not subprocess: the runner must be born with its signals held back and in a session of its own, and
    nothing of it is tied to a Python object of the agent.
    """
    folder = layout.rank(run.job, run.epoch, run.rank)
    return _spawn("runner", _task(run, layout, env, lease), folder, env[procs.MARK], lease)


def spawn_host(runs: list[Run], layout: Layout, envs: list[dict[str, str]], lease: NodeLease) -> int:
    """Start the runner of a process that `runs` share, each as a thread; returns its pid. Raises OSError, `InputError`.

    `layout`: of the home folder; `envs`: environment of each job; `lease`: file of the node's lease.

    The process is known by the mark of the first; what it has only once (C libraries read it) is what all have alike.
    """
    script = parse_script(runs[0].argv)
    host = _task(runs[0], layout, {name: value for name, value in envs[0].items() if name not in _OF_ONE}, lease)
    host["argv"] = [script.python, *script.options, "-u", "-m", "plait.training.merged.host"]
    limits = [run.memory_bytes for run in runs]
    host["memory_bytes"] = sum(limits) if all(limits) else 0.0
    tasks = [_task(run, layout, env, lease) for run, env in zip(runs, envs, strict=True)]
    folder = layout.rank(runs[0].job, runs[0].epoch, runs[0].rank)
    return _spawn("merged_runner", {"host": host, "members": tasks}, folder, envs[0][procs.MARK], lease)


def _task(run: Run, layout: Layout, env: dict[str, str], lease: NodeLease) -> dict[str, Any]:
    """The task of a runner, see `runner.Task`; raises `InputError` for a container that cannot run here."""
    account = accounts.owner_of(layout.job(run.job))
    image, argv, workdir = env.get(container.VARIABLE), run.argv, run.workdir or str(layout.job(run.job))
    env = {name: value for name, value in env.items() if name != container.VARIABLE}
    if image:
        folders = [layout.job(run.job), *([layout.gates] if layout.gates.is_dir() else []), Path(workdir)]
        argv = container.inside(
            image, argv, env, folders=list(dict.fromkeys(folders)), readable=[_PLAIT], workdir=workdir,
            gpus=bool(env["CUDA_VISIBLE_DEVICES"]), memory_bytes=run.memory_bytes,
            ids=(account.uid, account.gid) if account is not None else (os.getuid(), os.getgid()),
        )  # fmt: skip
    return {
        "folder": str(layout.rank(run.job, run.epoch, run.rank)),
        "argv": argv,
        "cwd": workdir,
        "env": env,
        "mark": env[procs.MARK],
        "grace_s": run.grace_s,
        "log_bytes": run.log_bytes,
        "output": run.output and str(Path(workdir, run.output)),
        "memory_bytes": run.memory_bytes,
        "lease": str(lease.path),
        "asked_s": lease.now.asked_s,
        "lease_s": lease.now.lease_s,
        "guest": run.group.guest,
    }


def spawn_successor(run: Run, layout: Layout, env: dict[str, str], lease: NodeLease) -> tuple[int, int, int]:
    """Start the runner of a process that waits for its attempt, see `successor_runner`. Raises OSError, `InputError`.

    Returns its pid, the descriptor for the task of the attempt, and the one that is readable once the process is ready.
    """
    task = task_of(run, layout, env, lease) + b"\n"
    with accounts.in_name_of(layout.job(run.job)):
        log = make_private(layout.rank(run.job, run.epoch, run.rank)) / "runner.log"
    report, ready = os.pipe2(os.O_CLOEXEC)
    try:
        pid, write = _start_runner("successor_runner", log, env[procs.MARK], lease, ready)
    except OSError:
        os.close(report)
        raise
    finally:
        os.close(ready)
    with contextlib.suppress(BrokenPipeError):
        write_all(write, task)
    return pid, write, report


def task_of(run: Run, layout: Layout, env: dict[str, str], lease: NodeLease) -> bytes:
    """The text that a runner reads from its standard input."""
    return json.dumps(_task(run, layout, env, lease)).encode()


def _spawn(kind: str, task: dict[str, Any], folder: Path, mark: str, lease: NodeLease) -> int:
    pid, write = _start_runner(kind, folder / "runner.log", mark, lease)
    try:
        with contextlib.suppress(BrokenPipeError):  # it died at once; that is noticed as any death is
            write_all(write, json.dumps(task).encode())
    finally:
        os.close(write)
    return pid


def _start_runner(kind: str, log: Path, mark: str, lease: NodeLease, third: int = -1) -> tuple[int, int]:
    """Start a module of this package; its pid, and a descriptor for its standard input. `third`: its descriptor 3.

    It has the account to which the job's folder belongs, of which `launcher` makes it.
    """
    account = accounts.owner_of(accounts.job_folder(log.parent))
    program = [f"{_PROCESSES}.{kind}"] if account is None else [f"{_PROCESSES}.launcher", str(account.uid), kind]
    own = {
        "PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONPATH": str(_PLAIT.parent),
        procs.MARK: mark, LEASE_VARIABLE: str(lease.path),
    }  # fmt: skip
    read, write = os.pipe2(os.O_CLOEXEC)
    try:
        with accounts.acting_as(account):
            errors = procs.open_to_append(log)
    except OSError:
        os.close(read)
        os.close(write)
        raise
    try:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-S", "-P", "-m", *program],
            own,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, read, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, errors, 2),
                *([(os.POSIX_SPAWN_DUP2, third, 3)] if third >= 0 else []),
            ],
            setsid=True,
            setsigmask=HELD_BACK,
        )
    except BaseException:
        os.close(write)
        raise
    finally:
        os.close(read)
        os.close(errors)
    return pid, write


def write_all(fd: int, data: bytes) -> None:
    """Write everything; raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
