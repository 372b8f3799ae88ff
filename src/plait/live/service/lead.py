"""What only the service that leads has: the store, open for writing, and the engine that goes on from it."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plait.live.layout import Layout

if TYPE_CHECKING:
    from plait.live.engine import Engine
    from plait.live.store import Store
    from plait.live.store.seat import Seat


class Clock:
    """Seconds since the store was made; goes on by the monotonic clock whatever happens to the date."""

    def __init__(self, made_at: float, date_s: float | None = None) -> None:
        """The date counts once, at the start: this machine's, or the one given."""
        self._base = max((time.time() if date_s is None else date_s) - made_at, 0.0) - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._base + time.monotonic()

    def not_before(self, now_s: float) -> None:
        """Go on from a time that was seen before, if the date has been set back since."""
        self._base = max(self._base, now_s - time.monotonic())


@dataclass
class Lead:
    """An open store, its engine, and the time that goes with them."""

    store: Store
    engine: Engine
    clock: Clock


def open_lead(args: argparse.Namespace, layout: Layout, seat: Seat | None) -> Lead:
    """Open the store and go on from it."""
    from plait.live.engine import Engine
    from plait.live.options import ANY_SIZE, Options
    from plait.live.store import Store

    store = Store.open(args.db or layout.database, seat=seat)
    try:
        clock = Clock(store.made_at, None if seat is None else seat.now_s())
        most_gpus = (0 if args.backend == "local" else ANY_SIZE) if args.most_gpus is None else args.most_gpus
        options = Options(
            round_s=args.round, lost_s=args.lost, lease_s=args.lease, settle_s=args.settle, grace_s=args.grace,
            estimate_s=args.estimates, first_step_s=args.first_step, user_jobs=args.user_jobs,
            project_jobs=args.project_jobs, suspect_s=min(3.0, args.lost / 2), most_gpus=most_gpus,
            policy_modules=tuple(args.allow_policy),
        )  # fmt: skip
        beside = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        engine = Engine(store, layout, now=clock(), policy=args.policy, options=options, later=beside.submit)
        clock.not_before(engine.begin_s)
    except BaseException:
        store.close()
        raise
    return Lead(store, engine, clock)
