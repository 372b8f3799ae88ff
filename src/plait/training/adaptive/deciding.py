"""When a job changes its batch, and how all ranks come to do so in the same step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plait.training.adaptive.choosing import Fitter, Noise, Rhythm, allowed, choose
from plait.training.adaptive.report import report_estimate

if TYPE_CHECKING:
    from plait.core.goodput import BatchLimits
    from plait.runtime.page import Page
    from plait.training.adaptive.data.plan import Plan
    from plait.training.adaptive.profile import Timings
    from plait.training.adaptive.ranks import Ranks


class Decisions:
    """Which batch the steps of `plan` have: rank 0 fits, chooses and tells the others."""

    def __init__(self, limits: BatchLimits, plan: Plan, timings: Timings, interval_s: float) -> None:
        """For a job within `limits`, looking every `interval_s` seconds at the `timings` it has by then."""
        self.fitter, self.rhythm = Fitter(), Rhythm(interval_s)
        self.noise: Noise | None = None
        self.page: Page | None = None  # where estimates are told
        self._limits, self._plan, self._timings = limits, plan, timings
        self._of: tuple[int, int] | None = None  # nodes and GPUs that the batch was chosen for
        self._fit_begun = False

    def worth(self, scale: float) -> float:
        """What a step of `scale` initial batches is worth; without gradient noise each example counts in full."""
        return scale if self.noise is None else self.noise.gain(scale)

    def prepare(self, ranks: Ranks) -> None:
        """Before a pass over the data, all ranks together: a batch for these ranks, if they are others than before.

        So, too, if that of a checkpoint is not within the bounds of now.

        Raises `InputError`, on all ranks alike, if they are too many.
        """
        self.fitter.wait()  # workers are forked now
        config = ranks.nodes, ranks.world_size
        if allowed(self._limits, ranks.world_size, *self._plan.latest) and self._of == config and self._plan.chosen:
            return
        self._agree(ranks, None)
        self._of = config

    def stepped(self, ranks: Ranks) -> None:
        """Between two optimizer steps of all ranks."""
        if ranks.rank == 0 and not self._fit_begun and self.rhythm.soon and self._timings.changed:
            table = self._timings.table()
            if table is not None:
                self._fit_begun, self._timings.changed = True, False
                self.fitter.start(table)
        if self.rhythm.stepped():
            self._agree(ranks, self._plan.latest)
        elif ranks.rank == 0 and self.page is not None and self.rhythm.late():
            self._report()  # when they come together no rank can change alone

    def _agree(self, ranks: Ranks, now: tuple[int, int] | None) -> None:
        """All take the batch that rank 0 chooses, from the first step on that none of them has planned."""
        told = [0, 0, 0]
        if ranks.rank == 0:
            choice = choose(self._limits, self.fitter.theta, self.noise, ranks.nodes, ranks.world_size, now)
            longer = 1.0 if now is None else choice[0] * (choice[1] + 1) / (now[0] * (now[1] + 1))
            told = [*choice, self.rhythm.next(max(longer, 1.0))]  # by its examples: no step is slower than that
        at, local, accumulated, steps = ranks.largest([self._plan.steps, *told])
        if (local, accumulated) != now:
            self._plan.change(local, accumulated, at)
        self.rhythm.begin(steps)
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
        """Go on with them, the batch as long as nodes and GPUs are as many."""
        self.fitter.theta = None if state["theta"] is None else tuple(state["theta"])
        self._of = None
        if state["chosen"] is not None:
            local, accumulated, nodes, gpus = (int(number) for number in state["chosen"])
            self._plan.change(local, accumulated, self._plan.steps)
            self._of = nodes, gpus
