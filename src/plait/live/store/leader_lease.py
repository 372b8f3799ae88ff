"""Who leads, where several services stand ready on one PostgreSQL: an advisory lock, and a lease with a term.

    lease = LeaderLease(url, holder=holders.this_process(), address="http://a:8642")
    while not lease.try_take():          # a standby, every 0.3 s
        time.sleep(0.3)
    store = Store.open(url, lease=lease)  # the lease is renewed meanwhile, and `store.next_term()` gives it a term
    lease.holds()                        # checked before anything is answered

The lock names the leader; the lease shows whether it is still alive where the lock cannot: a paused process or one
behind a broken network keeps its session. It is over when a standby, by its own clock, has seen no renewal for as long
as it lasts: dates, the database's too, may be set. Then the standby ends all sessions of its holder and takes the lock.
The old leader has stopped answering by then, by its own clock, which began to count before the standby's did; and its
commits are refused, since each checks the term (`Store`).
"""

import contextlib
import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from plait.live.protocol.leases import LEAD_S
from plait.live.store import schema
from plait.live.system import procs

#: How often a lease is renewed while it lasts, and after how many seconds a standby looks again.
RENEWALS, LOOK_S = 4, 0.3
#: A leader whose worker completes no cycle for so many seconds hangs, and gives up the lead if a standby stands ready.
#: Decisions take less.
HUNG_S = 120.0
#: Seconds until terminated sessions have ended.
_END_S = 1.0
_LOG = logging.getLogger("plait.service")
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
_OTHERS = sa.text(
    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() "
    "AND application_name LIKE 'plait-%' AND application_name <> :mark)"
)


@dataclass(frozen=True, slots=True)
class Leader:
    """The lease: whose it is, where that one answers, its term, and until when it was made, by the database's clock."""

    holder: str
    url: str
    term: int
    until_s: float


