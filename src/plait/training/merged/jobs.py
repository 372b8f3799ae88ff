"""Run several jobs as threads of one process: one CUDA context, and failures that affect one job only.

    results = run_merged([train_a, train_b], InterleavePlan(gate="tokens"))

Each job is a function of its `Job`. It has its own gates (the same files as between processes: locks are by open
file), random streams, output, CUDA stream; see `routes` for what a process has only once. An
exception, out of memory included, ends only that job: its tokens are freed, and a barrier continues with one member
less. What ends the process (a segmentation fault, an illegal address on the GPU, os._exit) ends all jobs, which then
resume from their checkpoints.

Threads share the interpreter's lock, so jobs of many tiny operations gain nothing (134,000 to 177,000 operations a
second with one thread, and no more with four); keep Python-heavy loading in worker processes.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.runtime.gate_choice import GateChoice
from plait.runtime.gates import GroupMember as Mate
from plait.runtime.gates import make_group
from plait.runtime.page import STOP_GRACEFULLY, VERSION, Page
from plait.training.attachment import attach
from plait.training.job import Job
from plait.training.merged import thread_jobs
from plait.training.merged.routes import Stream, Streams, ThreadRoutes
from plait.training.merged.thread_jobs import Preempted, ThreadJob, Unmergeable
from plait.training.process import torch_cuda
from plait.training.stopping import PREEMPTED

#: Longest wait of a thread for one that computes in Python, in seconds (Python's default is 0.005).
SWITCH_S = 0.0005
FINISHED, FAILED, STOPPED = "finished", "failed", "preempted"


@dataclass(frozen=True)
class JobResult:
    """How a merged job ended: finished, failed (with `reason` and `error`) or preempted.

    `exit_code`: as of a process. `steps`: iterations since the beginning of the job. `seconds`: from start to end.
    """

    name: str
    state: str
    reason: str = ""
    exit_code: int = 0
    steps: int = 0
    seconds: float = 0.0
    error: BaseException | None = None


@dataclass(frozen=True)
class InterleavePlan:
    """How jobs of one process take turns: `gate` (none, tokens, barrier) and `turns` 0..3 by job (default 0, 1, ...).

    `quantum_s`: quantum of tokens, in seconds. `epoch` fences checkpoints of earlier attempts.
    """

    gate: str = "tokens"
    turns: tuple[int, ...] | None = None
    quantum_s: float = 0.01
    epoch: int = 1

    @classmethod
    def of(cls, choice: GateChoice) -> InterleavePlan:
        return cls(choice.gate, choice.turns)


@dataclass(frozen=True)
class Peers:
    """Other processes that run the same jobs: each job gets a process group of its own over all of them.

    Rank 0 hosts the store at `address`:`port`. Every job has its own client, since threads that rendezvous through one
    client would deadlock.
    """

    rank: int
    world_size: int
    port: int
    address: str = "127.0.0.1"
    timeout_s: float = 60.0


class JobThreads:
    """The threads of merged jobs: prepares the process, contains failures of each job, and restores the process.

    `ended(member, result)` is called in the thread of a job after its end, `last_words(member, what)` before a member
    ends the process.
    """

    def __init__(
        self,
        ended: Callable[[ThreadJob, JobResult], None] = lambda member, result: None,
        last_words: Callable[[ThreadJob, str], None] = lambda member, what: None,
    ) -> None:
        """Start without members; `__enter__` prepares the process."""
        self.results: dict[int, JobResult] = {}
        self._ended = ended
        self._routes = ThreadRoutes(last_words)
        self._threads: list[threading.Thread] = []
        self._streams: Streams | None = None

    def __enter__(self) -> JobThreads:
        """Prepare the process; it can run one set of members at a time."""
        if isinstance(sys.stdout, Stream):
            raise InputError("jobs of this process are merged already; run_merged cannot be called within one of them")
        self._torch = sys.modules.get("torch")
        self._cuda = self._torch is not None and self._torch.cuda.is_available()
        if self._cuda and self._torch is not None:
            self._torch.cuda.init()  # else all members would use seeds that were set before
        self._torch_threads = self._torch.get_num_threads() if self._torch is not None else 0
        self._routes.open()
        self._streams = Streams(self._routes)
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._froze = not gc.get_freeze_count()
        if self._froze:  # so that collections at the end of a job skip existing objects and do not delay the others
            gc.freeze()
        return self

    def __exit__(self, *_: object) -> None:
        self.join()
        if self._streams is not None:
            self._streams.close()
        self._routes.close()
        sys.setswitchinterval(self._switch_s)
        if self._froze:
            gc.unfreeze()

    def start(self, member: ThreadJob, work: Callable[[], object]) -> None:
        """Run `work` as `member`, in a daemon thread."""
        thread = threading.Thread(target=self._run, args=(member, work), name=f"plait-{member.name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    @property
    def running(self) -> int:
        return sum(thread.is_alive() for thread in self._threads)

    def _run(self, member: ThreadJob, work: Callable[[], object]) -> None:
        thread_jobs.become(member)
        member.ident = threading.get_ident()
        begin_s = time.monotonic()
        assert self._streams is not None
        streams = self._streams
        streams.begin(member)
        member.own_streams = lambda: streams.own(member)
        try:
            with self._device(member):
                code, reason, error = _contained(member, work)
                if code == 0 and member.interrupted:  # its script caught the interruption
                    code, reason = PREEMPTED, "exited with 0 when it was stopped"
                code, reason = _wind_up(member, code, reason)
                member.ident = 0  # from here on an interruption would lose the result
        except BaseException as late:  # an interruption that came too late, or the GPU is gone
            code, reason, error = 1, f"{type(late).__name__}: {late}", late
            member.ident = 0
        steps = member.job.step if member.job is not None else 0
        state = FINISHED if code == 0 else STOPPED if code in (PREEMPTED, -signal.SIGTERM) else FAILED
        result = JobResult(member.name, state, reason, code, steps, time.monotonic() - begin_s, error)
        if error is not None:
            for one in (error, error.__cause__, error.__context__):
                if one is not None:
                    traceback.clear_frames(one.__traceback__)
        if member.main is not None:
            vars(member.main).clear()
        member.job = None
        member.streams.clear()
        gc.collect()
        cuda = torch_cuda()
        if cuda is not None:
            with contextlib.suppress(RuntimeError):  # the context may be gone
                cuda.empty_cache()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        self.results[member.index] = result
        self._ended(member, result)

    @contextlib.contextmanager
    def _device(self, member: ThreadJob) -> Iterator[None]:
        """Set what torch keeps per thread: an own stream, and backward passes in this thread."""
        torch = self._torch
        if torch is None:
            yield
            return
        torch.set_num_threads(self._torch_threads)
        with contextlib.ExitStack() as stack:
            # torch's backward thread is shared by all jobs, allocates outside our pool, and belongs to no member.
            stack.enter_context(torch.autograd.set_multithreading_enabled(False))
            if self._cuda:
                stream = torch.cuda.Stream()
                stream.wait_stream(torch.cuda.current_stream())  # work launched before the threads is complete
                stack.enter_context(torch.cuda.stream(stream))
                # torch's allocator keeps memory by stream, so this stream's blocks are the job's own. No MemPool for
                # each job: torch aborts the process when one is destroyed while another thread allocates to one.
                member.stream = stream
            yield


def _contained(member: ThreadJob, work: Callable[[], object]) -> tuple[int, str, BaseException | None]:
    """Run `work`; returns exit code, reason and exception, and raises nothing."""
    try:
        work()
    except Preempted:
        if member.leaving is not None:
            return member.leaving, "", None
        return -signal.SIGTERM, "stopped without a checkpoint: it came to no step boundary in time", None
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF, "", None
        print(end.code, file=sys.stderr)
        return 1, str(end.code), None
    except BaseException as error:
        traceback.print_exception(error)
        return 1, f"{type(error).__name__}: {error}", error
    return 0, "", None


def _wind_up(member: ThreadJob, code: int, reason: str) -> tuple[int, str]:
    """Do what an interpreter does at its end: join threads, end the job, call `atexit` functions."""
    for thread in list(member.threads):
        while thread.is_alive() and not thread.daemon:
            thread.join(0.1)
    if member.job is not None:
        member.job.end(failed=code not in (0, PREEMPTED))
    while member.at_exit:
        try:
            member.at_exit.pop()()
        except Exception as error:
            traceback.print_exception(error)
    return code, reason


def device_lost() -> str:
    """The error by which this process can no longer use its GPU; "" if it can."""
    cuda = torch_cuda()
    if cuda is None:
        return ""
    try:
        cuda.synchronize()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


class Merged:
    """Runs jobs merged; `run_merged` is the short form. `folder` keeps their checkpoints; without it they are lost.

    with Merged([train_a, train_b], InterleavePlan()) as merged:
        merged.stop(1)                      # after a checkpoint at its next step boundary; the other continues
    merged.results
    """

    def __init__(
        self,
        jobs: Sequence[Callable[[Job], object]],
        plan: InterleavePlan | GateChoice | None = None,
        *,
        folder: str | os.PathLike[str] | None = None,
        names: Sequence[str] | None = None,
        checkpoint_s: float = 60.0,
        peers: Peers | None = None,
    ) -> None:
        """Prepare `jobs`, functions of their `Job`, to take turns by `plan`.

        `names`: unique, default job0, job1, ...; `checkpoint_s`: seconds between checkpoints; `peers`: other processes
        that run the same jobs. Raises `InputError` for a plan that does not fit the jobs.
        """
        self.plan = plan = InterleavePlan.of(plan) if isinstance(plan, GateChoice) else plan or InterleavePlan()
        self._jobs, self._peers = list(jobs), peers
        self.names = list(names or (f"job{i}" for i in range(len(jobs))))
        turns = plan.turns if plan.turns is not None else tuple(i % len(Resource) for i in range(len(jobs)))
        if not jobs or len(turns) != len(jobs) or len(set(self.names)) != len(jobs):
            raise InputError(f"{len(jobs)} jobs, turns {list(turns)}, names {self.names}; needs one of each by job")
        if peers is not None and plan.gate != "none":
            raise InputError(
                f"gate {plan.gate!r} with peers: gates of one process know nothing of the other's, and jobs that wait "
                "for each other in collectives would deadlock; use gate 'none', or one process a job (plait submit)"
            )
        self._turns, self._checkpoint_s = turns, checkpoint_s
        self._given = Path(folder) if folder is not None else None
        self._threads = JobThreads()
        self._server: Any = None
        self._pages: list[Page] = []

    @property
    def results(self) -> list[JobResult]:
        """Results in the order of the jobs, after all have ended."""
        return [self._threads.results[i] for i in range(len(self._jobs))]

    def __enter__(self) -> Merged:
        shm = Path("/dev/shm")
        self._scratch = Path(tempfile.mkdtemp(prefix="plait-", dir=shm if os.access(shm, os.W_OK) else None))
        try:
            group = make_group(
                self._scratch / "gates", self.plan.gate, [Mate(i, turn) for i, turn in enumerate(self._turns)],
                version=1, quantum_s=self.plan.quantum_s,
            )  # fmt: skip
            members = [self._member(i, group.control(i)) for i in range(len(self._jobs))]
            if self._peers is not None and self._peers.rank == 0:
                from torch.distributed import TCPStore  # type: ignore[attr-defined]

                self._server = TCPStore(self._peers.address, self._peers.port, is_master=True, wait_for_workers=False)
            self._threads.__enter__()
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise
        for member, job in zip(members, self._jobs, strict=True):
            self._threads.start(member, lambda job=job: job(attach()))  # type: ignore[misc]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for all jobs; if the block failed, stop them first."""
        try:
            if kind is not None:
                self.stop_all()
            self._threads.__exit__()
        finally:
            self._server = None
            for page in self._pages:
                page.close()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def stop(self, index: int) -> None:
        """Ask one job to end at its next step boundary, after a checkpoint."""
        self._pages[index].stop = STOP_GRACEFULLY

    def stop_all(self) -> None:
        """Ask all jobs to end, as `stop` does."""
        for index in range(len(self._pages)):
            self.stop(index)

    def steps(self, index: int) -> int:
        return int(self._pages[index].steps)

    def _member(self, index: int, entry: dict[str, Any]) -> ThreadJob:
        name, epoch = self.names[index], self.plan.epoch
        job_dir = (self._given or self._scratch) / name
        run_dir = job_dir / "attempts" / str(epoch) / "rank0"
        run_dir.mkdir(parents=True, exist_ok=True)
        (job_dir / "checkpoints").mkdir(exist_ok=True)
        (job_dir / "EPOCH").write_text(f"{epoch}\n", encoding="ascii")
        control = {"version": 1, "epoch": epoch, "group": entry, "made_by": VERSION}
        (run_dir / "control.json").write_text(json.dumps(control))
        page = Page.create(run_dir / "page.bin")
        page.control_version = 1
        self._pages.append(page)
        environ = dict(os.environ) | {
            "PLAIT_JOB": name,
            "PLAIT_EPOCH": str(epoch),
            "PLAIT_RUN_DIR": str(run_dir),
            "PLAIT_JOB_DIR": str(job_dir),
            "PLAIT_CHECKPOINT_S": f"{self._checkpoint_s:g}",
            "RANK": "0",
            "WORLD_SIZE": "1",
        }
        make_group = None if self._peers is None else lambda: self._process_group(name)
        return ThreadJob(index, name, environ, list(sys.argv), make_group=make_group)

    def _process_group(self, name: str) -> Any:
        """Create a gloo group of this job over all peers, through its own client."""
        from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

        peers = self._peers
        assert peers is not None
        patience = timedelta(seconds=peers.timeout_s)
        client = TCPStore(peers.address, peers.port, is_master=False, wait_for_workers=False, timeout=patience)
        return ProcessGroupGloo(PrefixStore(f"plait/{name}", client), peers.rank, peers.world_size, patience)


def run_merged(
    jobs: Sequence[Callable[[Job], object]],
    plan: InterleavePlan | GateChoice | None = None,
    *,
    folder: str | os.PathLike[str] | None = None,
    names: Sequence[str] | None = None,
    checkpoint_s: float = 60.0,
    peers: Peers | None = None,
) -> list[JobResult]:
    """Run each of `jobs` in a thread of this process until all have ended; returns their results in order.

    `plan` says how they take turns: an `InterleavePlan`, or the result of `choose_gate`; by default tokens.
    `folder` keeps checkpoints of each job under its name: with a higher `plan.epoch` the next call resumes from
    them. SIGTERM stops all jobs at their next step boundary, if this is the main thread. Raises `InputError` for a plan
    that does not fit the jobs; failures of a job are in its result.
    """
    with (
        Merged(jobs, plan, folder=folder, names=names, checkpoint_s=checkpoint_s, peers=peers) as merged,
        _stopped_by_signal(merged),
    ):
        merged._threads.join()
    return merged.results


@contextlib.contextmanager
def _stopped_by_signal(merged: Merged) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        merged.stop_all()

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = ["InterleavePlan", "JobResult", "JobThreads", "Merged", "Peers", "Unmergeable", "device_lost", "run_merged"]
