"""Who leads, where several services stand ready on one PostgreSQL: an advisory lock, and a lease with a term.

    seat = Seat(url, holder=this_process(), address="http://a:8642")
    while not seat.try_take():          # a follower, every 0.3 s
        time.sleep(0.3)
    store = Store.open(url, seat=seat)  # from `store.next_term()` on the lease is renewed
    seat.holds()                        # asked before anybody is told anything

The lock names the leader; the lease, by the database's clock, tells whether it still lives where the lock cannot: a
paused process or one behind a broken network keeps its session. Once the lease is over a follower ends all sessions of
its holder and takes the lock. The old leader has stopped answering by then, by its own clock, which began to count
before the database's did; and its commits are refused, since each checks the term (`Store`).
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from plait.live.agent import procs
from plait.live.store import schema

#: Seconds that a lease lasts, how often in that time it is renewed, and how often a follower looks.
LEASE_S, RENEWALS, LOOK_S = 3.0, 4, 0.3
#: A new leader gets so many seconds for what it does before its first term: bringing the tables to its version.
_BEGIN_S = 60.0
#: Seconds until sessions that are told to end have ended.
_END_S = 1.0
_LOCK_KEY = 0x706C616974  # "plait"
_NOW = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Double)
#: A server that vanished is noticed in seconds, not in the kernel's quarter of an hour.
CONNECT = {
    "connect_timeout": 3, "keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 3,
    "tcp_user_timeout": 4000,
}  # fmt: skip

_HOLDERS = sa.text(
    "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'advisory' "
    "AND l.granted AND l.objsubid = 1 AND l.classid::bigint = :high AND l.objid::bigint = :low "
    "AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
).bindparams(high=_LOCK_KEY >> 32, low=_LOCK_KEY & 0xFFFFFFFF)
_END = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name = :mark AND pid <> pg_backend_pid()"
)


@dataclass(frozen=True, slots=True)
class Leader:
    """The lease: whose it is, where that one answers, its term, and for how many seconds it is still good."""

    holder: str
    url: str
    term: int
    left_s: float


def this_process() -> str:
    """How the lease names the process that asks: another one on the same machine can see whether it is dead."""
    me = procs.Process.of(os.getpid())
    assert me is not None
    return json.dumps({"pid": me.pid, "start_time": me.start_time, "boot": me.boot, "space": _space()})


def is_dead(holder: str) -> bool:
    """Whether a holder is known to be dead; False for one of another machine or container: nobody here can tell."""
    try:
        said = json.loads(holder)
        if said["boot"] != procs.boot_id() or said["space"] != _space() or not said["space"]:
            return False
        return not procs.Process(said["pid"], said["start_time"], said["boot"]).alive
    except (ValueError, KeyError, TypeError, OSError):
        return False


def _space() -> str:
    """The pid namespace: pids of other containers say nothing here."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class Seat:
    """One service's way to lead. `lost(why)` is called once, in a thread, when it leads no more."""

    def __init__(
        self, url: sa.URL, *, holder: str, address: str, lease_s: float = LEASE_S,
        clock: Callable[[], float] = procs.boot_s,
    ) -> None:  # fmt: skip
        """Nothing is taken yet. The clock has to count while the machine sleeps."""
        self.holder, self.address, self.lease_s, self._clock = holder, address, lease_s, clock
        #: By this name the server knows all sessions of this service.
        self.mark = f"plait-{secrets.token_hex(8)}"
        self.term = 0
        #: The lease as it was seen last.
        self.seen: Leader | None = None
        self.lost: Callable[[str], object] = lambda why: None
        self._engine = sa.create_engine(
            url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT", connect_args=self.options()
        )
        self._connection: sa.Connection | None = None
        self._locked = False
        self._until_s = 0.0
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def options(self) -> Mapping[str, Any]:
        """How this service connects."""
        return {**CONNECT, "application_name": self.mark}

    # -- a follower -----------------------------------------------------------------------------------

    def leader(self) -> Leader | None:
        """Whose the lease is; None for a store that has never had one. Raises SQLAlchemyError."""
        return _lease(self._session())

    def policy(self) -> str | None:
        """The policy that decided last: what a follower makes ready. Raises SQLAlchemyError."""
        session = self._session()
        if not session.execute(sa.text("SELECT to_regclass('log') IS NOT NULL")).scalar():
            return None
        table = schema.log
        query = sa.select(table.c.entry).where(table.c.type == "PolicySet").order_by(table.c.seq.desc()).limit(1)
        entry = session.execute(query).scalar()
        return None if entry is None else str(json.loads(entry)["policy"])

    def now_s(self) -> float:
        """Seconds since 1970 by the database's clock, which all services share."""
        return float(self._session().execute(sa.select(_NOW)).scalar_one())

    def try_take(self) -> bool:
        """Take the lock if it is free or its holder's lease is over; True once we lead. Raises SQLAlchemyError."""
        try:
            return self._take(self._session())
        except sa.exc.SQLAlchemyError:
            self._drop()
            raise

    def _take(self, connection: sa.Connection) -> bool:
        self._locked = self._locked or take_lock(connection) or self._depose(connection)
        if not self._locked:
            return False
        self.seen = lease = _lease(connection)
        if lease is None:
            return True
        if lease.left_s > 0 and lease.holder != self.holder and not is_dead(lease.holder):
            return False  # it lost its session, and may live: until the lease is over it may answer
        # Whoever looks from now on sees somebody at work, not a lease that is over. Renewals of the old one miss it.
        table = schema.lease
        connection.execute(
            sa.update(table).values(holder=self.holder, url=self.address, until_s=_NOW + max(_BEGIN_S, self.lease_s))
        )
        return True

    def _depose(self, connection: sa.Connection) -> bool:
        self.seen = lease = _lease(connection)
        if lease is None or lease.left_s > 0:
            return False
        for mark in connection.execute(_HOLDERS).scalars().all():
            if mark.startswith("plait-"):
                connection.execute(_END, {"mark": mark})
        until = time.monotonic() + _END_S
        while not take_lock(connection):
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _session(self) -> sa.Connection:
        """The session that the lock belongs to; made again while nothing is held."""
        if self._connection is not None and not self._locked:
            try:
                self._connection.execute(sa.select(1))
            except sa.exc.SQLAlchemyError:
                self._drop()
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
        self._connection, self._locked = None, False

    # -- the leader -----------------------------------------------------------------------------------

    def begin(self, connection: sa.Connection, term: int) -> None:
        """In the transaction that raises the term: the lease is ours from now on, of this term."""
        table, began_s = schema.lease, self._clock()
        connection.execute(sa.delete(table))
        row = {"id": 1, "holder": self.holder, "url": self.address, "term": term}
        connection.execute(sa.insert(table).values(**row, until_s=_NOW + self.lease_s))
        self.term, self._until_s = term, began_s + self.lease_s

    def keep(self) -> None:
        """Renew the lease from now on, in a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
            self._thread.start()

    def holds(self) -> bool:
        """Whether nobody else can lead yet."""
        return self._clock() < self._until_s

    def renew(self) -> bool:
        """Once; False if another has taken the place. Raises SQLAlchemyError if the session with the lock is gone."""
        assert self._connection is not None
        table, began_s = schema.lease, self._clock()
        mine = sa.update(table).where(table.c.term == self.term, table.c.holder == self.holder)
        if self._connection.execute(mine.values(until_s=_NOW + self.lease_s)).rowcount != 1:
            return False
        self._until_s = began_s + self.lease_s
        return True

    def _renew(self) -> None:
        why = "another service has taken the lease"
        while not self._closed.wait(self.lease_s / RENEWALS):
            try:
                if self.renew():
                    continue
            except (sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
                why = f"the session that holds the lock is gone: {str(error).strip().splitlines()[0]}"
            self._until_s = 0.0
            if not self._closed.is_set():
                self.lost(why)
            return

    def close(self) -> None:
        """Give the place away at once: the lease is over, the lock is free."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2 * self.lease_s)
        self._until_s = 0.0
        if self._connection is not None and self._locked and self.term:
            table = schema.lease
            mine = sa.update(table).where(table.c.term == self.term, table.c.holder == self.holder)
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # without us it ends by itself
                self._connection.execute(mine.values(until_s=0.0))
        self._drop()
        self._engine.dispose()


def take_lock(connection: sa.Connection) -> bool:
    return bool(connection.execute(sa.select(sa.func.pg_try_advisory_lock(_LOCK_KEY))).scalar())


def _lease(connection: sa.Connection) -> Leader | None:
    if not connection.execute(sa.text("SELECT to_regclass('lease') IS NOT NULL")).scalar():
        return None
    table = schema.lease
    query = sa.select(table.c.holder, table.c.url, table.c.term, table.c.until_s - _NOW)
    row = connection.execute(query).first()
    return None if row is None else Leader(row[0], row[1], int(row[2]), float(row[3]))
