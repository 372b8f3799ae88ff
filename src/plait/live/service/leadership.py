"""Resources of the service that leads: the store, open for writing, the engine that continues from it, and the time.

The service's time is seconds since the store was made, by clocks that may be wrong for a while. While a service runs it
follows the monotonic clock, whatever happens to the date. The time while none ran is known exactly if the machine was
not restarted, by the clock that counts since boot; otherwise only the date can show it, and counts for at most
`MOST_AWAY_S`: a date that was wrong at one start moves the time by no more than that. Time that got ahead of the date
comes back: it goes slower, never backwards, until both agree. See docs/explanation/time.md.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plait.core.codec.values import Codec
from plait.live.layout import Layout, network_secret
from plait.live.system.procs import boot_id, boot_s

if TYPE_CHECKING:
    from plait.live.scheduler.engine import Engine, Later
    from plait.live.service.options import ServiceOptions
    from plait.live.store import Store
    from plait.live.store.leader_lease import LeaderLease

#: The store's fact that relates the service's time to the other clocks at the last start.
FACT = "clock"
#: Maximum step by the date alone at a start, seconds.
MOST_AWAY_S = 86_400.0
#: How fast time goes that is ahead of the date; by more than `_WRONG_S` it is the date that is wrong.
SLOW, _AHEAD_S, _WRONG_S = 0.9, 1.0, 30 * 86_400.0
_CODEC = Codec(strict=True)


@dataclass(frozen=True)
class Anchor:
    """One moment: the service's time, the date as seconds since 1970, the boot and the seconds since it."""

    service_s: float
    date_s: float
    boot: str
    boot_s: float

    @classmethod
    def now(cls, service_s: float, date_s: float) -> Anchor:
        """The moment it is, on this machine."""
        return cls(service_s, date_s, boot_id(), boot_s())

    @classmethod
    def read(cls, text: str | None) -> Anchor | None:
        """Parse the `text` of an anchor; None for none, and for an invalid one."""
        try:
            return _CODEC.decode(cls, json.loads(text or "{}"))
        except ValueError:
            return None

    def text(self) -> str:
        return json.dumps(_CODEC.encode(self))


def begin_s(last_s: float, made_at: float, before: Anchor | None, now: Anchor) -> float:
    """The service's time at a start: `last_s`, the newest time in the store, and what has passed since.

    `now.service_s` counts for nothing. A store without an anchor began at `made_at`.
    """
    before = before or Anchor(0.0, made_at, "", 0.0)
    if before.boot == now.boot and now.boot_s >= before.boot_s:
        return max(last_s, before.service_s + now.boot_s - before.boot_s)
    away_s = now.date_s - (before.date_s + max(last_s - before.service_s, 0.0))
    behind_s = now.date_s - made_at - last_s  # more than that is due to a date that was wrong before
    return last_s + max(min(away_s, behind_s, MOST_AWAY_S), 0.0)


class Clock:
    """The service's time, for any thread."""

    def __init__(
        self, service_s: float, made_at: float, date: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Continue from this time. `date` returns the current date in seconds since 1970."""
        self._made_at, self._date, self._steady = made_at, date, steady
        self._now_s, self._seen = service_s, steady()
        self._lock = threading.Lock()

    def __call__(self) -> float:
        """Now; never less than before."""
        with self._lock:
            seen = self._steady()
            passed, self._seen = max(seen - self._seen, 0.0), seen
            ahead = self._now_s - self._since_made()
            self._now_s += passed * (SLOW if _AHEAD_S < ahead < _WRONG_S else 1.0)
            return self._now_s

    def by_date(self) -> float:
        """The current time, or the date if that is later: by this time secrets expire, however long no service ran."""
        return max(self(), self._since_made())

    def not_before(self, now_s: float) -> None:
        """Continue from a time that was seen before."""
        with self._lock:
            self._now_s = max(self._now_s, now_s)

    def _since_made(self) -> float:
        """By the date; minus infinity stands for a date before the store was made."""
        since_s = self._date() - self._made_at
        return since_s if since_s >= 0 else float("-inf")


@dataclass
class Leadership:
    """An open store, its engine, and the time that goes with them."""

    store: Store
    engine: Engine
    clock: Clock
    later: Later

    def again(self, layout: Layout) -> Engine:
        """A new engine that continues from the store, after one that could not write."""
        from plait.live.fencing import Fences
        from plait.live.scheduler.engine import Engine

        return Engine(
            self.store, Fences(layout), now_s=self.clock(), options=self.engine.options, later=self.later,
            secret=network_secret(layout), timer=time.perf_counter,
        )  # fmt: skip


def open_leadership(options: ServiceOptions, layout: Layout, lease: LeaderLease | None) -> Leadership:
    """Open the store and continue from its state.

    `options`: of the service; `layout`: of its home folder; `lease`: of the leader, None if there is only one service.
    """
    from plait.live.agent.lease import unpark
    from plait.live.fencing import Fences
    from plait.live.scheduler.engine import Engine
    from plait.live.store import Store
    from plait.network.topology.declared import read_network

    store = Store.open(options.db or layout.database, lease=lease)
    unpark(layout.leases())  # before the engine begins to wait for its nodes
    try:
        ahead_s = 0.0 if lease is None else lease.now_s() - time.time()  # all services share the database's date
        clock = Clock(0.0, store.made_at, lambda: time.time() + ahead_s)
        beside = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        start = Anchor.now(0.0, time.time() + ahead_s)

        def now(last_s: float) -> float:
            return begin_s(last_s, store.made_at, Anchor.read(store.fact(FACT)), start)

        engine = Engine(
            store,
            Fences(layout),
            now_s=now,
            policy=options.policy,
            may_lose_work=options.may_lose_work or None,
            options=options.engine,
            network=read_network(options.network),
            secret=network_secret(layout),
            later=beside.submit,
            timer=time.perf_counter,
        )
        engine.note_start()
        clock.not_before(engine.begin_s)
        store.set_fact(FACT, replace(start, service_s=engine.begin_s).text())
    except BaseException:
        store.close()
        raise
    return Leadership(store, engine, clock, beside.submit)
