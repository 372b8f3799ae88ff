"""The one thread of the engine: requests queue up for it, and simultaneous ones share one commit."""

import asyncio
import contextlib
import logging
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from plait.live.scheduler.engine import Engine
from plait.live.store import NoRoom

T = TypeVar("T")

#: Requests that share one commit at most.
BATCH = 256
#: On a full disk, look for room this often, seconds.
ROOM_S = 0.5
_LOG = logging.getLogger("plait.service")


class Stopped(RuntimeError):
    """The service is going down, or leads no more: the request was not executed, and may be retried."""


@dataclass
class _Item:
    work: Callable[[Engine, float], Any]
    after: Callable[[Engine, Any], Any] | None
    future: Future[Any]
    reads: bool = False
    result: Any = None
    error: BaseException | None = field(default=None)


class Worker(threading.Thread):
    """Runs an engine. `published` is called after each commit with the versions of all nodes' assignments.

    When the engine breaks (the disk is full, the database gone), everything that waits gets the error, `failed` is
    called and the thread ends: the truth is in the store, and a new service starts from there. Nothing is done while
    `leads` returns False: another service may be at work.
    """

    def __init__(
        self,
        engine: Engine,
        clock: Callable[[], float],
        published: Callable[[dict[str, int]], object],
        failed: Callable[[BaseException], None],
        leads: Callable[[], bool] = lambda: True,
        again: Callable[[], Engine] | None = None,
    ) -> None:
        """Nothing runs before `start`. `again`: a new engine from the store, once a full disk has room."""
        super().__init__(name="engine", daemon=True)
        self.engine, self.clock = engine, clock
        self._published, self._failed, self._leads, self._again = published, failed, leads, again
        self._queue: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._stopped, self._ending = False, threading.Event()
        #: Why nothing can be written just now; "" if it can. Until then what is shown is that of `stored_s`.
        self.trouble = ""
        #: When what happened was last stored, a time of `clock`.
        self.stored_s = clock()
        #: Cycles of the loop so far; grows as long as the thread does not hang.
        self.cycles = 0
        #: Nothing is put into the queue any more; what is there gets an answer. Both under the lock.
        self._closed, self._lock = False, threading.Lock()
        #: Called in this thread after each commit, to count what happened.
        self.notice: Callable[[Engine], object] = lambda engine: None
        self._versions: dict[str, int] = {}
        self.decisions, self.decision_s, self.commits, self.commit_s = 0, 0.0, 0, 0.0

    def submit(
        self,
        work: Callable[[Engine, float], Any],
        after: Callable[[Engine, Any], Any] | None = None,
        *,
        reads: bool = False,
    ) -> Future[Any]:
        """Let the engine do something; the result is there once it is stored, passed through `after` if given.

        A request that only `reads` is answered on a full disk too, from the store.
        """
        item = _Item(work, after, Future(), reads)
        with self._lock:
            if not self._closed:
                self._queue.put(item)
                return item.future
        item.future.set_exception(Stopped("the service is going down"))
        return item.future

    async def call(self, work: Callable[[Engine, float], T], after: Callable[[Engine, Any], Any] | None = None) -> Any:
        """The result of `submit`, awaited; raises what `work` raised."""
        return await asyncio.wrap_future(self.submit(work, after))

    async def look(self, work: Callable[[Engine, float], T]) -> T:
        """Return the result of `work`, which only reads from the engine; also while the disk is full."""
        found: T = await asyncio.wrap_future(self.submit(work, reads=True))
        return found

    def stop(self) -> None:
        """Finish what is queued, then end; what is queued gets an error if another service may lead."""
        self._ending.set()
        self._queue.put(None)

    def doing(self) -> str:
        """Where in the code its thread is: what to look at if it hangs."""
        frame = sys._current_frames().get(self.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "its thread has ended"

    def run(self) -> None:
        """Until stopped or broken."""
        wake_s = self.clock()
        try:
            while not self._stopped:
                items = self._next(wake_s)
                if self._may_go_on():
                    try:
                        wake_s = self._round(items)
                    except NoRoom as error:
                        if self._again is None:
                            self._fail(items, error)
                            raise
                        # The disk is full: refuse changes and show the store, until there is room; then continue from
                        # the store. `items`: requests of the round that could not be stored.
                        assert self._again is not None
                        self.trouble = str(error)
                        _LOG.error("waits for room on the disk", extra={"facts": {"why": str(error)}})
                        self._fail([item for item in items if not item.reads], error)
                        self._log_problems()
                        self.engine = self.engine.stored(self.clock())
                        while not self._stopped:
                            self._look([item for item in items if item.reads])
                            items = self._next(self.clock() + ROOM_S)
                            self._fail([item for item in items if not item.reads], error)
                            self.cycles += 1
                            if not self._stopped and self.engine.store.has_room():
                                with contextlib.suppress(NoRoom):
                                    self.engine, self.trouble, self.stored_s = self._again(), "", self.clock()
                                    _LOG.warning("there is room on the disk again")
                                    break
                        self._look([item for item in items if item.reads])
                        wake_s = self.clock()
                else:
                    self._stopped = True
                    self._fail(items, Stopped("another service may lead by now"))
                self.cycles += 1
        except BaseException as error:
            self._stopped = True
            self._refuse(error)
            self._failed(error)
            return
        self._refuse(Stopped("the service is going down"))

    def _next(self, wake_s: float) -> list[_Item]:
        items: list[_Item] = []
        try:
            item = self._queue.get(timeout=max(0.0, min(wake_s - self.clock(), 5.0)))
            while True:
                if item is None:
                    self._stopped = True
                    break
                items.append(item)
                if len(items) == BATCH:
                    break
                item = self._queue.get_nowait()
        except queue.Empty:
            pass
        return items

    def _may_go_on(self) -> bool:
        """Wait while this service may not lead: the lease is renewed in a moment, or is known to be lost."""
        while not self._leads():
            if self._ending.wait(0.02):
                return False
            self.cycles += 1
        return True

    def _round(self, items: list[_Item]) -> float:
        engine, begin = self.engine, time.perf_counter()
        before = engine.state.decision_seq
        try:
            with engine.batch():
                for item in items:
                    try:
                        item.result = item.work(engine, self.clock())
                    except Exception as error:
                        item.error = error
                        if engine.broken:
                            raise
                wake_s = engine.step(self.clock())
        except NoRoom:  # requests that only read get an answer all the same
            raise
        except BaseException as error:
            self._fail(items, error)
            raise
        self.commits, self.stored_s = self.commits + 1, self.clock()
        taken_s = time.perf_counter() - begin
        self.commit_s += taken_s
        if engine.state.decision_seq != before:
            self.decisions += 1
            self.decision_s += taken_s
        self.notice(engine)
        self._log_problems()
        for item in items:
            self._answer(item)
        versions = engine.new_versions()
        if versions is not None and versions != self._versions:
            self._versions = versions
            self._published(versions)
        return wake_s

    def _look(self, items: list[_Item]) -> None:
        """Answer requests that only read, outside of a round."""
        for item in items:
            try:
                item.result, item.error = item.work(self.engine, self.clock()), None
            except Exception as error:
                item.error = error
            self._answer(item)
        self._log_problems()

    def _log_problems(self) -> None:
        """Log what the scheduler met: it has no log of its own."""
        problems = self.engine.counts.problems
        while problems:
            problem = problems.popleft()
            _LOG.warning(problem.what, exc_info=problem.error, extra={"facts": dict(problem.facts)})

    def _fail(self, items: list[_Item], error: BaseException) -> None:
        for item in items:
            item.error = error
            self._answer(item)

    def _answer(self, item: _Item) -> None:
        if item.future.cancelled():
            return
        if item.error is None and item.after is not None:
            try:
                item.result = item.after(self.engine, item.result)
            except Exception as error:
                item.error = error
        try:
            if item.error is not None:
                item.future.set_exception(item.error)
            else:
                item.future.set_result(item.result)
        except Exception:  # the caller has gone in the meantime
            _LOG.debug("an answer without a waiting caller")

    def _refuse(self, error: BaseException) -> None:
        """Accept nothing any more; waiting requests get the reason."""
        with self._lock:
            self._closed = True
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None and not item.future.cancelled():
                item.future.set_exception(error)
