"""What an agent does for switches and ranks, without processes: leases brought in line, grant files, contact lost."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from plait.core.errors import InputError
from plait.live.agent import switch_host
from plait.live.agent.processes.attempt import RankFiles
from plait.live.agent.switch_host import Leases, SwitchHost
from plait.live.layout import Layout
from plait.live.protocol.wire import Lease, SwitchOrder
from plait.live.system import procs
from plait.runtime.network.grant import NetworkGrant, read_grant
from plait.runtime.network.report import FILE, NetworkReport, write_report

OPTIONS: dict[str, Any] = {"protocol": "atp", "index": "shared_hash", "payload_bytes": 256}
ONE = Lease(3, 3, "j-3", "00112233445566ff", 2, 1, 0, 64, 0, 0.0, OPTIONS)


class Plane:
    """A control socket that remembers what it was asked, and refuses jobs that are too many, as a server some kinds."""

    def __init__(self, most: int = 9, *, serves: bool = False) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.jobs: set[int] = set()
        self.most, self.serves = most, serves
        self.windows: dict[int, int | None] = {}
        self.taken = 0

    def register(self, job: int, name: str, workers: int, options: Any, token: str) -> None:
        self.said.append(("register", job))
        if self.serves and options["protocol"] == "switchml":
            raise InputError("protocol switchml needs no server")
        if len(self.jobs) >= self.most:
            raise InputError("no place is left")
        self.jobs.add(job)

    def free(self, job: int) -> None:
        self.said.append(("free", job))
        if job not in self.jobs:
            raise InputError(f"job {job} is unknown")
        self.jobs.remove(job)

    def region(self, job: int, offset: int, size: int, epoch: int, mode: str, window: int | None) -> None:
        self.said.append(("region", job, offset, size, epoch))
        self.windows[job] = window
        if self.taken and offset < self.taken:
            raise InputError(f"aggregators {offset} to {offset + size - 1} are in use by job 9")

    def drain(self, job: int, epoch: int) -> None:
        self.said.append(("drain", job, epoch))

    def statistics(self) -> dict[str, Any]:
        return {"held": 0, "jobs": [{"job": job, "held": 2} for job in self.jobs]}

    def priority(self, job: int, prio: int | None) -> None:
        self.said.append(("priority", job, prio))


def leases(most: int = 9) -> tuple[Leases, Plane, Plane]:
    switch, server = Plane(most), Plane(serves=True)
    processes = SimpleNamespace(switch=SimpleNamespace(control=switch), server=SimpleNamespace(control=server))
    return Leases(cast("Any", processes)), switch, server


def test_a_new_job_is_registered_and_what_is_the_same_is_left_alone() -> None:
    made, switch, server = leases()
    assert made.settle([ONE]) == ""
    assert switch.said == [("register", 3), ("region", 3, 0, 64, 1), ("priority", 3, None)]
    assert server.said == switch.said[:2]
    made.settle([ONE])
    assert len(switch.said) == 3


def test_a_job_with_slots_of_its_own_is_registered_at_the_switch_alone() -> None:
    made, switch, server = leases()
    alone = replace(ONE, options={**OPTIONS, "protocol": "switchml", "index": "dedicated"})
    assert made.settle([alone]) == ""
    assert (switch.jobs, server.said) == ({3}, [])
    made.settle([replace(alone, offset=64, epoch=2)])
    assert made.settle([]) == ""
    assert switch.jobs == set()


def test_another_region_moves_the_job_and_another_priority_only_that() -> None:
    made, switch, _ = leases()
    made.settle([ONE])
    made.settle([replace(ONE, offset=64, epoch=2, moving=True)])
    assert switch.said[3:] == [("region", 3, 64, 64, 2)]
    made.settle([replace(ONE, offset=64, epoch=2, priority=9, moving=True)])
    assert switch.said[4:] == [("priority", 3, 9)]


def test_the_memory_of_a_former_region_is_taken_back_once_no_rank_uses_it() -> None:
    made, switch, server = leases()
    made.settle([ONE])
    moved = replace(ONE, size=32, window=16, epoch=2, moving=True)
    made.settle([moved])
    assert (switch.said[3:], switch.windows, server.windows) == ([("region", 3, 0, 32, 2)], {3: 16}, {3: 16})
    made.settle([replace(moved, moving=False), replace(ONE, job=4, wire=4, offset=32)])
    assert switch.said[4:7] == [("drain", 3, 1), ("register", 4), ("region", 4, 32, 64, 1)]
    made.settle([replace(moved, moving=False), replace(ONE, job=4, wire=4, offset=32)])
    assert len(switch.said) == 8


def test_a_job_keeps_the_region_that_it_has_while_another_one_is_refused() -> None:
    made, switch, _ = leases()
    made.settle([replace(ONE, offset=64)])
    switch.taken = 64
    moved = replace(ONE, epoch=2, moving=True)
    refused = "aggregators 0 to 63 are in use by job 9"
    assert made.settle([moved]) == refused
    assert ("free", 3) not in switch.said
    assert [(one.job, one.epoch, one.refused) for one in made.seen()[1]] == [(3, 2, refused)]
    assert made.settle([replace(moved, moving=False)]) == refused  # its ranks went by gloo
    assert ("drain", 3, 1) in switch.said
    switch.taken = 0
    assert made.settle([moved]) == ""
    assert [(one.job, one.epoch, one.held, one.refused) for one in made.seen()[1]] == [(3, 2, 2.0, "")]


def test_another_attempt_is_another_job_and_what_is_freed_goes_first() -> None:
    made, switch, server = leases()
    made.settle([ONE, replace(ONE, job=4, wire=4)])
    made.settle([replace(ONE, token="ff" * 8, epoch=2)])
    assert switch.said[6:9] == [("free", 3), ("free", 4), ("register", 3)]
    assert switch.jobs == server.jobs == {3}


def test_a_refusal_is_the_trouble_of_its_job_alone() -> None:
    made, switch, server = leases(most=1)
    assert made.settle([ONE, replace(ONE, job=4, wire=4)]) == "no place is left"
    assert list(made.has) == [3]
    assert switch.jobs == server.jobs == {3}
    assert made.settle([replace(ONE, job=4, wire=4)]) == ""


def test_regions_end_with_their_time_to_live_or_the_lease_of_the_node(tmp_path: Path) -> None:
    host = SwitchHost(Layout(tmp_path), "n0", "", lambda *a, **b: None, lambda: None)
    short = replace(ONE, job=4, wire=4, ttl_s=5.0)
    order = SwitchOrder("leaf0", "127.0.0.1", 64, 256, leases=[ONE, short])
    now_s = procs.boot_s()
    for silent_s, left in ((0.0, [ONE, short]), (6.0, [ONE]), (31.0, [])):
        host.follow(order, now_s - silent_s, 30.0)
        assert host._in_force(order) == left


def test_a_grant_file_never_goes_back(tmp_path: Path) -> None:
    files = RankFiles(tmp_path)
    files.write(NetworkGrant(2, False, "switch leaf0 was lost"))
    files.write(NetworkGrant(1, False, "older"))
    RankFiles(tmp_path).write(NetworkGrant(1, False, "of a journal"))
    assert read_grant(files.grant).reason == "switch leaf0 was lost"
    RankFiles(tmp_path).write(NetworkGrant(3, False, "newer"))
    assert read_grant(files.grant).version == 3


def test_pipes_and_endless_files_of_a_job_do_not_hold_up_its_agent(tmp_path: Path) -> None:
    files, report = RankFiles(tmp_path), tmp_path / FILE
    os.mkfifo(files.grant)
    os.mkfifo(report)
    grant = NetworkGrant(2, False, "switch leaf0 was lost")
    agent = threading.Thread(target=lambda: (files.exchange(), files.write(grant)), daemon=True)
    agent.start()
    agent.join(5.0)
    assert not agent.is_alive()
    assert read_grant(files.grant) == grant
    report.unlink()
    report.symlink_to("/dev/zero")
    assert RankFiles(tmp_path).exchange() is None


def test_the_report_of_a_rank_is_read_once_for_each_change(tmp_path: Path) -> None:
    files = RankFiles(tmp_path)
    assert files.exchange() is None
    write_report(
        tmp_path, NetworkReport("aggregation", grant_version=2, aggregated_bytes=300, transfer_s=2.0, gloo_s=1)
    )
    said = files.exchange()
    assert (said.mode, said.version, said.aggregated_bytes, said.exchange_s) == ("aggregation", 2, 300.0, 3.0)
    assert files.exchange() is said
    (tmp_path / "network_report.json").write_text("no JSON")
    assert files.exchange() == said


@pytest.mark.parametrize("name", ["network_report.json"])
def test_a_report_that_is_gone_leaves_the_last_one(tmp_path: Path, name: str) -> None:
    files = RankFiles(tmp_path)
    write_report(tmp_path, NetworkReport("gloo", "no grant"))
    before = files.exchange()
    (tmp_path / name).unlink()
    assert files.exchange() == before


@pytest.fixture
def host_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], SwitchHost]]:
    """A switch host whose processes are this shell script."""
    made: list[SwitchHost] = []

    def start(script: str) -> SwitchHost:
        program = tmp_path / "program"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o700)
        monkeypatch.setattr(switch_host, "sys", SimpleNamespace(executable=str(program)))
        layout = Layout(tmp_path)
        layout.node("n0").mkdir(parents=True)
        made.append(SwitchHost(layout, "n0", "", lambda *a, **b: None, lambda: None))
        made[-1].follow(SwitchOrder("leaf0", "127.0.0.1", 64, 256), procs.boot_s(), 30.0)
        made[-1].start()
        return made[-1]

    yield start
    for host in made:
        host.close()
        assert not host._thread.is_alive()


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_an_order_is_taken_back_while_a_process_is_silent_in_its_start(host_of: Callable[[str], SwitchHost]) -> None:
    host = host_of("exec sleep 1000")
    until(lambda: host.children)
    (pid,) = host.children
    until(lambda: host.seen().name == "leaf0")
    assert host.seen().incarnation == ""
    host.follow(None, procs.boot_s(), 30.0)
    until(lambda: host.seen().name == "")
    assert procs.Process.of(pid) is None


def test_a_switch_is_ended_while_its_processes_start(host_of: Callable[[str], SwitchHost]) -> None:
    server = """echo '{"data": ["127.0.0.1", 9]}'"""
    host = host_of(f'case "$*" in *" server "*) {server} ;; esac; exec sleep 1000')
    until(lambda: len(host.children) == 2)  # the server is ready, and the switch is started
    host.close()
    assert [procs.Process.of(pid) for pid in host.children] == [None, None]


def test_why_a_process_does_not_start_is_reported(host_of: Callable[[str], SwitchHost]) -> None:
    host = host_of("echo no such address >&2; exit 1")
    until(lambda: host.seen().trouble)
    assert host.seen().trouble == "the server of leaf0 did not start: no such address"
