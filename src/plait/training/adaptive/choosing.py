"""Choose the batch of a job on its GPUs, from its own times and gradient noise; fits run beside training.

Only rank 0 fits and decides. A running job changes its batch if the predicted goodput is at least five per cent higher.
Pollux's published code decides at the start of each pass over the data; plait decides at every interval.
"""

from __future__ import annotations

import atexit
import threading
import time
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from plait.core.errors import InputError, PlaitError
from plait.core.goodput import THETA, BatchLimits

if TYPE_CHECKING:
    from plait.goodput.fit import Measurements
    from plait.goodput.jobs import GoodputJobs

#: Least ratio of predicted to current goodput for which the batch changes.
HYSTERESIS = 1.05

Theta = tuple[float, ...]


class Noise(Protocol):
    """Estimated gradient noise; `noise.Statistics` implements it."""

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
        """True while a fit runs."""
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
) -> tuple[int, int]:
    """The best (examples per pass, accumulated passes) on `gpus` GPUs of `nodes` nodes.

    `limits` bound the batch, `theta` is the fit of the step times, `noise` the gradient noise; `current` is the batch
    of a job that runs on these GPUs already. Without `theta` or `noise` the current batch stays, or the initial one.
    """
    fallback = current if current is not None else first_batch(limits, gpus)
    if theta is None or noise is None or not noise.known:
        return fallback
    from plait.goodput.batch import best_batch, goodput

    jobs = _job(limits, theta, noise)
    best = best_batch(jobs, [nodes], [gpus])
    found = int(best.local[0, 0]), int(best.passes[0, 0])
    if found[0] < 1:
        return fallback
    if current is None:
        return found
    now = float(goodput(jobs, nodes, gpus, *current)[0])
    return found if float(best.goodput[0, 0]) > HYSTERESIS * now else current


def _job(limits: BatchLimits, theta: Theta, noise: Noise) -> GoodputJobs:
    import numpy as np

    from plait.goodput.jobs import GoodputJobs

    column = [limits.initial], [limits.most], [limits.least_local], [limits.most_local], [limits.accumulation]
    whole: list[Any] = [np.array(values) for values in column]
    return GoodputJobs(np.array([theta]).reshape(1, THETA), np.array([noise.sqr]), np.array([noise.var]), *whole)


class BatchSchedule:
    """After how many steps all ranks meet to change the batch.

    Rank 0 announces the number of steps until the next meeting at each one, by its own clock; no step needs a message.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Meet about every `interval_s` seconds."""
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
