"""Who leads: the lock, the lease, the term. On a real PostgreSQL; the check of the term on SQLite too."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.scheduler.engine import Engine
from plait.live.store import Entry, Replaced, Store, StoreError
from plait.live.store import leader_lease as seat_module
from plait.live.store.connecting import parse_url
from plait.live.store.leader_lease import LeaderLease, is_dead, this_process


class Services:
    """Leases and stores of one database; all are closed at the end."""

    def __init__(self, url: str) -> None:
        self.url, self.leases, self.stores = url, [], []
        self.now_s = 1000.0

    def lease(self, name: str, holder: str | None = None, lease_s: float = 60.0) -> LeaderLease:
        """A service on another machine, whose own clock stands still; its lease lasts long enough for any test."""
        made = LeaderLease(
            parse_url(self.url),
            holder=holder or f"on {name}",
            address=f"http://{name}",
            lease_s=lease_s,
            clock=lambda: self.now_s,
        )
        self.leases.append(made)
        return made

    def store(self, lease: LeaderLease | None) -> Store:
        made = Store.open(self.url, lease=lease, exclusive=lease is not None)
        self.stores.append(made)
        return made

    def lead(self, lease: LeaderLease) -> Store:
        assert lease.try_take()
        store = self.store(lease)
        store.next_term()
        return store

    def run_out(self, *standbys: LeaderLease) -> None:
        """Standby services look, and nobody renews the lease for as long as it lasts: its holder is paused."""
        for standby in standbys:
            assert not standby.try_take()
        self.now_s += 60.0

    def write(self, statement: str, **values: object) -> None:
        """Change the tables behind everybody's back."""
        with sa.create_engine(parse_url(self.url), poolclass=sa.NullPool).begin() as connection:
            connection.execute(sa.text(statement), values)


@pytest.fixture
def services(postgres: Callable[[], str]) -> Iterator[Services]:
    made = Services(postgres())
    yield made
    for closable in (*made.leases, *made.stores):
        closable.close()


def note(seq: int) -> Entry:
    return Entry(seq, float(seq), "X", "{}")


def test_one_leads_and_the_others_know_who(services: Services) -> None:
    a, b = services.lease("a"), services.lease("b")
    assert a.leader() is None
    assert not a.holds()
    services.lead(a)
    assert a.holds()
    assert not b.try_take()
    leader = b.leader()
    assert (leader.url, leader.term) == ("http://a", 1)
    assert 50 < leader.until_s - b.now_s() <= 60


def test_a_place_given_away_is_taken_at_once(services: Services) -> None:
    a, b = services.lease("a"), services.lease("b")
    services.lead(a).commit([note(1)])
    a.close()
    assert not a.holds()
    store = services.lead(b)
    assert b.term == 2
    store.commit([note(2)])


def test_a_lock_that_is_free_is_not_enough_while_the_holder_may_live(services: Services) -> None:
    a, b = services.lease("a"), services.lease("b")
    services.lead(a)
    a._drop()  # the session is broken; the process on the other machine goes on
    services.run_out(b)
    assert b.try_take()


def test_the_lease_of_a_dead_process_is_not_waited_for(services: Services) -> None:
    dead = json.loads(this_process()) | {"start_time": 1}
    a, b = services.lease("a", holder=json.dumps(dead)), services.lease("b")
    services.lead(a)
    a._drop()
    assert b.try_take()


def test_a_place_given_away_before_the_first_term_is_taken_at_once(services: Services) -> None:
    a, b, c = (services.lease(name) for name in "abc")
    services.lead(a)
    a.close()
    assert b.try_take()  # it cannot open the store then, or is told to end
    b.close()
    assert c.try_take()


def test_whoever_takes_the_place_renews_the_lease_before_its_first_term_too(services: Services) -> None:
    a, b, c = services.lease("a"), services.lease("b", lease_s=0.2), services.lease("c")
    services.lead(a)
    a.close()
    assert b.try_take()
    first = c.leader()
    assert first.until_s - c.now_s() <= 0.2
    until = time.monotonic() + 20
    while c.leader() == first:
        assert time.monotonic() < until


