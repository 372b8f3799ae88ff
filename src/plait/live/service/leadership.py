"""Resources of the service that leads: the store, open for writing, and the engine that continues from it."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from plait.live.layout import Layout, network_secret
from plait.live.service.clock import FACT, Anchor, Clock, begin_s

if TYPE_CHECKING:
    from plait.live.scheduler.engine import Engine, Later
    from plait.live.service.options import ServiceOptions
    from plait.live.store import Store
    from plait.live.store.leader_lease import LeaderLease


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
