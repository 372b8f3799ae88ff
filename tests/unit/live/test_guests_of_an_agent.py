"""How an agent starts hosts beside guests, what it tells guests that it finds, and how it takes their ends."""

import json
from dataclasses import replace
from typing import Any

import pytest
from local_agent import LocalAgent

from plait.live.agent.pages import PageReader
from plait.live.agent.processes import process_manager
from plait.live.agent.processes.attempt import LocalAttempt
from plait.live.layout import make_private
from plait.live.protocol.wire import PREEMPTED, RUNNING, STARTING, STOPPING, GroupInfo, Mate, Run
from plait.runtime.page import Page
from plait.sharing.directive import StepStats

GB = 1_000_000_000


def attempt(node: LocalAgent, job: int, *, guest: bool = False, gpus: list[int] | None = None) -> LocalAttempt:
    """One that waits to be started; a guest runs, and its process is the test."""
    group = GroupInfo(f"g{job}", members=[Mate(job, 0)], guest=guest)
    made = node.agent._new(Run(job, 1, 0, 1, ["true"], [0] if gpus is None else gpus, group))
    make_private(made.folder)
    if guest:
        Page.create(made.folder / "page.bin").close()
        made.state, made.page = RUNNING, PageReader(made.folder / "page.bin")
    return made


def page(one: LocalAttempt) -> Page:
    return Page.open(one.folder / "page.bin", mapped=False)


@pytest.fixture
def started(node: LocalAgent, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    monkeypatch.setattr(node.agent, "_launch", lambda together: found.extend(one.run.job for one in together))
    return found


def step(node: LocalAgent, *waiting: LocalAttempt) -> None:
    """A pass of the main loop, and a period of the coordinator before it."""
    node.agent._share()
    node.agent.coordinator.run_once()
    node.agent._start(list(waiting))


def held_by_a_guest(node: LocalAgent) -> LocalAttempt:
    """A guest alone on slot 0, all of whose memory it may use."""
    guest = attempt(node, 1, guest=True)
    for number in range(3):
        step(node)
        with page(guest) as words:
            words.add_step(StepStats(number, 0.1, device_reserved_bytes=9 * GB, device_persistent_bytes=GB))
            words.set_reached(words.directive.limit_number, words.memory_limit_bytes)
    step(node)
    with page(guest) as words:
        assert words.memory_limit_bytes > 14 * GB
    return guest


def test_a_host_starts_once_guests_have_freed_its_memory(node: LocalAgent, started: list[int]) -> None:
    guest = held_by_a_guest(node)
    host, elsewhere, another = attempt(node, 2), attempt(node, 3, gpus=[1]), attempt(node, 4, guest=True)
    another.state = STARTING
    step(node, host, elsewhere, another)
    assert started == [3, 4]  # neither a guest nor who has another slot waits for it
    assert host.reason == "waits until the guests on its GPUs have freed memory"
    step(node, host)
    with page(guest) as words:
        assert words.memory_limit_bytes < 2 * GB
        assert words.share == 1.0  # so that it comes to the end of its step
        words.set_reached(words.directive.limit_number, words.memory_limit_bytes)
    assert started == [3, 4]
    step(node, host)
    assert started == [3, 4, 2]


def test_a_host_does_not_wait_for_ever_for_memory(
    node: LocalAgent, started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    guest = held_by_a_guest(node)
    host = attempt(node, 2)
    step(node, host)
    assert started == []
    monkeypatch.setattr(process_manager, "FREED_S", 0.0)
    guest.state = STOPPING  # one that was told to go ends
    step(node, host)
    assert started == []
    guest.state = RUNNING
    step(node, host)
    assert started == [2]


def test_a_guest_that_is_found_without_a_journal_runs_until_its_lease_ends(node: LocalAgent) -> None:
    found = attempt(node, 1, guest=True, gpus=[])
    (found.folder / "control.json").write_text(json.dumps({"version": 1, "sharing": {"guest": True, "hosts": ["/x"]}}))
    found.run = replace(found.run, group=GroupInfo("left-1-1"))
    found.remember_class()
    with page(found) as words:
        words.share_until = 5.0
    step(node)
    node.agent._tell_group(found)
    control = json.loads((found.folder / "control.json").read_text())
    assert control["sharing"]["guest"] is True
    with page(found) as words:
        assert (control["version"], words.control_version) == (2, 2)
        assert words.share_until == 5.0


@pytest.mark.parametrize("sees", [False, True])
def test_a_guest_that_leaves_says_why_whether_the_agent_sees_it_or_not(node: LocalAgent, sees: bool) -> None:
    guest = held_by_a_guest(node)
    host = attempt(node, 2)
    host.state = RUNNING
    Page.create(host.folder / "page.bin").close()
    node.agent.coordinator.assign([one.gpu_process for one in (guest, host)])
    for number in range(60):
        with page(host) as words:
            words.add_step(StepStats(number, 0.1, device_reserved_bytes=8 * GB, device_persistent_bytes=8 * GB))
            words.set_reached(words.directive.limit_number, words.memory_limit_bytes or 16 * GB)
        with page(guest) as words:
            words.add_step(StepStats(number + 3, 0.1, device_reserved_bytes=9 * GB, device_persistent_bytes=9 * GB))
            words.set_reached(words.directive.limit_number, 9 * GB)
        node.agent.coordinator.run_once()
    assert node.agent.coordinator.of(guest.key).action == "checkpoint"
    if sees:
        node.agent._share()
        assert guest.state == STOPPING
        node.agent._share()
        node.agent.coordinator.run_once()
        assert node.agent.coordinator.of(guest.key).leaves == ""  # it may finish its step
    (guest.folder / "exit.json").write_text(json.dumps({"exit_code": PREEMPTED}))
    node.agent._collect(guest)
    seen: Any = guest.seen()
    assert (seen.state, seen.exit_code) == ("ended", PREEMPTED)
    assert seen.sharing.leaves == "its GPU memory does not fit next to j-2"
