"""Change the batch of a job in the same step on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from plait.training.adaptive.choosing import BatchSchedule, Fitter, Noise, allowed, choose
from plait.training.adaptive.report import report_estimate

if TYPE_CHECKING:
    from plait.core.goodput import BatchLimits
    from plait.runtime.page import Page
    from plait.training.adaptive.data.plan import Plan
    from plait.training.adaptive.profile import Timings
    from plait.training.adaptive.ranks import Ranks


class Decisions:
    """Chooses the batch of the steps of `plan`: rank 0 fits, chooses and sends its choice to the other ranks."""

    def __init__(self, limits: BatchLimits, plan: Plan, timings: Timings, interval_s: float) -> None:
        """Choose a batch within `limits` every `interval_s` seconds, from the `timings` so far."""
        self.fitter, self.schedule = Fitter(), BatchSchedule(interval_s)
        self.noise: Noise | None = None
        self.page: Page | None = None  # to which estimates are reported
        self._limits, self._plan, self._timings = limits, plan, timings
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
        if allowed(self._limits, ranks.world_size, *self._plan.latest) and self._of == config and self._plan.chosen:
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
            choice = choose(self._limits, self.fitter.theta, self.noise, ranks.nodes, ranks.world_size, now)
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
