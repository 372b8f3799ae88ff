"""The job as its own process sees it: what a training script calls.

Outside plait `attach` gives a `Job` whose methods do nothing, so a script runs unchanged anywhere. Under plait it gives
the one `AttachedJob` of the process. An iteration is an optimizer step. Between two of them the job tells its agent how
far it is, makes a checkpoint if one is due, and stops if it was asked to; the best moment for that is the beginning of
the next iteration, when everything that belongs to the last one (scheduler, counters) is done:

    in `job.steps(n)`           before the next number            anything may follow optimizer.step()
    in a wrapped loader         before the next batch             "
    `job.step_boundary()`       where it is called                for loops of another kind
    none of these               in optimizer.step() itself        what follows it in the iteration is in no checkpoint
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from plait.core.errors import InputError
from plait.core.resources import Resource
from plait.training import streams
from plait.training.checkpoint import Checkpointer, CheckpointHandle, need_stateful
from plait.training.commits import Commit, Commits
from plait.training.page import STOP_NOW, JobState, Page
from plait.training.profiler import Profiler, skew
from plait.training.stagegate import NullGate
from plait.training.stages import Stages
from plait.training.stopping import PREEMPTED, Agreement, StopFlag
from plait.training.surroundings import ControlFile, Surroundings, claim

#: A part of an iteration shorter than this is not worth a pause for pacing.
LEAST_PAUSE_S = 0.001


class Job:
    """A job outside plait: every method does nothing, or what a plain script would have done."""

    def __init__(self, *, seed: int = 0) -> None:
        """`seed` of `rng`."""
        self._seed = seed
        self._rng: Any = None

    @property
    def attached(self) -> bool:
        """Whether plait runs this process."""
        return False

    @property
    def rng(self) -> Any:
        """A torch generator of the job's own, seeded by `attach(seed=...)`; its state is in checkpoints."""
        if self._rng is None:
            import torch

            self._rng = torch.Generator().manual_seed(self._seed)
        return self._rng

    def stage(self, resource: Resource, *, sync: bool = False) -> AbstractContextManager[None]:
        """`with job.stage(Resource.GPU):` marks a stage and waits for its turn. `sync`: wait for the GPU at the end."""
        return nullcontext()

    def wrap_loader(self, loader: Any, *, train: bool = True) -> Any:
        """The loader with storage and CPU stages marked and, if it is the one for training, its place remembered.

        An ordinary DataLoader goes on with exactly the batches that were left, in the middle of an epoch too;
        torchdata's StatefulDataLoader keeps its own state. `train=False`, for evaluation: marks only.
        """
        return loader

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """The same optimizer: its steps count, the GPU stage ends with them, its state is in checkpoints."""
        return optimizer

    def wrap_ddp(self, model: Any, *, inner: Any = None) -> Any:
        """The same DDP model with its network stage marked. `inner`: a communication hook of one's own to go through.

        DDP takes one hook, so a script that registers its own gives it here instead.
        """
        if inner is not None:
            model.register_comm_hook(None, inner)
        return model

    def register_state(self, **stateful: Any) -> None:
        """Have these in checkpoints, by name: whatever has `state_dict` and `load_state_dict`.

        Optimizers are also wrapped as by `wrap_optimizer`. Raises `InputError` for what cannot be saved.
        """

    def resume(self) -> int:
        """Put back the newest checkpoint's state, if there is one; the number of the next step, 0 at the beginning.

        What is registered later is put back when it is registered.
        """
        return 0

    def steps(self, total: int) -> Iterable[int]:
        """`for step in job.steps(1000):` the steps that are left; resumes first."""
        return range(total)

    def epochs(self, total: int) -> Iterable[int]:
        """`for epoch in job.epochs(10):` the epochs that are left, the first perhaps begun; resumes first."""
        return range(total)

    def yield_point(self) -> None:
        """Inside a long stage: a moment at which others may go first."""

    def step_boundary(self) -> None:
        """End of an iteration, for loops that end it elsewhere than in an optimizer step; from then on the only one."""

    def checkpoint(self, *, block: bool = False) -> CheckpointHandle | None:
        """Save now, at the end of an iteration, written beside training unless `block`; all ranks together."""
        return None


