"""Changes that would start a waiting job now: the policy decides about the same cluster with one thing changed.

The change is another size of the job, or the absence of one that holds GPUs: nothing of it is decided or recorded. A
decision about a thousand jobs takes a policy up to a third of a second, and there may be a dozen of them: they use a
copy of the active jobs, and may run in another thread (`plait.live.service.what_if`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

import numpy as np

from plait.control.controller import Controller
from plait.control.snapshot import of_active
from plait.core.arrays import IntArray
from plait.live.api.explain import WouldStart
from plait.live.layout import job_name
from plait.live.scheduler.state import State

#: Maximum number of changes that the policy tries.
QUESTIONS = 8


@dataclass(frozen=True)
class Copy:
    """The active jobs as they were after a decision: `numbers` are the jobs' own, the controller has others."""

    decision: int
    controller: Controller
    numbers: IntArray

    @classmethod
    def of(cls, state: State) -> Copy | None:
        """Made in the engine's thread; None before any node has joined."""
        if state.controller is None:
            return None
        small, numbers = of_active(state.controller)
        small.policy = state.policy_again()  # what a policy remembers is not shared between threads
        return cls(state.decision_seq, small, numbers)

    def index(self, number: int) -> int | None:
        """The number of a job in the copy; None for a job that came later."""
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None


def would_start(
    copy: Copy, number: int, blockers: list[int], now_s: float, in_time: Callable[[], bool]
) -> list[WouldStart]:
    """Changes after which the policy would start a job at once; `blockers` hold GPUs, most likely to yield first.

    The policy is not called again after `in_time` returns False.
    """
    out: list[WouldStart] = []
    job = copy.index(number)
    if job is None:
        return out
    asked = 0
    size = int(copy.controller.job_store.columns["gpus"][job])
    while size > 1 and asked < QUESTIONS // 2 and in_time():
        size, asked = size // 2, asked + 1
        if _starts(copy.controller, job, now_s, gpus=size):
            text = f"with {size} GPU{'s' * (size > 1)} it would start now"
            out.append(WouldStart("gpus", text, gpus=size))
            break
    gone: list[int] = []
    for other in [at for b in blockers if (at := copy.index(b)) is not None]:
        if asked == QUESTIONS or not in_time():
            break
        gone.append(other)
        asked += 1
        if _starts(copy.controller, job, now_s, without=gone):
            alone = len(gone) > 1 and _starts(copy.controller, job, now_s, without=[other])
            names = [job_name(int(copy.numbers[n])) for n in ([other] if alone else gone)]
            text = f"if {', '.join(names)} ended, it would start now"
            out.append(WouldStart("ended", text, jobs=names))
            break
    return out


def _starts(
    controller: Controller, job: int, now_s: float, *, gpus: int | None = None, without: Collection[int] = ()
) -> bool:
    """Whether the policy would run the job now if it were of this size, or these jobs had ended."""
    view = controller.view(now_s)
    sized = {}
    if gpus is not None:
        sized = {name: controller.job_store.columns[name].copy() for name in ("gpus", "min_gpus", "max_gpus")}
        for column in sized.values():
            column[job] = gpus
    left = view.jobs.number[~np.isin(view.jobs.number, list(without))]
    try:
        plan = controller.planned(replace(view, jobs=view.jobs.subset(left, **sized)))
    except Exception:
        return False  # a policy that fails here fails in its decisions too, and the status shows it
    return bool(np.isin(job, plan.groups.jobs))


@dataclass(frozen=True)
class Question:
    """The question which changes would start this job."""

    copy: Copy
    number: int
    blockers: list[int]
    now_s: float

    def answer(self, in_time: Callable[[], bool]) -> list[WouldStart]:
        """Call the policy, while `in_time`."""
        return would_start(self.copy, self.number, self.blockers, self.now_s, in_time)
