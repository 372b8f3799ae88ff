"""Choose the batch of a job on its GPUs, from its own times and gradient noise, within its bounds.

Fits run beside training. Only rank 0 fits and decides; the others change their batch in the same step. A running job
changes its batch if the predicted goodput is at least five per cent higher. Pollux's published code decides at the
start of each pass over the data; plait decides at every interval. Start at `Decisions`.
"""

from __future__ import annotations

import atexit
import json
import math
import operator
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol

from plait.core.codec.values import Codec
from plait.core.errors import InputError, PlaitError
from plait.core.goodput import THETA, BatchLimits, BoundNames, Estimate, check_bounds

if TYPE_CHECKING:
    from plait.goodput.fit import Measurements
    from plait.runtime.page import Page
    from plait.training.adaptive.plan import Plan
    from plait.training.adaptive.profile import Timings
    from plait.training.adaptive.ranks import Ranks


#: Environment variable with the bounds of the submission: `BatchLimits` as JSON.
VARIABLE = "PLAIT_BATCH"
#: Names of the loader's arguments.
ARGUMENTS = BoundNames(
    "batch_size", "max_batch_size", "least of local_batch", "most of local_batch", "accumulation=True"
)


def bounds(
    batch_size: int | None,
    most: int | None = None,
    local: tuple[int, int | None] = (1, None),
    accumulation: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> BatchLimits:
    """The script's bounds if it gives `batch_size`, else all bounds of the submission, from `environ`.

    `most`: largest batch of a step; `local`: (least, most) examples of one rank in a pass; `accumulation`: whether
    several passes may make a step. Raises `InputError` for contradictory bounds, and if neither gives any.
    """
    if batch_size is not None:
        initial = _whole("batch_size", batch_size)
        most = initial if most is None else _whole("max_batch_size", most)
        least_local, most_local = _local(local)
        most_local = most if most_local is None else most_local
        check_bounds(initial, most, least_local, most_local, accumulation, ARGUMENTS)
        return BatchLimits(
            initial=initial, most=most, least_local=least_local, most_local=most_local, accumulation=accumulation
        )
    if most is not None or local != (1, None) or accumulation:
        raise InputError("an adaptive loader with bounds and without batch_size: give that too, or none of them")
    try:
        return Codec(closed=True).decode(BatchLimits, json.loads(environ[VARIABLE]))
    except KeyError:
        raise InputError(
            "an adaptive loader without a batch size: give AdaptiveDataLoader(dataset, batch_size), or submit the job "
            "with plait submit --batch-size"
        ) from None
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{VARIABLE} is {environ[VARIABLE]!r}, which is not a valid set of batch bounds: {error}"
        ) from None


def warn_alone(limits: BatchLimits) -> None:
    """Warn if `limits` let the batch grow but no `Adaptive` measures what that would bring."""
    if limits.most > limits.initial:
        warnings.warn(
            f"plait: this loader may grow its batch from {limits.initial} to {limits.most}, but no Adaptive measures "
            f"what that would bring, so it stays {limits.initial}; make Adaptive(job, model, optimizer, loader) before "
            "the loop, or leave max_batch_size out",
            RuntimeWarning,
            stacklevel=3,
        )


def interval(interval_s: Any) -> float:
    """Seconds between two checks for a better batch; `InputError` for anything but a finite number above 0."""
    real = isinstance(interval_s, Real) and not isinstance(interval_s, bool)
    if not (real and math.isfinite(interval_s) and interval_s > 0):
        raise InputError(
            f"interval_s is {interval_s!r}; give a finite number of seconds > 0, such as interval_s=30 "
            "(1e-3 looks after every step or so)"
        )
    return float(interval_s)


def _whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; give a whole number of examples, such as {name}=128") from None


