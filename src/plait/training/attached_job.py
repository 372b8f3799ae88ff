"""The job of a process under plait, with the methods that a training script calls.

An iteration is a step of a torch optimizer; in a process where none steps (NumPy, JAX, plain Python) it is a step of
`job.steps`, a batch of a wrapped loader, or an epoch of `job.epochs` (`iterations`). Between two of
them the job reports its progress, saves a checkpoint if one is due, and stops on request. The best moment for that is
the beginning of the next iteration, when everything that belongs to the last one (scheduler, counters) is done:

    in `job.steps(n)`           before the next number            anything may follow optimizer.step()
    in a wrapped loader         before the next batch             "
    in `job.epochs(n)`          before the next number            if no iteration ended inside
    `job.step_boundary()`       where it is called                for loops of another kind
    none of these               in optimizer.step() itself        what follows it in the iteration is in no checkpoint
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NoReturn

from plait.core.resources import Resource
from plait.runtime.page import STOP_NOW, JobState, Page, Saves
from plait.training.advice import ResumeAdvice
from plait.training.emulation import make_stages
from plait.training.environment import ControlFile, Environment
from plait.training.iterations import Iterations, saved_loop_step
from plait.training.job import Job, whole_number
from plait.training.loader.consumers import EpochLoaders, LoaderNames, LoopCounters
from plait.training.passive import Hooks
from plait.training.process import here, note
from plait.training.profiler import Profiler
from plait.training.rehearsal import VARIABLE
from plait.training.sharing.device_memory import find_device_memory
from plait.training.sharing.shared_gpu import ALONE_EVERY_S, SharedGpu
from plait.training.stages import CONTROL, GLANCE_S, IN_STAGE, STOP, GpuStage
from plait.training.state.checkpoint import Checkpointer, CheckpointHandle
from plait.training.state.checkpoint_store import CheckpointStore, Commit
from plait.training.state.state_registry import StateRegistry
from plait.training.stopping import PREEMPTED, Boundary, tell_where_on_quit
from plait.training.successor import record_start

#: Half of the usual grace period: a stop might cut off a longer evaluation.
LONG_EVALUATION_S = 30.0
_STEPS, _LAST_STEP = Page.steps.index, Page.last_step_monotonic.index


class AttachedJob(Job):
    """The job of this process under plait, created by `attachment.attach`."""

    def __init__(self, around: Environment, page: Page, *, seed: int = 0) -> None:
        """Represent the rank that `around` describes, through `page`; `seed` as for `Job`."""
        super().__init__(seed=seed)
        assert around.job_dir is not None
        self.around, self.page = around, page
        self.control = ControlFile(around, page, wrap=lambda gate: self.shared.wrap(gate))
        self.process = here()
        self.stages = make_stages(page, refresh=self.control.gate, begun=self.process.gpu_stage_begins)
        self.compute = GpuStage(self.stages, page)
        self.shared = SharedGpu(
            page,
            self.stages,
            self.control.neighbours,
            own_process=self.process.limits_memory,
            wants_stop=lambda: self.boundary.wants_stop,
            note=partial(note, around.run_dir),
            find_memory=lambda: self.stages.memory or find_device_memory(),
            models=lambda: [v for v in self.kept.values.values() if hasattr(v, "register_forward_pre_hook")],
            ran_out=around.job_dir / "ran-out-of-gpu-memory",
        )
        watches = self.process.limits_memory and os.environ.get("PLAIT_PASSIVE") != "off"
        self.hooks = Hooks(around.run_dir) if watches else None
        self.profiler = Profiler(hooks=self.hooks)
        folder = around.job_dir / "checkpoints"
        commits = CheckpointStore(folder, epoch=around.epoch, epoch_file=around.job_dir / "EPOCH", source=around.source)
        self.checkpointer = Checkpointer(commits, rank=around.rank, world_size=around.world_size, done=self._committed)
        self.step = 0
        self._pid = os.getpid()
        self.kept = StateRegistry()
        self._resumed = self._leaving = self._foreign = False
        self.iterations = Iterations(self.compute)
        self._epoch = 0
        self._given: dict[int, tuple[Any, Any]] = {}  # by id: loaders given to `batches`, and as what they are wrapped
        self.advice = ResumeAdvice(self)
        self._names, self._epoch_loaders = LoaderNames(), EpochLoaders(self.advice.warn)
        self._adaptive_epochs: set[int] = set()  # in which adaptive loaders were made
        self._passes_begun = False  # whether a wrapped training loader has been used
        self._epoch_streams: Any = None  # the random streams at the beginning of the epoch that runs
        self._found_epoch_streams: Any = None  # ... of the one that is resumed
        self._usual: Callable[[], Any] = _nothing  # the optimizer each of whose steps ends an iteration
        self._reports_next, self._report_s = False, 0.0  # the next step is reported; when the one after it is
        self._counters = {"steps": LoopCounters(), "epochs": LoopCounters()}  # of the script, around the job's loops
        self._save_asked: bool | None = None  # by `checkpoint` in a loop step: whether to wait for the write
        self.total_epochs = 0  # announced by the script, 0 unknown
        self.boundary: Boundary = Boundary(
            page, self.checkpointer, around, boundary_missing=self._boundary_missing, leaves=lambda: self.shared.leaves
        )
        self._idle_s = self._evaluation_s = 0.0
        self.evaluated_s = 0.0  # all evaluations together
        self._gate_thread: Any = None
        self._group: Any = None
        page.pid, page.state, page.saves = os.getpid(), JobState.STARTING, Saves.NO_BOUNDARY
        tell_where_on_quit()
        self._failed = False
        self.recorder: Any = None  # of a rehearsed run
        if VARIABLE in os.environ:
            from plait.training.rehearsal import recorder_of

            self.recorder = recorder_of(self)
        self.process.end_with(self._end, self._note_failure)

    @property
    def rng(self) -> Any:
        return self.kept.generator(self._seed)

    # -- what scripts call; documented in Job ---------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        return True

    @property
    def process_group(self) -> Any:
        if self._group is None:
            self._group = self.process.process_group()
        return self._group if self._group is not None else super().process_group

    def stage(self, resource: Resource, *, sync: bool = False) -> AbstractContextManager[None]:
        if resource is Resource.GPU:
            self.compute.leave_to_script()
        return self.stages.stage(Resource(resource), sync=sync)

    def wrap_loader(self, loader: Any, *, train: bool = True) -> Any:
        from plait.training.loader.loader import wrap

        if hasattr(loader, "join_job"):  # an adaptive loader marks its stages and saves its position itself
            if self.iterations.inside("epochs") and self.kept.name_of(loader) is None:
                self._adaptive_epochs.add(self._epoch)
                if len(self._adaptive_epochs) > 1:
                    self.advice.warn_new_loader()
            loader.join_job(self)
            return loader
        wrapped = wrap(self, loader, train=train)
        if train and wrapped is not loader:
            if self.iterations.inside("epochs"):
                wrapped.made_in_epoch(self._epoch_loaders)
                if self.kept.name_of(self._epoch_loaders) is None:
                    self.kept.add(self.kept.free_name("epoch_loaders"), self._epoch_loaders)
            else:
                self.kept.add(self._names.name(self.kept.values, self.kept.free_name), wrapped)
        return wrapped

    def batches(self, loader: Any) -> Iterator[tuple[int, Any]]:
        wrapped = self._wrapped(loader)
        if not hasattr(wrapped, "done"):  # an adaptive loader, or one of an adapter
            yield from enumerate(wrapped)
            return
        for batch in wrapped:
            yield wrapped.done - 1, batch

    def _wrapped(self, loader: Any) -> Any:
        """`loader` as it was wrapped for `batches`, each one once; forgotten when the script drops it."""
        number = id(loader)
        if number not in self._given:
            wrapped = self.wrap_loader(loader)
            if wrapped is loader:
                return loader
            drop = partial(_forget, self._given, number)
            kept = loader if wrapped.keeps_inner else weakref.ref(loader, drop)
            self._given[number] = kept, wrapped
        return self._given[number][1]

    def wrap_optimizer(self, optimizer: Any) -> Any:
        if self.kept.name_of(optimizer) is None:
            self.kept.give(self.kept.free_name("optimizer"), optimizer)
        self.compute.know(optimizer)
        return optimizer

    def wrap_ddp(self, model: Any, *, inner: Any = None) -> Any:
        from plait.training.collectives.network import alike, module_of, register

        layout = register(self, model, inner).layout
        module = module_of(model)
        name = self.kept.name_of(model, module)
        if name is None:
            name = self.kept.free_name("model")
            self.kept.give(name, module)
        self.kept.values[name] = module
        buckets = self.kept.free_name("buckets")
        self.kept.replicated |= {name, buckets} if alike(model) else {buckets}
        self.kept.add(buckets, layout)
        return model

    def register_state(self, **stateful: Any) -> None:
        for name, value in stateful.items():
            self.kept.give(name, value)
            if hasattr(value, "param_groups"):
                self.compute.know(value)

    def resume(self) -> int:
        if self._resumed:
            return self.step
        self._resumed = True
        self.boundary.stop.listen()  # a signal now waits for the next boundary, or for the end if nothing is left
        found = self.checkpointer.load()
        if found is not None:
            commit, state = found
            self.step = commit.step
            self._epoch = state["plait"]["epoch"]
            self._found_epoch_streams = state["plait"].get("epoch_streams")
            for loop, numbers in state["plait"].get("counted", {}).items():
                self._counters[loop].restore(numbers)
            self.iterations.loop_step = saved_loop_step(state["plait"], self.step)
            self.page.steps = self.page.checkpoint_steps = self.step
            with contextlib.suppress(OSError):
                self.page.checkpoint_time = commit.path.stat().st_mtime
            self.kept.found(state)
        if self.recorder is not None:
            self.recorder.resumed(None if found is None else found[1]["plait"].get("rehearsal"))
        self.page.state = JobState.RUNNING
        self.boundary.saved()
        return self.step

    def steps(self, total: int) -> Iterator[int]:
        return self._counters["steps"].around(self._steps(whole_number(total, "steps")))

    def _steps(self, total: int) -> Generator[int, None, None]:
        self.resume()
        self.page.total_iterations = total
        with self.iterations.in_loop("steps"):
            first = self.iterations.loop_step
            self.iterations.begin_loop_step(first)
            for loop_step in range(first, total):
                if loop_step == first:
                    self._count_on("steps")
                    self.advice.look_at_loop(sys._getframe(1))
                if self.recorder is not None:
                    self.recorder.begins()
                yield loop_step
                if not self.iterations.loop_step_counted:
                    self._loop_step_ended(stepped=self.iterations.stepped)
                # Not the count of optimizer steps: a scaler may skip one, and one may take several steps of the loop.
                self.iterations.begin_loop_step(loop_step + 1)
                self.safe_point("steps")

    def epochs(self, total: int) -> Iterator[int]:
        return self._counters["epochs"].around(self._epochs(whole_number(total, "epochs")))

    def _epochs(self, total: int) -> Generator[int, None, None]:
        self.resume()
        self.total_epochs = total
        with self.iterations.in_loop("epochs"):
            for epoch in range(self._epoch, total):
                self._epoch, before = epoch, self.iterations.counted
                # Before the body of an epoch: where it is resumed, it draws the same random numbers as before
                if self._found_epoch_streams is not None:
                    self.kept.put_streams(self._found_epoch_streams)
                self._epoch_streams, self._found_epoch_streams = self.kept.streams(), None
                self._epoch_loaders.begin_epoch(self._epoch)
                for number, (_, wrapped) in list(self._given.items()):
                    if wrapped.keeps_inner and wrapped.made_anew:
                        del self._given[number]
                self._count_on("epochs")
                yield epoch
                self._epoch, self._epoch_streams = epoch + 1, None
                if self.iterations.counted == before:
                    self.page.total_iterations = total
                    self._loop_step_ended(stepped=self.iterations.stepped)
                if epoch + 1 == total or not self._epoch_loaders.used:  # else after the first batch of the next one
                    self.safe_point("epochs")

    def _count_on(self, loop: str) -> None:
        """Before the first number of `loop`: let the script's own count of its steps go on."""
        if way := self._counters[loop].begin():
            self.advice.warn_loop_count(loop, way)

    def yield_point(self) -> None:
        if self.shared.guest:
            self.shared.script_yields()
        else:
            self.stages.yield_point()

    @property
    def micro_batches(self) -> int:
        return self.page.directive.micro_batches

    def step_boundary(self, *, work: float = 0.0, phase: str = "") -> None:
        self.shared.reports.work, self.shared.reports.phase = work, phase
        if not self.iterations.manual:
            self.iterations.manual = True
            self.iterations.pending = False
            if self.iterations.counted:  # the optimizer's hook has counted this one already
                self._act()
                return
        self.count()
        self._act()

    def checkpoint(self, *, block: bool = False) -> CheckpointHandle | None:
        if self.kept.missing:
            self.advice.warn_unregistered()
            return None
        between_passes = self._passes_begun and self.iterations.innermost == "epochs"
        if self.iterations.saves_at_loop_end or between_passes:
            self._save_asked = block or bool(self._save_asked)  # a loop step is complete only at its end
            self.compute.measure()
            self.iterations.pending |= between_passes
            return None
        return self._save(block=block)

    def _save(self, *, block: bool = False) -> CheckpointHandle:
        before = self.page.state
        self.page.state = JobState.CHECKPOINTING
        self.shared.reports.left_out = True
        handle = self.checkpointer.save(self.step, self._collect)
        self.page.blocking_s += handle.blocking_s
        self._idle_s += handle.blocking_s
        self.boundary.saved()
        if block:
            handle.wait()
        self.page.state = before
        return handle

    # -- what loaders, hooks and adapters call --------------------------------------------------------------------

    @property
    def gate_thread(self) -> Any:
        """The thread that enters and leaves the gate of the network."""
        if self._gate_thread is None:
            from plait.training.collectives.network import GateThread

            self._gate_thread = GateThread()
        return self._gate_thread

    def optimizer_stepped(self, optimizer: Any) -> None:
        """After `step()` of any optimizer of the process; `GpuStage.stepped` determines which one counts."""
        compute, iterations = self.compute, self.iterations
        if compute.glances and optimizer is self._usual() and iterations.loops:
            compute.stepped_lately.add(optimizer)
            iterations.pending = True
            self._count_only(time.monotonic())
            return
        if self.hooks is not None:
            self.hooks.stepped()
        if self._leaving:
            return
        if self.recorder is not None:
            self.recorder.optimizer_stepped(optimizer)
        self.iterations.optimizer_stepped()
        if not self.compute.stepped(optimizer, hands_over=not self.iterations.in_steps):
            return
        self.shared.trains(optimizer)
        if self.iterations.manual:
            return
        self.count()
        if not self.compute.only_counted:
            self._usual = weakref.ref(optimizer) if self.compute.usual(optimizer) else _nothing
        if self.iterations.looping:
            self.iterations.pending = True
        else:
            self._act()

    @contextlib.contextmanager
    def in_evaluation(self) -> Iterator[None]:
        """Context in which a loader for evaluation runs."""
        begin_s = time.monotonic()
        try:
            yield
        finally:
            self._evaluation_s = time.monotonic() - begin_s
            self.shared.reports.left_out = True
            self.evaluated_s += self._evaluation_s

    def look_up(self, *, evaluating: bool) -> None:
        """Between two batches, where nothing can be saved: end the job if there is no time left.

        If a stop arrives during an evaluation (`evaluating`), the evaluation finishes and the next boundary saves. If
        it takes longer than half of the grace period, the job ends with its newest checkpoint. Ranks of a gang stay
        together.
        """
        if self.page.in_stage and not self.shared.guest:  # see `Stages` for guests
            self.page.stage_since = time.monotonic()  # the job makes progress
        wants_stop = self.boundary.wants_stop
        if wants_stop and self.around.world_size == 1:
            overdue = evaluating and self.boundary.asked_for_s > self.around.grace_s / 2
            if wants_stop == STOP_NOW or overdue:
                self.leave()

    @property
    def epoch(self) -> int:
        """Number of the epoch of `epochs`, from 0; between two, of the next one."""
        return self._epoch

    def leave(self) -> NoReturn:
        """End the process as preempted, after running writes have ended."""
        self._leaving = True
        self.compute.measure()
        self.boundary.stop.ignore()
        self.profiler.close()
        self.stages.close_all()
        self.stages.gate.close()
        self.checkpointer.drain()
        self.page.state = JobState.PREEMPTED
        self.process.leave(PREEMPTED)

    def end(self, *, failed: bool) -> None:
        """End the job of a script that ends before its process; `failed`: by an exception."""
        self._failed = failed
        try:
            self.stages.close_all()
        finally:  # even if the GPU is lost, the gate must be left
            self._end()

    def _note_failure(self, error: type[BaseException]) -> None:
        """Note that the script ends by an uncaught exception."""
        self._failed = True
        self.shared.limit.failed(error)

    def _end(self) -> None:
        """At the end of the interpreter: leave the gate, and finish running writes."""
        if os.getpid() != self._pid:
            return
        self.advice.end()
        if self.recorder is not None:
            self.recorder.end("stopped" if self._leaving else "failed" if self._failed else "finished")
        self.profiler.close()
        self.stages.settle()
        self.stages.gate.close()
        self.checkpointer.drain()
        complete = self._complete
        self.boundary.stop.ignore()  # it ends by itself, so its work counts
        if not self._leaving:
            ended = JobState.FINISHED if complete else JobState.PREEMPTED
            self.page.state = JobState.FAILED if self._failed else ended

    @property
    def _complete(self) -> bool:
        """False if the script may end only because it was stopped: it handles SIGTERM itself, and steps are missing."""
        stopped = self.boundary.wants_stop and self.boundary.stop.script_decides
        return not stopped or 0 < self.page.total_iterations <= self.page.steps

    def _collect(self) -> dict[str, Any]:
        about: dict[str, Any] = {"epoch": self._epoch, "step": self.step, "world": self.around.world_size}
        about["loop_step"] = self.iterations.loop_steps_done
        about["epoch_streams"] = self._epoch_streams
        done = self.iterations.loop_steps_done - self.iterations.loop_step
        about["counted"] = {
            "steps": [number + done for number in self._counters["steps"].numbers()],
            "epochs": self._counters["epochs"].numbers(),
        }
        if self.recorder is not None:
            about["rehearsal"] = self.recorder.saved()
        return self.kept.collect(self.around.rank, about, self.compute.stepped_lately)

    def _committed(self, commit: Commit) -> None:
        self.page.checkpoint_steps, self.page.checkpoint_time = commit.step, time.time()

    # -- boundaries -----------------------------------------------------------------------------------------------

    def safe_point(self, loop: str, *, last: bool = False) -> None:
        """Act on the last iteration between two steps of `loop`; loops inside `steps` leave that to it.

        `last`: the last step of a pass, after which an evaluation may follow; a long one needs a checkpoint first, and
        so does a job whose last one failed: perhaps only the ends of its passes can be restored.
        """
        if self.iterations.take_pending(loop):
            self._act(save=last and (self._evaluation_s > LONG_EVALUATION_S or self.checkpointer.failed))

    def batch_begins(self, passes: Any, length: int | None, batch: Any) -> None:
        """Note that `batch` is handed out, the `passes.done`th of `length` in its pass."""
        self._passes_begun = True
        if self.recorder is not None:
            self.recorder.batch(passes, passes.done, length, batch)
            self.recorder.begins()

    def batch_ended(self) -> None:
        """Note the end of a training batch, which is an iteration if nothing else counts them."""
        if not self.iterations.in_steps:
            self._loop_step_ended()

    def _loop_step_ended(self, *, stepped: bool = False) -> None:
        """Note the end of a loop step in which no iteration ended; `stepped`: an optimizer that does not count has."""
        if self.iterations.end_loop_step() or (stepped and not self.iterations.manual):
            self.count()
            self.iterations.pending = True

    @property
    def saves(self) -> Saves:
        """Whether the job would resume from its newest checkpoint."""
        if not self.iterations.counted:
            return Saves.NO_BOUNDARY
        if self._foreign:
            return Saves.YES
        if self.kept.missing:
            return Saves.NOTHING
        if not self._resumed:
            return Saves.NOT_RESUMED
        return Saves.FAILED if self.checkpointer.failed else Saves.YES

    def not_restorable(self) -> None:
        """Report that the next checkpoint cannot be restored, as if it had failed already."""
        self.checkpointer.failed = True

    def _boundary_missing(self) -> bool:
        """True if no boundary can be expected, so that a stop must not wait for one."""
        return self.advice.boundary_missing and not self.iterations.counted and not self.iterations.had_loop

    def count(self) -> None:
        """Count an iteration, and update the page and the profiler, unless it is only counted (`GpuStage.glance`)."""
        now_s, page, compute = time.monotonic(), self.page, self.compute
        if compute.glances:
            self._count_only(now_s)
            return
        self.step += 1
        self.iterations.count()
        page.last_step_monotonic, page.steps = now_s, self.step
        self.stages.publish()
        # An optimizer steps inside a stage, whose time so far belongs to this iteration and the rest to the next one.
        busy_s = self.stages.busy_so_far()
        if self.step == 1 or page.state == JobState.STARTING:
            page.state = JobState.RUNNING
        if self.iterations.counted == 1:
            page.first_step_monotonic = now_s
            if self.around.rank == 0 and self.around.job_dir is not None:
                record_start(self.around.job_dir)
        waited_s = self.shared.waited_since_last()
        idle_s, self._idle_s = self._idle_s + waited_s, 0.0
        may_glance, version = self._may_glance, self.control.sharing_version
        self._report(now_s, busy_s, idle_s, may_glance)
        profiler, count = self.profiler, compute.only_counted + 1
        alone, free = self.control.alone, self.stages.gate.kind == "none" and self.shared.neighbours is None
        if profiler.step(now_s, busy_s, alone=alone, free=free, idle_s=idle_s, count=count) and profiler.result:
            page.set_profile(*profiler.result)
            page.profile_source = profiler.source
            if self.hooks is not None and (messages := self.hooks.messages) is not None and messages.counts:
                page.message_bytes = messages.bytes
                with contextlib.suppress(OSError):  # a full disk
                    messages.write(self.page.path.parent)
        page.step_s, page.saves = profiler.step_s, self.saves
        if self.recorder is not None:
            self.recorder.iteration_ended()
        short = profiler.step_s < GLANCE_S
        compute.glance(now_s, may_glance=may_glance, now=short and not self._reports_next, version=version)

    def _count_only(self, now_s: float) -> None:
        """Count an iteration; the next one is measured if it is time, or on a request."""
        compute, iterations, floats, ints = self.compute, self.iterations, self.stages.floats, self.stages.ints
        self.step = step = self.step + 1
        floats[_LAST_STEP], floats[_STEPS] = now_s, step
        iterations.counted += 1
        iterations.loop_step_counted, iterations.stepped = True, False
        compute.only_counted += 1
        if compute.glancing:
            compute.glancing = False
            ints[IN_STAGE] = 0
        if now_s >= compute.glance_until or ints[STOP] or ints[CONTROL] != compute.version:
            compute.measure()

    def _report(self, now_s: float, busy_s: list[float], waited_s: float, may_glance: bool) -> None:
        """Report a step where that is due; where steps may be only counted, the second of two whole ones."""
        if not may_glance:
            self._reports_next = False
        elif not self._reports_next and now_s < self._report_s:
            return
        else:
            self._report_s = now_s + ALONE_EVERY_S
            self._reports_next = not self._reports_next
        self.shared.step_ended(self.step, now_s, busy_s, waited_s=waited_s)

    @property
    def _may_glance(self) -> bool:
        """True if nothing depends on every single step: profiled, and alone in its process and on its GPUs."""
        return (
            self.profiler.result is not None
            and self.stages.samples
            and self.control.alone
            and self.shared.neighbours is None
            and self.around.world_size == 1
            and self.process.limits_memory
            and self.recorder is None
        )

    def _act(self, *, save: bool = False) -> None:
        """Between two iterations: save, stop, pause or slow down on request. `save`: make a checkpoint anyway."""
        compute = self.compute
        due = save or self._save_asked is not None or compute.requested or self.boundary.wants_stop
        if compute.only_counted and not due:
            compute.stepped_lately.clear()
            return
        stop, save = self.boundary.decide(save=save)
        if stop == STOP_NOW:
            self.leave()
        asked, self._save_asked = self._save_asked, None
        if (stop or save or asked is not None) and not self.kept.missing:
            self.advice.warn_stale()
            self._save(block=bool(asked))
        if stop:
            self.leave()
        self.compute.stepped_lately.clear()
        self.advice.check()
        self.settle()
        if self.around.world_size == 1 and self.boundary.wants_stop and not stop:
            self._act()  # a stop arrived during a pause: act on it now

    # -- for adapters, whose trainers count, save and end in their own way ------------------------------------------

    def take_over(self, step: int, total: float) -> None:
        """Let a trainer count the iterations: it is at `step` of `total` (0 unknown)."""
        self.iterations.manual = self._resumed = self._foreign = True
        self.step = step
        self.page.steps, self.page.total_iterations = step, total
        self.page.state = JobState.RUNNING
        self.boundary.saved()

    def settle(self) -> None:
        """Pause, or use less of the GPU, if the agent requests it."""
        self._idle_s += self.shared.boundary()

    def saved(self, commit: Commit | None, blocking_s: float) -> None:
        """Note a checkpoint of the trainer, for which training stood still for `blocking_s` seconds."""
        self.boundary.saved()
        self._idle_s += blocking_s
        self.page.blocking_s += blocking_s
        if commit is not None:
            self._committed(commit)


def _forked() -> None:
    """In a forked child: leave the job to its process."""
    if (job := here().job) is not None:
        job.compute.measure()


os.register_at_fork(after_in_child=_forked)


def _forget(given: dict[int, Any], number: int, _: Any) -> None:
    given.pop(number, None)


def _nothing() -> None:
    """In place of a weak reference."""
