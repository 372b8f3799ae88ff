"""What would start a waiting job now: the policy is asked about the same cluster with one thing changed.

Another size of the job, or somebody gone who holds GPUs: nothing of that is decided or written down. A question over a
thousand jobs takes a policy up to a third of a second, and there may be a dozen of them: so they are asked of a copy of
the active jobs, in a thread of their own, one after the other, and answered once for each decision.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.control.controller import Controller
from plait.control.snapshot import of_active
from plait.core.arrays import IntArray
from plait.core.jobs import JobTable
from plait.core.policy import View
from plait.live.layout import job_name

if TYPE_CHECKING:
    from plait.live.scheduler.engine import Engine

#: Changes that the policy is asked about at most, and seconds after which no more are.
QUESTIONS, BUDGET_S = 8, 2.0
#: Jobs that may be asked about at a time; others are told to come again.
MOST_WAITING = 16


@dataclass(frozen=True)
class Copy:
    """The active jobs as they were after a decision: `numbers` are the jobs' own, the controller has others."""

    decision: int
    controller: Controller
    numbers: IntArray

    @classmethod
    def of(cls, engine: Engine) -> Copy | None:
        """Made in the engine's thread; None before any node has joined."""
        state = engine.state
        if state.controller is None:
            return None
        small, numbers = of_active(state.controller)
        small.policy = state.policy_again()  # what a policy remembers is not shared between threads
        return cls(state.decision_seq, small, numbers)

    def index(self, number: int) -> int | None:
        """The number that a job has in the copy; None for one that came later."""
        at = int(np.searchsorted(self.numbers, number))
        return at if at < len(self.numbers) and self.numbers[at] == number else None


def would_start(copy: Copy, number: int, blockers: list[int], now: float) -> list[dict[str, Any]]:
    """Changes after which the policy would start a job at once; `blockers` hold GPUs, most likely to yield first."""
    out: list[dict[str, Any]] = []
    job = copy.index(number)
    if job is None:
        return out
    asked, until = 0, time.monotonic() + BUDGET_S
    size = int(copy.controller.books.columns["gpus"][job])
    while size > 1 and asked < QUESTIONS // 2 and time.monotonic() < until:
        size, asked = size // 2, asked + 1
        if _starts(copy.controller, job, now, gpus=size):
            text = f"with {size} GPU{'s' * (size > 1)} it would start now"
            out.append({"change": "gpus", "gpus": size, "text": text})
            break
    gone: list[int] = []
    for other in [at for b in blockers if (at := copy.index(b)) is not None]:
        if asked == QUESTIONS or time.monotonic() >= until:
            break
        gone.append(other)
        asked += 1
        if _starts(copy.controller, job, now, without=gone):
            alone = len(gone) > 1 and _starts(copy.controller, job, now, without=[other])
            names = [job_name(int(copy.numbers[n])) for n in ([other] if alone else gone)]
            text = f"if {', '.join(names)} ended, it would start now"
            out.append({"change": "ended", "jobs": names, "text": text})
            break
    return out


def _starts(
    controller: Controller, job: int, now: float, *, gpus: int | None = None, without: Collection[int] = ()
) -> bool:
    """Whether the policy would run the job now if it were of this size, or these jobs had ended."""
    columns = dict(controller.books.columns)
    if gpus is not None:
        for name in ("gpus", "min_gpus", "max_gpus"):
            columns[name] = columns[name].copy()
            columns[name][job] = gpus
    active = controller.active[~np.isin(controller.active, list(without))]
    table = JobTable(columns, active, now, controller.competing, controller.books)
    try:
        plan = controller.policy.decide(View(now, controller.cluster, table, controller.running, controller.rule))
    except Exception:
        return False  # a policy that fails here fails in its decisions too, and the status says so
    return bool(np.isin(job, plan.groups.jobs))


@dataclass(frozen=True)
class Question:
    """What would start this job."""

    copy: Copy
    number: int
    blockers: list[int]
    now: float

    def answer(self) -> list[dict[str, Any]]:
        """Ask the policy."""
        return would_start(self.copy, self.number, self.blockers, self.now)


class Asker:
    """Asks one question after the other, each once a decision."""

    def __init__(self) -> None:
        """Nothing was asked."""
        self._copy: Copy | None = None
        self._answers: dict[tuple[int, int], Future[list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="asker")

    def explain(self, engine: Engine, number: int, now: float) -> tuple[dict[str, Any], Question | None]:
        """In the engine's thread: what is known of a job, and the question that is left; `LookupError` if it ended."""
        found = engine.explain(number, now)
        if "position" not in found:
            return found, None
        copy = self._copy
        if copy is None or copy.decision != engine.state.decision_seq or copy.index(number) is None:
            copy = self._copy = Copy.of(engine)
        assert copy is not None, "a job with a position in the queue, and no controller"
        return found, Question(copy, number, [b["number"] for b in found["blockers"]], now)

    def ask(self, question: Question) -> Future[list[dict[str, Any]]] | None:
        """The answer to come; None if too many are waiting for theirs."""
        decision = question.copy.decision
        with self._lock:
            self._answers = {k: a for k, a in self._answers.items() if k[0] == decision or not a.done()}
            answer = self._answers.get((decision, question.number))
            if answer is None and sum(not a.done() for a in self._answers.values()) < MOST_WAITING:
                answer = self._answers[decision, question.number] = self._pool.submit(question.answer)
            return answer

    def close(self) -> None:
        """Answer nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