class AttachedJob(Job):
    """The job of this process under plait; made by `attach`."""

    def __init__(self, around: Surroundings, page: Page, *, seed: int = 0) -> None:
        """Speak for the rank that `around` describes, through its page."""
        super().__init__(seed=seed)
        assert around.job_dir is not None
        self.around, self.page = around, page
        self.control = ControlFile(around, page)
        self.stages = Stages(page, NullGate(), refresh=self.control.gate)
        self.profiler = Profiler()
        self.stop = StopFlag()
        self.agreement = Agreement(around.world)
        folder = around.job_dir / "checkpoints"
        commits = Commits(folder, epoch=around.epoch, epoch_file=around.job_dir / "EPOCH")
        self.checkpointer = Checkpointer(commits, rank=around.rank, world=around.world, done=self._committed)
        self.step = 0
        self.compute_thread = 0
        self._pid = os.getpid()
        self._registered: dict[str, Any] = {}
        self._replicated: set[str] = set()  # names of models under DDP
        self._restored: dict[str, Any] | None = None  # states of the checkpoint that nobody has asked for yet
        self._resumed = self._manual = self._pending = self._leaving = False
        self._counting: int | None = None  # id of the optimizer whose steps count
        self._wrapped = self._marks_compute = False
        self._loops: list[str] = []  # loops of ours that are running: they know better moments than the optimizer
        self._epoch = self._counted = 0
        self._saved_s = time.monotonic()
        self._idle_s = 0.0
        self._due_sent = False
        self._memory_limit = 0.0
        self._gate_thread: Any = None
        page.pid, page.state = os.getpid(), JobState.STARTING
        self._failed = False
        atexit.register(self._end)
        sys.excepthook = self._note_failure(sys.excepthook)

    @property
    def rng(self) -> Any:
        """See `Job.rng`; made after the checkpoint was read, it begins where the checkpoint's was."""
        made = self._rng is None
        generator = super().rng
        if made and self._restored is not None and self._restored["streams"]["own"]:
            generator.set_state(self._restored["streams"]["own"][0])
        return generator

    # -- what scripts call; documented in Job ---------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        """True."""
        return True

    def stage(self, resource: Resource, *, sync: bool = False) -> AbstractContextManager[None]:
        """See `Job.stage`."""
        if resource is Resource.GPU and self._marks_compute:  # the script knows better where it begins and ends
            self._marks_compute = False
            self.stages.leave(Resource.GPU)
        return self.stages.stage(Resource(resource), sync=sync)

    def wrap_loader(self, loader: Any, *, train: bool = True) -> Any:
        """See `Job.wrap_loader`."""
        from plait.training.loader import wrap

        wrapped = wrap(self, loader, train=train)
        if train and wrapped is not loader:
            self._register(self._free_name("loader"), wrapped)
        return wrapped

    def wrap_optimizer(self, optimizer: Any) -> Any:
        """See `Job.wrap_optimizer`."""
        if not any(value is optimizer for value in self._registered.values()):
            self._register(self._free_name("optimizer"), optimizer)
        self._mark_optimizer(optimizer)
        return optimizer

    def wrap_ddp(self, model: Any, *, inner: Any = None) -> Any:
        """See `Job.wrap_ddp`."""
        from plait.training.network import module_of, register

        register(self, model, inner)
        module = module_of(model)
        names = [name for name, value in self._registered.items() if value in (model, module)]
        name = names[0] if names else self._free_name("model")
        if not names:
            self._register(name, module)
        self._registered[name] = module
        self._replicated.add(name)
        return model

    def register_state(self, **stateful: Any) -> None:
        """See `Job.register_state`."""
        for name, value in stateful.items():
            need_stateful(name, value)
        for name, value in stateful.items():
            self._register(name, value)
            if hasattr(value, "param_groups"):
                self._mark_optimizer(value)

    def resume(self) -> int:
        """See `Job.resume`."""
        if self._resumed:
            return self.step
        self._resumed = True
        found = self.checkpointer.load()
        if found is not None:
            commit, self._restored = found
            self.step = commit.step
            self._epoch = self._restored["plait"]["epoch"]
            self.page.steps = self.page.checkpoint_steps = self.step
            with contextlib.suppress(OSError):
                self.page.checkpoint_time = commit.path.stat().st_mtime
            for name, value in self._registered.items():
                self._restore(name, value)
            self.restore_streams()
        self.page.state = JobState.RUNNING
        self._saved_s = time.monotonic()
        return self.step

    def steps(self, total: int) -> Iterator[int]:
        """See `Job.steps`."""
        first = self.resume()
        self.page.total_iterations = total
        with self.in_loop("steps"):
            for step in range(first, total):
                if step > first:
                    self.safe_point("steps")
                yield step
            self.safe_point("steps")

    def epochs(self, total: int) -> Iterator[int]:
        """See `Job.epochs`."""
        self.resume()
        with self.in_loop("epochs"):
            for epoch in range(self._epoch, total):
                self._epoch = epoch
                yield epoch
                self._epoch = epoch + 1
                self.safe_point("epochs")

    def yield_point(self) -> None:
        """See `Job.yield_point`."""
        self.stages.yield_point()

    def step_boundary(self) -> None:
        """See `Job.step_boundary`."""
        if not self._manual:
            self._manual = True
            self._pending = False
            if self._counted:  # the optimizer's hook has counted this one already
                self._act()
                return
        self._count()
        self._act()

    def checkpoint(self, *, block: bool = False) -> CheckpointHandle | None:
        """See `Job.checkpoint`."""
        before = self.page.state
        self.page.state = JobState.CHECKPOINTING
        handle = self.checkpointer.save(self.step, self._collect)
        self.page.blocking_s += handle.blocking_s
        self._idle_s += handle.blocking_s
        self._saved_s = time.monotonic()
        if block:
            handle.wait()
        self.page.state = before
        return handle

    # -- what loaders, hooks and adapters call --------------------------------------------------------------------

    @property
    def gate_thread(self) -> Any:
        """The thread that stands at the gate of the network."""
        if self._gate_thread is None:
            from plait.training.network import GateThread

            self._gate_thread = GateThread()
        return self._gate_thread

    def optimizer_stepped(self, optimizer: Any) -> None:
        """After `step()` of any optimizer of the process. The first, or the first wrapped, is the one that counts."""
        if os.getpid() != self._pid or self._leaving:
            return
        if self._counting is None:
            self._counting = id(optimizer)
        if id(optimizer) != self._counting:
            return
        if self._marks_compute:
            self.stages.leave(Resource.GPU)
        if self._manual:
            return
        self._count()
        if self._loops:
            self._pending = True
        else:
            self._act()

    def batch_begins(self) -> None:
        """A loader hands out a batch: from here on the job computes."""
        if self._marks_compute and not self.stages.is_open(Resource.GPU):
            self.compute_thread = threading.get_ident()
            self.stages.enter(Resource.GPU)

    def batch_ends(self) -> None:
        """The script asks for the next batch, or leaves its loop."""
        if self._marks_compute:
            self.stages.leave(Resource.GPU)

    @contextlib.contextmanager
    def in_loop(self, loop: str) -> Iterator[None]:
        """While a loop of ours runs: `steps`, `epochs` or `loader`."""
        self._loops.append(loop)
        try:
            yield
        finally:
            self._loops.remove(loop)

    @property
    def in_epochs(self) -> bool:
        """Whether the script counts its epochs by `epochs`."""
        return "epochs" in self._loops

    def restore_streams(self) -> None:
        """Random streams as they were at the checkpoint, after whatever had to be drawn to get here."""
        if self._restored is not None:
            streams.restore(self._restored["streams"], self._own_generators())

    @property
    def wants_stop(self) -> int:
        """0 go on, 1 checkpoint and exit, 2 exit: what the agent or a signal asked of this rank."""
        return max(self.stop.level, min(self.page.stop, STOP_NOW))

    def leave(self) -> NoReturn:
        """End the process as preempted, once what is being written is written."""
        self._leaving = True
        self.stop.ignore()
        self.stages.close_all()
        self.stages.gate.close()
        self.checkpointer.drain()
        self.page.state = JobState.PREEMPTED
        if threading.current_thread() is not threading.main_thread():  # SystemExit would only end this thread
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(PREEMPTED)
        raise SystemExit(PREEMPTED)

    def _note_failure(self, inner: Callable[..., object]) -> Callable[..., object]:
        """An excepthook that remembers that there was an exception nobody caught."""

        def hook(*exception: object) -> None:
            self._failed = True
            inner(*exception)

        return hook

    def _end(self) -> None:
        """The interpreter ends: nobody may wait for this job at a gate; what is being written gets written."""
        if os.getpid() != self._pid:
            return
        self.stages.gate.close()
        self.checkpointer.drain()
        if not self._leaving:
            self.page.state = JobState.FAILED if self._failed else JobState.FINISHED

    # -- state ----------------------------------------------------------------------------------------------------

    def _free_name(self, name: str) -> str:
        numbers = (f"{name}{i}" if i > 1 else name for i in range(1, len(self._registered) + 2))
        return next(n for n in numbers if n not in self._registered)

    def _register(self, name: str, value: Any) -> None:
        self._registered[name] = value
        if self._resumed:
            self._restore(name, value)

    def _restore(self, name: str, value: Any) -> None:
        if self._restored is None or name not in self._restored["states"]:
            return
        try:
            value.load_state_dict(self._restored["states"].pop(name))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"the checkpoint of step {self.step} does not fit {name!r} ({type(value).__name__}): {error}; "
                "submit a changed script as a new job"
            ) from error

    def _mark_optimizer(self, optimizer: Any) -> None:
        """Count its steps, mark its stage, look at its parameters' sizes."""
        if not hasattr(optimizer, "register_step_pre_hook"):  # Accelerate's, around torch's
            optimizer = getattr(optimizer, "optimizer", optimizer)
        if not self._wrapped:
            self._wrapped = self._marks_compute = True
            self._counting = id(optimizer)
            sizes = [p.numel() * p.element_size() for group in optimizer.param_groups for p in group["params"]]
            self.page.skew = skew(sizes)
            if hasattr(optimizer, "register_step_pre_hook"):
                optimizer.register_step_pre_hook(self._step_begins)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """The GPU was given back while the last gradients travelled; with tokens it is needed again."""
        stages = self.stages
        if self._marks_compute and stages.gate.kind == "tokens" and not stages.has(Resource.GPU):
            stages.leave(Resource.GPU)
            stages.enter(Resource.GPU)

    def _own_generators(self) -> list[Any]:
        return [] if self._rng is None else [self._rng]

    def _collect(self) -> dict[str, Any]:
        """The state of this rank at a boundary. What all ranks have alike is in rank 0's alone."""
        left_out: set[str] = set()
        if self.around.rank and self._replicated:  # replicas are identical, and so are the optimizers that step them
            steppers = {name for name, value in self._registered.items() if hasattr(value, "param_groups")}
            left_out = self._replicated | steppers
        return {
            "plait": {"epoch": self._epoch, "step": self.step, "world": self.around.world},
            "states": {name: v.state_dict() for name, v in self._registered.items() if name not in left_out},
            "streams": streams.capture(self._own_generators()),
        }

    def _committed(self, commit: Commit) -> None:
        self.page.checkpoint_steps, self.page.checkpoint_time = commit.step, time.time()

    # -- boundaries -----------------------------------------------------------------------------------------------

    def safe_point(self, loop: str) -> None:
        """Act on the last iteration, here between two turns of a loop; `steps`, if there is one, knows best."""
        if self._pending and (loop == "steps" or "steps" not in self._loops):
            self._pending = False
            self._act()

    def _count(self) -> None:
        """One iteration more: tell the page, feed the profiler."""
        now_s = time.monotonic()
        self.step += 1
        self._counted += 1
        self.stages.publish()
        page, profiler = self.page, self.profiler
        if self.step == 1 or page.state == JobState.STARTING:
            page.state = JobState.RUNNING
        idle_s, self._idle_s = self._idle_s, 0.0
        if profiler.step(now_s, self.stages.busy_s, alone=self.control.alone, idle_s=idle_s) and profiler.result:
            page.set_profile(*profiler.result)
        page.step_s, page.last_step_monotonic, page.steps = profiler.step_s, now_s, self.step

    def _act(self) -> None:
        """Between two iterations: save, stop, hold, slow down, as it was asked for."""
        stop, save = self.decide()
        if stop == STOP_NOW:
            self.leave()
        if self._registered and (stop or save):
            self.checkpoint()
        if stop:
            self.leave()
        self.settle()

    # -- for adapters, whose trainers count, save and end in their own way ------------------------------------------

    def take_over(self, step: int, total: float) -> None:
        """From now on a trainer counts: it is at `step` of `total` iterations (0 unknown)."""
        self._manual, self._resumed, self.step = True, True, step
        self.page.steps, self.page.total_iterations = step, total
        self.page.state = JobState.RUNNING
        self._saved_s = time.monotonic()

    def count(self) -> None:
        """One iteration is done."""
        self._count()

    def decide(self) -> tuple[int, bool]:
        """What all ranks do at this boundary: stop (0 no, 1 after a checkpoint, 2 at once), make a checkpoint."""
        self.stop.listen()
        # Rank 0 says when, since clocks and disks of the others differ; one at a time.
        due = self.around.rank == 0 and time.monotonic() - self._saved_s >= self.around.checkpoint_s
        due = due and not self.checkpointer.busy
        stop, save = self.agreement.decide(self.wants_stop, due and not self._due_sent)
        self._due_sent = due and not save
        return stop, save

    def settle(self) -> None:
        """Hold or slow down, if the agent asked for it."""
        if self.page.pause:
            self._hold()
        self._pace()

    def saved(self, commit: Commit | None, blocking_s: float) -> None:
        """A checkpoint was made in the trainer's own way; training stood still for it."""
        self._saved_s = time.monotonic()
        self._idle_s += blocking_s
        self.page.blocking_s += blocking_s
        if commit is not None:
            self._committed(commit)

    def _hold(self) -> None:
        begin_s = time.monotonic()
        self.stages.gate.drop()
        while self.page.pause and not self.wants_stop:
            time.sleep(0.005)
        self._idle_s += time.monotonic() - begin_s

    def _pace(self) -> None:
        """Keep to a part of the GPU's time and memory, if the agent gave less than all."""
        share = self.page.share
        if 0 < share < 1:
            pause_s = min(self.profiler.step_s * (1 / share - 1), 1.0)
            if pause_s > LEAST_PAUSE_S:
                time.sleep(pause_s)
                self._idle_s += pause_s
        limit = self.page.memory_limit_bytes
        if limit != self._memory_limit:
            self._memory_limit = limit
            _limit_memory(limit)