class LeaderLease:
    """One service's way to lead. `lost(why)` is called once, in a thread, when it leads no more."""

    def __init__(
        self, url: sa.URL, *, holder: str, address: str, lease_s: float = LEAD_S,
        clock: Callable[[], float] = procs.boot_s,
    ) -> None:  # fmt: skip
        """Nothing is taken yet. The clock has to count while the machine sleeps."""
        self.holder, self.address, self.lease_s, self._clock = holder, address, lease_s, clock
        #: By this name the server knows all sessions of this service.
        self.mark = f"plait-{secrets.token_hex(8)}"
        self.term = 0
        #: The last lease that was read.
        self.seen: Leader | None = None
        self._watched: tuple[Leader, float] | None = None
        self.lost: Callable[[str], object] = lambda why: None
        #: Why it leads no more.
        self.why = ""
        #: Returns another value each time as long as the leader does not hang.
        self.pulse: Callable[[], object] = object
        #: Current work of the leader, for the log if it hangs.
        self.doing: Callable[[], str] = str
        self._beat: tuple[object, int] = (None, 0)
        self._hung = False
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

    # -- a standby -----------------------------------------------------------------------------------

    def leader(self) -> Leader | None:
        """Whose the lease is; None for a store that has never had one. Raises SQLAlchemyError."""
        return _lease(self._session())

    def policy(self) -> str | None:
        """The policy that decided last: what a standby makes ready. Raises SQLAlchemyError."""
        session = self._session()
        if not session.execute(sa.text("SELECT to_regclass('log') IS NOT NULL")).scalar():
            return None
        table = schema.log
        query = sa.select(table.c.entry).where(table.c.type == "PolicySet").order_by(table.c.seq.desc()).limit(1)
        entry = session.execute(query).scalar()
        return None if entry is None else str(json.loads(entry)["policy"])

    def now_s(self) -> float:
        """Seconds since 1970 by the database's clock, which all services share."""
        with self._engine.connect() as connection:  # the session with the lock is busy with the lease
            return float(connection.execute(sa.select(_NOW)).scalar_one())

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
        if lease.holder != self.holder and not is_dead(lease.holder) and not self._is_over(lease):
            return False  # it lost its session, and may live: until the lease is over it may answer
        # From now on readers see a working service, not a lease that is over. Renewals of the old one miss it.
        table = schema.lease
        connection.execute(sa.update(table).values(holder=self.holder, url=self.address, until_s=_NOW + self.lease_s))
        self.keep()
        return True

    def _is_over(self, lease: Leader) -> bool:
        """Given away, or not renewed for as long as it lasts since we look."""
        now_s = self._clock()
        if self._watched is None or self._watched[0] != lease:
            self._watched = lease, now_s
        return lease.until_s <= 0 or now_s - self._watched[1] >= lasts_s(lease.holder, self.lease_s)

    def _depose(self, connection: sa.Connection) -> bool:
        self.seen = lease = _lease(connection)
        if lease is None or not self._is_over(lease):
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

    def begin(self, connection: sa.Connection, term: int) -> bool:
        """In the transaction that raises the term: the lease is of this term. False if another has taken it."""
        table, began_s = schema.lease, self._clock()
        row = {"holder": self.holder, "url": self.address, "term": term, "until_s": _NOW + self.lease_s}
        if connection.execute(sa.update(table).where(table.c.holder == self.holder).values(**row)).rowcount != 1:
            if connection.execute(sa.select(table.c.id)).first() is not None:
                return False
            connection.execute(sa.insert(table).values(id=1, **row))
        self.term, self._until_s = term, began_s + self.lease_s
        return True

    def keep(self) -> None:
        """Renew the lease from now on, in a thread of its own."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
            self._thread.start()

    def holds(self) -> bool:
        """Whether no other service can lead yet."""
        return self._clock() < self._until_s

    def renew(self) -> bool:
        """Once; False if another has taken the place. Raises SQLAlchemyError if the session with the lock is gone."""
        assert self._connection is not None
        table, began_s = schema.lease, self._clock()
        mine = sa.update(table).where(table.c.holder == self.holder)
        if self._connection.execute(mine.values(until_s=_NOW + self.lease_s)).rowcount != 1:
            return False
        self._until_s = began_s + self.lease_s
        return True

    def _renew(self) -> None:
        why = "another service has taken the lease"
        try:
            while not self._closed.wait(self.lease_s / RENEWALS):
                # Counts renewals, not seconds: after a pause of the whole process the engine gets its time.
                beat, (last, same) = self.pulse(), self._beat
                self._beat = (beat, same + 1 if beat == last else 0)
                hung, before = self._beat[1] * self.lease_s / RENEWALS >= HUNG_S, self._hung
                self._hung = hung
                if hung and not before:
                    _LOG.error("the engine hangs", extra={"facts": {"for_s": HUNG_S, "doing": self.doing()}})
                hangs = hung
                if hangs and self._others():
                    why = f"the engine has done nothing for {HUNG_S:g} s"
                    break
                if not self.renew():
                    break
            else:
                return
        except (sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error) as error:
            why = f"the session that holds the lock is gone: {str(error).strip().splitlines()[0]}"
        except BaseException as error:  # whatever it is: the lease is not renewed any more
            why = f"the lease cannot be renewed: {type(error).__name__} {error}"
        self._until_s, self.why = 0.0, why
        if not self._closed.is_set():
            self.lost(why)

    def _others(self) -> bool:
        """Whether another service stands ready: without one a change of the leader helps no client."""
        assert self._connection is not None
        return bool(self._connection.execute(_OTHERS, {"mark": self.mark}).scalar())

    def close(self) -> None:
        """Give the place away at once: the lease is over, the lock is free."""
        self._closed.set()
        if self._thread is not None:
            self._thread.join(2 * self.lease_s)
        self._until_s = 0.0
        if self._connection is not None and self._locked:
            table = schema.lease
            mine = sa.update(table).where(table.c.holder == self.holder)
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
    query = sa.select(table.c.holder, table.c.url, table.c.term, table.c.until_s)
    row = connection.execute(query).first()
    return None if row is None else Leader(row[0], row[1], int(row[2]), float(row[3]))


# The name of a process in its lease, and the check whether it lives.


def this_process(lease_s: float = LEAD_S) -> str:
    """The calling process's name in its lease, and how long its leases last.

    Another one on the same machine can see whether it is dead.
    """
    me = procs.Process.of(os.getpid())
    assert me is not None
    record = {"pid": me.pid, "start_time": me.start_time, "boot": me.boot, "space": _space(), "lease_s": lease_s}
    return json.dumps(record)


def lasts_s(holder: str, usual_s: float) -> float:
    try:
        return float(json.loads(holder)["lease_s"])
    except (ValueError, KeyError, TypeError):
        return usual_s


def is_dead(holder: str) -> bool:
    """Whether a holder is known to be dead; False for one of another machine or container, where it is unknown."""
    try:
        record = json.loads(holder)
        if record["boot"] != procs.boot_id() or record["space"] != _space() or not record["space"]:
            return False
        return not procs.Process(record["pid"], record["start_time"], record["boot"]).alive
    except (ValueError, KeyError, TypeError, OSError):
        return False


def _space() -> str:
    """The pid namespace: pids of other containers mean nothing here."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