def test_one_that_was_replaced_before_its_first_term_gets_none(services: Services) -> None:
    a, b, c = (services.lease(name) for name in "abc")
    services.lead(a)
    a.close()
    assert b.try_take()
    store = services.store(b)
    services.run_out(c)
    assert c.try_take()
    with pytest.raises(Replaced, match="before this one started"):
        store.next_term()
    assert services.store(c).next_term() == 2


def test_no_term_is_given_twice(services: Services) -> None:
    services.store(None).close()
    stores, terms, done = [services.store(None) for _ in range(2)], [], threading.Event()

    def second() -> None:
        terms.append(stores[1].next_term())
        done.set()

    other = threading.Thread(target=second)

    def before(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("UPDATE meta"):
            other.start()
            done.wait(0.5)  # it has to wait for us

    sa.event.listen(stores[0]._engine, "before_cursor_execute", before)
    terms.append(stores[0].next_term())
    other.join()
    assert sorted(terms) == [1, 2]


def test_dates_that_are_set_neither_depose_a_leader_nor_keep_a_dead_one(services: Services) -> None:
    a, b = services.lease("a"), services.lease("b")
    services.lead(a)
    assert not b.try_take()
    services.write("UPDATE lease SET until_s = until_s - 3600")  # the date was set forward
    assert not b.try_take()
    services.now_s += 59.0
    assert not b.try_take()
    assert a.renew()
    services.now_s += 59.0
    assert not b.try_take()
    a._drop()  # its machine is dead
    services.write("UPDATE lease SET until_s = until_s + 3600")  # the date was set back
    services.run_out(b)
    assert b.try_take()


def test_a_standby_waits_for_as_long_as_the_leader_takes_its_lease_to_last(services: Services) -> None:
    here = json.loads(this_process(60.0)) | {"boot": "another machine"}
    a, b = services.lease("a", holder=json.dumps(here)), services.lease("b", lease_s=1.0)
    services.lead(a)
    assert not b.try_take()
    services.now_s += 59.0
    assert not b.try_take()
    services.now_s += 1.0
    assert b.try_take()


def test_a_lease_that_cannot_be_renewed_for_any_reason_is_lost(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = services.lease("a", lease_s=0.2)
    heard = threading.Event()
    a.lost = lambda why: heard.set()

    def renew() -> bool:
        raise MemoryError

    monkeypatch.setattr(a, "renew", renew)
    services.lead(a)
    assert heard.wait(20)
    assert not a.holds()
    assert a.why == "the lease cannot be renewed: MemoryError "


def test_a_leader_that_hangs_says_where_and_leads_no_more_once_another_stands_ready(
    services: Services, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seat_module, "HUNG_S", 0.4)
    a, b, heard, looked = services.lease("a", lease_s=0.2), services.lease("b"), threading.Event(), threading.Event()
    alone, times = a._others, []

    def others() -> bool:
        times.append(alone())
        if len(times) == 3:
            looked.set()
        return times[-1]

    a.lost = lambda why: heard.set()
    a.pulse, a.doing = lambda: 7, lambda: "it dreams"
    monkeypatch.setattr(a, "_others", others)
    services.lead(a)
    assert looked.wait(20)
    assert not heard.is_set()
    assert a.holds()
    hung = [record for record in caplog.records if record.getMessage() == "the engine hangs"]
    assert [record.facts["doing"] for record in hung] == ["it dreams"]  # once
    assert not b.try_take()  # another one stands ready now
    assert heard.wait(20)
    assert not a.holds()
    assert a.why == "the engine has done nothing for 0.4 s"


def test_who_is_dead() -> None:
    me = json.loads(this_process())
    assert not is_dead(json.dumps(me))
    assert is_dead(json.dumps(me | {"start_time": 1}))
    assert not is_dead(json.dumps(me | {"start_time": 1, "boot": "another"}))
    assert not is_dead(json.dumps(me | {"start_time": 1, "space": "another"}))
    assert not is_dead("no JSON")


def test_a_leader_that_sleeps_past_its_lease_is_replaced_and_its_commits_are_refused(services: Services) -> None:
    a, b = services.lease("a"), services.lease("b")
    old = services.lead(a)
    old.commit([note(1)])
    services.run_out(b)  # a holds the lock still
    new = services.lead(b)
    new.commit([note(2)])
    with pytest.raises(Replaced, match="of term 1, was replaced by a leader of term 2"):
        old.commit([note(3)])
    with pytest.raises(Replaced):
        old.set_fact("x", "y")
    assert [e.seq for e in new.entries()] == [1, 2]
    # Its own renewals fail, as the session with the lock was ended.
    with pytest.raises(sa.exc.SQLAlchemyError):
        a.renew()


def test_a_renewal_after_another_has_begun_takes_nothing_back(services: Services) -> None:
    a, b = services.lease("a"), services.lease("b")
    services.lead(a)
    services.run_out(b)
    services.lead(b)
    a._connection = a._engine.connect()
    assert not a.renew()
    leader = b.leader()
    assert (leader.url, leader.term) == ("http://b", 2)


def test_the_leader_trusts_its_own_clock_alone(services: Services) -> None:
    a = services.lease("a", lease_s=60.0)
    services.lead(a)
    services.now_s += 59.0
    assert a.holds()
    services.now_s += 2.0
    assert not a.holds()
    assert a.renew()
    assert a.holds()


def test_a_leader_hears_that_it_has_lost_its_session(services: Services) -> None:
    a = services.lease("a", lease_s=0.4)
    heard, why = threading.Event(), []
    a.lost = lambda said: (why.append(said), heard.set())
    services.lead(a)
    killer = services.store(None)
    with killer._engine.begin() as connection:
        connection.execute(
            sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :m"), {"m": a.mark}
        )
    assert heard.wait(20)
    assert "the session that holds the lock is gone" in why[0]
    assert not a.holds()


def test_a_transaction_under_way_is_in_the_log_that_the_new_leader_reads(services: Services) -> None:
    """Or is refused: nothing is added between reading and the first commit."""
    a, b = services.lease("a"), services.lease("b")
    old = services.lead(a)
    services.run_out(b)
    writing = old._writing()
    connection = writing.__enter__()
    new = services.lead(b)  # ends the sessions of the old leader, or its open transaction would hold up the term
    with pytest.raises(sa.exc.SQLAlchemyError, match=r"terminat|closed|lost"):
        connection.execute(sa.text("SELECT 1"))
    with pytest.raises(StoreError):
        writing.__exit__(None, None, None)
    assert list(new.entries()) == []


def test_the_term_is_checked_on_sqlite_too(tmp_path: Path) -> None:
    old = Store.open(tmp_path / "plait.db")
    assert old.next_term() == 1
    old.commit([note(1)])
    new = Store.open(tmp_path / "plait.db", exclusive=False)
    assert new.next_term() == 2
    with pytest.raises(Replaced, match="of term 1, was replaced by a leader of term 2"):
        old.commit([note(2)])
    new.commit([note(2)])
    assert [e.seq for e in new.entries()] == [1, 2]
    old.close()
    new.close()


def test_an_engine_that_was_replaced_is_broken_and_the_new_one_goes_on(services: Services, tmp_path: Path) -> None:
    a, b = services.lease("a"), services.lease("b")
    assert a.try_take()
    old = Engine(services.store(a), Fences(Layout.at(tmp_path)), now_s=5.0, policy="fifo")
    assert old.submit([{"command": ["a"]}], owner="ann", now_s=6.0) == [0]
    services.run_out(b)
    assert b.try_take()
    new = Engine(services.store(b), Fences(Layout.at(tmp_path)), now_s=0.0)
    assert new.begin_s == 6.0
    assert new.term == 2
    with pytest.raises(Replaced):
        old.submit([{"command": ["b"]}], owner="ann", now_s=7.0)
    assert old.broken
    assert new.submit([{"command": ["c"]}], owner="ann", now_s=8.0) == [1]
