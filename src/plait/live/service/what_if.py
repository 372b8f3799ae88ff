"""Answers what would start a waiting job, in a thread of its own, each question once per decision."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from plait.live.scheduler.engine import Engine
from plait.live.scheduler.explain.what_if import Copy, Question

#: Seconds after which the policy is asked no more.
BUDGET_S = 2.0
#: Jobs that may be asked about at a time; others have to ask again.
MOST_WAITING = 16


def _answer(question: Question) -> list[dict[str, Any]]:
    until = time.monotonic() + BUDGET_S
    return question.answer(lambda: time.monotonic() < until)


class WhatIfService:
    """Answers one question at a time, each once per decision."""

    def __init__(self) -> None:
        """Nothing was asked."""
        self._copy: Copy | None = None
        self._answers: dict[tuple[int, int], Future[list[dict[str, Any]]]] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="what-if")

    def explain(self, engine: Engine, number: int, now_s: float) -> tuple[dict[str, Any], Question | None]:
        """In the engine's thread: what is known of a job, and the question that is left; `LookupError` if it ended."""
        found = engine.explain(number, now_s)
        if "position" not in found:
            return found, None
        copy = self._copy
        if copy is None or copy.decision != engine.state.decision_seq or copy.index(number) is None:
            copy = self._copy = Copy.of(engine.state)
        assert copy is not None, "a job with a position in the queue, and no controller"
        return found, Question(copy, number, [b["number"] for b in found["blockers"]], now_s)

    def ask(self, question: Question) -> Future[list[dict[str, Any]]] | None:
        """The answer to come; None if too many are waiting for theirs."""
        decision = question.copy.decision
        with self._lock:
            self._answers = {k: a for k, a in self._answers.items() if k[0] == decision or not a.done()}
            answer = self._answers.get((decision, question.number))
            if answer is None and sum(not a.done() for a in self._answers.values()) < MOST_WAITING:
                answer = self._answers[decision, question.number] = self._pool.submit(_answer, question)
            return answer

    def close(self) -> None:
        """End the thread that answers; questions that wait get no answer."""
        self._pool.shutdown(wait=False, cancel_futures=True)