def _local(local: Any) -> tuple[int, int | None]:
    """Least and most examples of one rank; `InputError` for anything but two numbers."""
    try:
        if isinstance(local, str):
            raise TypeError
        least, most = local
        return operator.index(least), None if most is None else operator.index(most)
    except (TypeError, ValueError):
        raise InputError(
            f"local_batch is {local!r}; give the least and the most examples of one rank as two whole numbers, such as "
            "local_batch=(16, 64), or (16, None) without a most"
        ) from None


#: Least ratio of predicted to current goodput for which the batch changes.
HYSTERESIS = 1.05

Theta = tuple[float, ...]


class Noise(Protocol):
    """Estimated gradient noise; `noise.Statistics` and `noise.CautiousNoise` implement it."""

    @property
    def known(self) -> bool:
        """True once there is an estimate."""
        ...

    @property
    def sqr(self) -> float:
        """Squared norm of the gradient."""
        ...

    @property
    def var(self) -> float:
        """Variance of the gradient at the initial batch."""
        ...

    def gain(self, scale: float) -> float:
        """Progress of a step of `scale` initial batches, in steps of one initial batch."""
        ...


class Fitter:
    """Fits the throughput model beside training, one fit at a time."""

    def __init__(self, fit: Callable[[Measurements, Theta | None], Theta] | None = None) -> None:
        """`fit` replaces `plait.goodput.fit`."""
        self._fit = fit or _fit
        self._thread: threading.Thread | None = None
        self._failed = self._at_exit = False
        self.theta: Theta | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, profile: Measurements) -> None:
        """Begin a fit of `profile`, unless one runs already or an earlier one failed."""
        if self.busy or self._failed:
            return
        # A daemon, so that only `wait` waits for it; at exit we wait, so that no compiled code outlives Python.
        self._thread = threading.Thread(target=self._run, args=(profile,), name="plait-fit", daemon=True)
        if not self._at_exit:
            self._at_exit = True
            atexit.register(self.wait)
        self._thread.start()

    def wait(self) -> None:
        """Wait for a running fit, so that no process is forked beside it."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, profile: Measurements) -> None:
        try:
            self.theta = self._fit(profile, self.theta)
        except (PlaitError, ImportError, ValueError, ArithmeticError) as error:
            self._failed = True
            warnings.warn(f"plait: the batch size no longer adapts: {error}", RuntimeWarning, stacklevel=2)


def _fit(profile: Measurements, start: Theta | None) -> Theta:
    import numpy as np

    from plait.goodput.fit import fit

    theta = fit(profile, start=None if start is None else np.array(start))
    return tuple(float(value) for value in theta)


def first_batch(limits: BatchLimits, gpus: int) -> tuple[int, int]:
    """(examples per pass, accumulated passes) of a job without measurements, on `gpus` GPUs.

    It is the initial batch, or the smallest batch that these GPUs can take. Raises `InputError` if `limits` forbid it.
    """
    from plait.goodput.batch import fixed_batch

    least = limits.least_local * gpus
    if least > limits.most:
        raise InputError(
            f"{gpus} GPUs take at least {gpus} x {limits.least_local} = {least} examples a step, more than "
            f"max_batch_size={limits.most}; allow at most {max(limits.most // limits.least_local, 1)} GPUs "
            "(plait submit --max-gpus), a smaller local_batch or a larger max_batch_size"
        )
    local, accumulated = fixed_batch(
        max(limits.initial, least),
        gpus,
        initial=limits.initial,
        most=2 * (limits.most + least),  # never less than the initial batch: rounding up is not too much
        most_local=limits.most_local,
        accumulates=limits.accumulation,
        least_local=limits.least_local,
    )
    return int(local), int(accumulated)


def allowed(limits: BatchLimits, gpus: int, local: int, accumulated: int) -> bool:
    """True if `limits` allow `local` examples per pass and `accumulated` passes on `gpus` GPUs.

    A batch from a checkpoint may exceed bounds that have changed since. Raises `InputError` if no batch is allowed.
    """
    if (local, accumulated) == first_batch(limits, gpus):
        return True
    passes = accumulated + 1
    rounded = gpus * (passes if local > 1 else 1)  # shares are rounded up, so a total may be a little more than `most`
    within = limits.least_local <= local <= limits.most_local and gpus * passes * local - rounded < limits.most
    return within and (accumulated == 0 or limits.accumulation)


def choose(
    limits: BatchLimits,
    theta: Theta | None,
    noise: Noise | None,
    nodes: int,
    gpus: int,
    current: tuple[int, int] | None = None,
    throughput: str = "pollux",
) -> tuple[int, int]:
    """The best (examples per pass, accumulated passes) on `gpus` GPUs of `nodes` nodes.

    `limits` bound the batch, `theta` is the fit of the step times, `noise` the gradient noise; `current` is the batch
    of a job that runs on these GPUs already, `throughput` the name of the model. Without `theta` or `noise` the current
    batch stays, or the initial one.
    """
    fallback = current if current is not None else first_batch(limits, gpus)
    if theta is None or noise is None or not noise.known:
        return fallback
    from plait.goodput.batch import best_batch, goodput
    from plait.goodput.jobs import GoodputJobs
    from plait.goodput.models import throughput_model

    # Of a plan only the stage counts here: the bounds are what its memory leaves.
    jobs, speed = GoodputJobs.one(limits, theta, noise.sqr, noise.var), throughput_model(throughput)
    best = best_batch(jobs, [nodes], [gpus], speed=speed)
    found = int(best.local[0, 0]), int(best.passes[0, 0])
    if found[0] < 1:
        return fallback
    if current is None:
        return found
    now = float(goodput(jobs, nodes, gpus, *current, stage=max(limits.zero_stage, 0), speed=speed)[0])
    return found if float(best.goodput[0, 0]) > HYSTERESIS * now else current


class BatchSchedule:
    """After how many steps all ranks meet to change the batch.

    Rank 0 announces the number of steps until the next meeting at each one, by its own clock; no step needs a message.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.interval_s, self._clock = interval_s, clock
        self._since_s = self._late_s = clock()
        self._steps = 0
        self.left = 1  # steps until the next meeting

    def stepped(self) -> bool:
        """Count a step; returns whether all ranks meet now."""
        self.left -= 1
        self._steps += 1
        return self.left <= 0

    @property
    def soon(self) -> bool:
        """True if it is time to start the fit for the next meeting."""
        return self._clock() - self._since_s >= 0.9 * self.interval_s

    def late(self) -> bool:
        """True once per interval without a meeting, which happens if steps became slower."""
        if self._clock() - self._late_s < self.interval_s:
            return False
        self._late_s = self._clock()
        return True

    def next(self, longer: float = 1.0) -> int:
        """On rank 0, the number of steps until the next meeting if each takes `longer` times as long as so far."""
        took_s = self._clock() - self._since_s
        if self._steps == 0 or took_s <= 0:
            return 1
        steps = round(self.interval_s * self._steps / (took_s * longer))
        return max(1, min(steps, 10 * self._steps))  # the very first steps may be far slower than later ones

    def begin(self, steps: int) -> None:
        """Count `steps` steps, as announced by rank 0."""
        self.left, self._steps = steps, 0
        self._since_s = self._late_s = self._clock()


