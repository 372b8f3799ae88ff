"""A store put back from a copy knows less than agents and folders do: nothing of what is newer may be mixed up."""

from __future__ import annotations

import json
from collections.abc import Callable

from live_cases import Cluster

from plait.live.scheduler.records.event_words import in_words
from plait.live.store.backup import restore_backup
from plait.live.store.store import Store

Make = Callable[..., Cluster]


def restarts(c: Cluster) -> list[str]:
    """What the log has of starts of services and agents, in words."""
    told = (in_words(json.loads(entry.entry)) for entry in c.store.entries())
    return [words for words in told if "service" in words or "agent" in words]


def test_the_log_has_each_start_of_a_service_and_of_an_agent_but_the_first(cluster: Make) -> None:
    c = cluster()
    c.engine.note_start()
    c.submit({})
    c.pass_s(2)
    assert restarts(c) == []
    c.nodes[0].agent, c.nodes[0].answer = "n0-b", None
    c.pass_s(3)
    assert restarts(c) == ["the agent of node n0 started again"]
    c.now += 20.0
    c.restart()
    c.engine.note_start()
    c.pass_s(3)
    _, second = restarts(c)
    assert second.startswith("the service went on from its store, 2")
    assert second.endswith(" s after the entry before")
    (started,) = (json.loads(e.entry) for e in c.store.entries() if e.type == "ServiceStarted")
    assert (started["term"], started["at_s"]) == (c.engine.term, c.engine.begin_s)


def put_back(c: Cluster) -> None:
    """The service is gone; its store becomes the copy, and a new one goes on from there."""
    c.store.close()
    restore_backup(c.home / "copy.db", c.home / "plait.db")
    c.store = Store.open(c.home / "plait.db")
    c.engine = c._engine(None)


def test_agents_follow_the_service_of_a_store_that_was_put_back(cluster: Make) -> None:
    """They refuse terms below the highest they have seen."""
    c = cluster()
    c.store.backup(c.home / "copy.db")
    for _ in range(5):
        c.restart()
    seen = c.engine.term
    put_back(c)
    assert c.engine.term > seen


def test_a_job_goes_on_above_every_epoch_that_its_folder_has_seen(cluster: Make) -> None:
    """An attempt below would be refused by its agent, and could not commit a checkpoint."""
    c = cluster()
    (job,) = c.submit({})
    c.pass_s(2)
    c.store.backup(c.home / "copy.db")
    for _ in range(3):
        c.nodes[0].end(job, 75, steps=1.0)
        c.pass_s(3)
    path = c.engine.layout.epoch_file(job)
    reached = int(path.read_text())
    assert reached > 2
    (path.parent / "checkpoints").mkdir()
    put_back(c)
    c.nodes[0].end(job, 75)
    c.pass_s(3)
    attempt = c.engine.state.jobs[job].live
    if attempt is not None and attempt.epoch == 1:  # what ran was of an attempt that the copy does not know
        c.nodes[0].seen[job, 1, 0] = c.nodes[0].seen.pop((job, 1, 0))
        c.nodes[0].end(job, None, pid=0, reason="refused")
        c.pass_s(3)
        attempt = c.engine.state.jobs[job].live
    assert attempt is not None
    assert attempt.epoch == reached + 1 == int(path.read_text())
    assert (path.parent / "checkpoints").is_dir()


def test_a_new_job_never_finds_the_checkpoints_of_another_of_its_number(cluster: Make) -> None:
    c = cluster()
    c.store.backup(c.home / "copy.db")
    (job,) = c.submit({})
    c.pass_s(2)
    kept = c.engine.layout.job(job) / "checkpoints" / "step-1000"
    kept.mkdir(parents=True)
    put_back(c)
    c.nodes[0].seen.clear()
    assert c.submit({"command": ["something", "else"]}) == [job]
    c.pass_s(2)
    assert c.nodes[0].jobs() == {job}
    assert not kept.exists()
    attempt = c.engine.state.jobs[job].live
    assert attempt is not None
    assert attempt.epoch == 2 == int(c.engine.layout.epoch_file(job).read_text())  # what still runs of the other is out
    assert (kept.parents[1] / "before-1" / "checkpoints" / "step-1000").is_dir()