def _limit_memory(limit_bytes: float) -> None:
    """Make torch's allocator on the current GPU keep to a limit; 0 takes the limit away."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        total = cuda.get_device_properties(cuda.current_device()).total_memory
        cuda.empty_cache()
        cuda.set_per_process_memory_fraction(min(limit_bytes / total, 1.0) if limit_bytes > 0 else 1.0)


_current: AttachedJob | None = None
_lock_fd: int | None = None


def current() -> AttachedJob | None:
    """The job of this process, if it has one; none in forked children, whose parent speaks."""
    return _current if _current is not None and _current._pid == os.getpid() else None


def attach(*, seed: int = 0, **stateful: Any) -> Job:
    """The job of this process; outside plait one that does nothing. `stateful` as for `Job.register_state`.

    Raises `InputError` for state that cannot be saved. Where plait runs the process but another process speaks for
    the rank already (a script that starts its training several times), the job does nothing either.
    """
    global _current, _lock_fd
    job: Job | None = current()
    if job is None:
        around = Surroundings.of(os.environ)
        _lock_fd = claim(around.run_dir) if around.run_dir is not None and around.page_file.exists() else None
        if _lock_fd is None:
            return Job(seed=seed)
        from plait.training.startup import watch_torch

        job = _current = AttachedJob(around, Page.open(around.page_file), seed=seed)
        watch_torch()
    job._seed = seed
    job.register_state(**stateful)
    return job