class Decisions:
    """Chooses the batch of the steps of `plan`: rank 0 fits, chooses and sends its choice to the other ranks."""

    def __init__(self, limits: BatchLimits, plan: Plan, timings: Timings, interval_s: float) -> None:
        """Choose a batch within `limits` every `interval_s` seconds, from the `timings` so far."""
        self.fitter, self.schedule = Fitter(), BatchSchedule(interval_s)
        self.noise: Noise | None = None
        self.page: Page | None = None  # to which estimates are reported
        self.throughput = "pollux"  # name of the model
        self.limits, self._plan, self._timings = limits, plan, timings
        self._of: tuple[int, int] | None = None  # nodes and GPUs for which the batch was chosen
        self._fit_begun = False

    def worth(self, scale: float) -> float:
        """Progress of a step of `scale` initial batches; without gradient noise each example counts in full."""
        return scale if self.noise is None else self.noise.gain(scale)

    def prepare(self, ranks: Ranks) -> None:
        """Before a pass over the data, on all ranks: choose a batch if the ranks or the bounds have changed.

        Raises `InputError` on all ranks if there are too many of them.
        """
        self.fitter.wait()  # loader workers are forked now
        config = ranks.nodes, ranks.world_size
        if allowed(self.limits, ranks.world_size, *self._plan.latest) and self._of == config and self._plan.chosen:
            return
        self._agree(ranks, None)
        self._of = config

    def stepped(self, ranks: Ranks) -> None:
        """Between two optimizer steps, on all ranks: start a fit, or choose a batch, if it is time."""
        if ranks.rank == 0 and not self._fit_begun and self.schedule.soon and self._timings.changed:
            table = self._timings.table()
            if table is not None:
                self._fit_begun, self._timings.changed = True, False
                self.fitter.start(table)
        if self.schedule.stepped():
            self._agree(ranks, self._plan.latest)
        elif ranks.rank == 0 and self.page is not None and self.schedule.late():
            self._report()  # the batch itself changes only when all ranks meet

    def _agree(self, ranks: Ranks, now: tuple[int, int] | None) -> None:
        """Let all ranks take the batch that rank 0 chooses, from the first step that no rank has planned yet."""
        sent = [0, 0, 0]
        if ranks.rank == 0:
            gpus = ranks.nodes, ranks.world_size
            choice = choose(self.limits, self.fitter.theta, self.noise, *gpus, now, self.throughput)
            longer = 1.0 if now is None else choice[0] * (choice[1] + 1) / (now[0] * (now[1] + 1))
            sent = [*choice, self.schedule.next(max(longer, 1.0))]  # an upper bound, by the number of examples
        at, local, accumulated, steps = ranks.largest([self._plan.steps, *sent])
        if (local, accumulated) != now:
            self._plan.change(local, accumulated, at)
        self.schedule.begin(steps)
        self._fit_begun = False
        if ranks.rank == 0:
            self._report()

    def _report(self) -> None:
        if self.page is not None:
            report_estimate(self.page, self.fitter.theta, self.noise, self._timings)

    def state_dict(self) -> dict[str, Any]:
        """The newest fit, and the batch with the nodes and GPUs it is for."""
        theta = self.fitter.theta
        return {
            "theta": None if theta is None else list(theta),
            "chosen": [*self._plan.latest, *self._of] if self._of is not None else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them; the batch is used while the numbers of nodes and GPUs stay the same."""
        self.fitter.theta = None if state["theta"] is None else tuple(state["theta"])
        self._of = None
        if state["chosen"] is not None:
            local, accumulated, nodes, gpus = (int(number) for number in state["chosen"])
            self._plan.change(local, accumulated, self._plan.steps)
            self._of = nodes, gpus


def report_progress(page: Page, done: float, total: float, batch_size: int) -> None:
    """After each optimizer step: iterations at the initial batch, done and in all (0 unknown), and examples a step."""
    page.progress, page.total_progress, page.batch_size = done, total, float(batch_size)


def report_estimate(page: Page, theta: Theta | None, noise: Noise | None, timings: Timings) -> None:
    """Of rank 0, after each interval: the newest fit, gradient noise, the most GPUs there are times of.

    NaN for what is not known; what a restart costs only the scheduler can measure.
    """
    numbers = [math.nan] * len(Estimate)
    if theta is not None:
        numbers[:THETA] = theta
    if noise is not None and noise.known:
        numbers[Estimate.SQR], numbers[Estimate.VAR] = noise.sqr, noise.var
    if timings.most_gpus:
        numbers[Estimate.PROFILED_GPUS] = float(timings.most_gpus)
    page.set_goodput(numbers)
