"""Answers what would start a waiting job and what a submission would get, in a thread of its own, once per decision."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from plait.core.jobs import JobSpec
from plait.live.api.explain import ComparedQueues, Explanation, JobOutlook, SubmissionOutlook, WouldStart
from plait.live.api.jobs import FINAL
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.explain import submission
from plait.live.scheduler.explain.choices import Choice, compare
from plait.live.scheduler.explain.durations import OWN_PROGRESS, History, draw
from plait.live.scheduler.explain.outlook import Outlook, assumptions, foresee
from plait.live.scheduler.explain.queue_copy import QueueCopy, history_of
from plait.live.scheduler.explain.submission import Copy, Question
from plait.live.store import Store

T = TypeVar("T")

#: Seconds after which the policy is not called any more.
BUDGET_S = 2.0
#: Maximum waiting questions; further ones are refused and may be retried.
MOST_WAITING = 16
#: Forecasts that one user may wait for at a time: there is one thread, and thousands of one would keep out all others.
MOST_OF_ONE = 8
#: Ended jobs from which durations are drawn at most, the last ones, and for how long these are not read again, seconds.
PAST, READ_S = 3000, 10.0
#: Durations that are drawn of each job for clients that simulate the queue themselves.
STATE_DRAWS = 10
#: Seconds after which the queue is copied again although nothing was decided: forecasts count from the copy.
QUEUE_S = 10.0


class Busy(Exception):
    """A user waits for as many forecasts as one may."""


def _answer(question: Question) -> list[WouldStart]:
    until = time.monotonic() + BUDGET_S
    return question.answer(lambda: time.monotonic() < until)


class WhatIfService:
    """Answers one question at a time, each once per decision."""

    def __init__(self, store: Store) -> None:
        """`store` has the jobs that ended."""
        self._store = store
        self._queue: QueueCopy | None = None
        self._outlook: tuple[QueueCopy, Outlook, History] | None = None
        self._history: tuple[float, History] | None = None
        self._copy: Copy | None = None
        self._answers: dict[tuple[int, int], Future[list[WouldStart]]] = {}
        #: Users -> forecasts they wait for. Each entry exists only while a request waits.
        self._waiting: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="what-if")

    def explain(self, engine: Engine, number: int, now_s: float) -> tuple[Explanation, Question | None]:
        """In the engine's thread: what is known of a job, and the question that is left; `LookupError` if it ended."""
        found = engine.explain(number, now_s)
        if found.position is None:
            return found, None
        copy = self._copy
        if copy is None or copy.decision != engine.state.decision_seq or copy.index(number) is None:
            copy = self._copy = Copy.of(engine.state)
        assert copy is not None, "a job with a position in the queue, and no controller"
        return found, Question(copy, number, [one.number for one in found.blockers or ()], now_s)

    def ask(self, question: Question) -> Future[list[WouldStart]] | None:
        """The answer to come; None if too many are waiting for theirs."""
        decision = question.copy.decision
        with self._lock:
            self._answers = {k: a for k, a in self._answers.items() if k[0] == decision or not a.done()}
            answer = self._answers.get((decision, question.number))
            if answer is None and sum(not a.done() for a in self._answers.values()) < MOST_WAITING:
                answer = self._answers[decision, question.number] = self._pool.submit(_answer, question)
            return answer

    # -- forecasts ------------------------------------------------------------------------------------

    def queue(self, engine: Engine, now_s: float) -> QueueCopy | None:
        """In the engine's thread: the queue, in a copy not older than `QUEUE_S` s; None before any node has joined."""
        state, now_s = engine.state, engine.clock(now_s)
        numbers = None if state.controller is None else state.controller.active
        if self._queue is None or self._queue.decision != state.decision_seq or numbers is None or (
            len(numbers) != len(self._queue.controller.active) or now_s - self._queue.controller.now_s > QUEUE_S
        ):  # fmt: skip
            self._queue = QueueCopy.of(engine.context, now_s)
        return self._queue

    def later(self, work: Callable[[], T], user: str) -> Future[T]:
        """Run the work in the thread of this service, after earlier work.

        Raises `Busy` if `user` waits for `MOST_OF_ONE` others.
        """
        with self._lock:
            if self._waiting[user] >= MOST_OF_ONE:
                raise Busy(f"{user} waits for {MOST_OF_ONE} forecasts already; ask again when one of them is there")
            self._waiting[user] += 1
        try:
            future = self._pool.submit(work)
        except RuntimeError:  # it was closed
            self._over(user)
            raise
        future.add_done_callback(lambda done: self._over(user))
        return future

    def _over(self, user: str) -> None:
        with self._lock:
            self._waiting[user] -= 1
            if not self._waiting[user]:
                del self._waiting[user]

    def submission(self, copy: QueueCopy, spec: JobSpec, name: str, command: str) -> SubmissionOutlook:
        """In that thread: what a job would get; see `plait.live.scheduler.explain.submission.what_if`."""
        now, history = self.outlook(copy)
        return submission.what_if(copy, now, history, spec, name, command)

    def choice(self, copy: QueueCopy, choice: Choice) -> ComparedQueues:
        """In that thread: the queue under another choice; see `plait.live.scheduler.explain.choices.compare`."""
        return compare(copy, self.outlook(copy)[0], choice)

    def forecast(self, copy: QueueCopy, number: int) -> JobOutlook | None:
        """In that thread: start and end of a job; None for one that the queue did not have."""
        row = copy.row(number)
        if row is None:
            return None
        now, _ = self.outlook(copy)
        return now.of(row, copy.by, assumptions(now.queue, copy.policy, copy.by))

    def outlook(self, copy: QueueCopy) -> tuple[Outlook, History]:
        """In that thread: the queue played forward, once per decision, and the jobs that durations are drawn from."""
        if self._outlook is None or self._outlook[0] is not copy:
            history = self._past(copy)
            self._outlook = (
                copy,
                foresee(copy.arrays(), history, copy.controller.now_s, releases=copy.releases),
                history,
            )
        return self._outlook[1:]

    def durations(self, copy: QueueCopy) -> dict[str, Any]:
        """In that thread: for the answer of `/v1/state`, the remaining times of jobs without own progress.

        {left_s: number of the job -> `STATE_DRAWS` draws of seconds, left_from: number -> their source in words}
        by the same history of scripts, users and sizes as `outlook`, without the commands.
        """
        queue = copy.arrays()
        left_s, sources = draw(queue.unknown, self._past(copy), STATE_DRAWS)
        rows = [row for row, source in enumerate(sources) if source != OWN_PROGRESS]
        names = copy.numbers[queue.numbers[rows]].tolist()
        return {
            "left_s": {str(name): left_s[:, row].round(2).tolist() for name, row in zip(names, rows, strict=True)},
            "left_from": {str(name): sources[row] for name, row in zip(names, rows, strict=True)},
        }

    def _past(self, copy: QueueCopy) -> History:
        now_s = time.monotonic()
        if self._history is None or now_s - self._history[0] > READ_S:
            rows = self._store.jobs(states=FINAL, limit=PAST)
            self._history = now_s, history_of(reversed(rows), copy.stated())
        return self._history[1]

    def close(self) -> None:
        """End the thread that answers; questions that wait get no answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
