"""The service is killed at each point of an exchange with an agent that lives: what runs there goes on, once."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest
from live_cases import Cluster

from plait.live.fencing import Fences
from plait.live.store import Store

Make = Callable[..., Cluster]


class KilledError(Exception):
    """The process of the service has ended here."""


def dies(patch: pytest.MonkeyPatch, owner: type, name: str, do: Callable[[], object]) -> None:
    """Do something, in which the service is killed as it calls this method."""

    def killed(*_: object, **__: object) -> None:
        raise KilledError

    with patch.context() as within:
        within.setattr(owner, name, killed)
        with pytest.raises(KilledError):
            do()


def refuses(number: int) -> Callable[..., None]:
    """In place of `Fences.write`: this error."""

    def write(*_: object) -> None:
        raise OSError(number, "refused")

    return write


def begin(c: Cluster) -> None:
    """A decision is due, and commits the start of an attempt."""
    c.now += 1.1
    c.engine.tick(c.now)


def before_commit(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    dies(patch, Store, "commit", lambda: begin(c))


def before_fence(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    dies(patch, Fences, "write", lambda: begin(c))


def before_answer(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    begin(c)
    c.engine.observe(c.nodes[0].observed(), c.now)  # the answer is lost


def after_answer(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    begin(c)
    c.nodes[0].sync()


def before_commit_of_the_report(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    after_answer(c, patch)
    dies(patch, Store, "commit", c.nodes[0].sync)


def after_the_report(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    after_answer(c, patch)
    c.nodes[0].sync()


def after_an_agent_that_came_back(c: Cluster, patch: pytest.MonkeyPatch) -> None:
    after_the_report(c, patch)
    c.nodes[0].agent = "n0-b"


#: Where the service is killed, and whether the agent runs the attempt by then.
POINTS = {
    before_commit: False, before_fence: False, before_answer: False, after_answer: True,
    before_commit_of_the_report: True, after_the_report: True, after_an_agent_that_came_back: True,
}  # fmt: skip


@pytest.mark.parametrize("at", POINTS)
@pytest.mark.parametrize("silent_s", [0.0, 13.0])
@pytest.mark.parametrize("writable", [True, False], ids=["", "folder unwritable"])
def test_what_runs_goes_on_once_wherever_the_service_is_killed(
    at: Callable[[Cluster, pytest.MonkeyPatch], None], silent_s: float, writable: bool, cluster: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Folders that cannot be written any more keep new attempts from starting, and end none that runs."""
    c = cluster((1, 1), lost_s=30.0, lease_s=24.0)
    (job,) = c.submit({"gpus": 2, "retries": 3})
    at(c, monkeypatch)
    runs = POINTS[at]
    assert (job in c.nodes[0].jobs()) == runs
    if not writable:
        c.engine.layout.job(job).parent.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(Fences, "write", refuses(errno.EACCES))
    c.restart()
    c.pass_s(silent_s, silent=["n0"])
    c.pass_s(4.0)
    if runs or writable:
        assert [node.jobs() for node in c.nodes] == [{job}, {job}]
        assert (c.types().count("AttemptBegan"), c.types().count("RankEnded")) == (1, 0)
        for node in c.nodes:
            node.end(job, 0)
        c.pass_s(2.0)
        assert c.state(job) == "finished"
    else:
        c.pass_s(60.0)
        assert not any(node.jobs() for node in c.nodes)
        assert c.state(job) == "failed"


def test_a_stopped_attempt_that_no_agent_knows_ends_though_the_disk_is_full(
    cluster: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service was killed between its log and its fence; what its agent does not list, it does not run."""
    c = cluster((1,))
    (job,) = c.submit({})
    before_fence(c, monkeypatch)
    monkeypatch.setattr(Fences, "write", refuses(errno.ENOSPC))
    c.restart()
    c.engine.cancel(job, c.now)
    c.engine.tick(c.now)
    assert c.engine.state.live == {job}  # its agent may run it
    c.pass_s(3.0)
    assert c.engine.state.live == set()
    assert c.state(job) == "cancelled"
