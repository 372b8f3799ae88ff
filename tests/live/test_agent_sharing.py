"""A real agent and processes that share one of its slots: who starts beside whom, what they are told, who pauses."""

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agent_world import World, group, until

import plait
from plait.live.protocol.wire import Run, Seen
from plait.runtime.page import Page
from plait.sharing.directive import Action, Directive

pytestmark = pytest.mark.engines
GB = 1_000_000_000
SLOW = pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="set PLAIT_SLOW=1")
#: A job by hand: reports a step of 10 ms all the time, keeps to its limit at once, saves (exit 75) when told to stop.
JOB = """
import os, signal, sys, time
sys.path.insert(0, {source!r})
from plait.runtime.page import Page
from plait.sharing.directive import StepStats
page = Page.open(os.environ["PLAIT_RUN_DIR"] + "/page.bin")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
number = 0
print("ready", flush=True)
while not page.stop:
    need = {need}
    if {need_file!r} and os.path.exists({need_file!r}):
        need = int(open({need_file!r}).read() or need)
    page.add_step(StepStats(number, 0.01, device_peak_bytes=need, device_reserved_bytes=need,
                            device_persistent_bytes=need, quantum_s=0.001))
    told = page.directive
    page.set_reached(told.limit_number, told.memory_limit_bytes or float("inf"))
    page.steps, page.step_s, page.busy_s = float(number + 1), 0.01, (0.0, 0.0, 0.005 * number, 0.0)
    page.last_step_monotonic = time.monotonic()
    number += 1
    time.sleep(0.01)
sys.exit(75)
"""


def run(world: World, job: int, *, guest: bool = False, need: int = 0, need_file: str = "", **more: Any) -> Run:
    code = JOB.format(source=str(Path(plait.__file__).parents[1]), need=need, need_file=need_file)
    return world.python(job, code, group=replace(group(f"g{job}", job), guest=guest), **more)


def page(world: World, job: int) -> Page:
    return Page.open(world.folder(job) / "page.bin", mapped=False)


def told(world: World, job: int) -> Directive:
    with page(world, job) as words:
        return words.directive


def leased(world: World, job: int) -> bool:
    """Whether a guest may run now."""
    with page(world, job) as words:
        return words.share_until > time.monotonic()


def control(world: World, job: int) -> dict[str, Any] | None:
    return json.loads((world.folder(job) / "control.json").read_text())["sharing"]


def last(world: World, job: int) -> Seen:
    seen = world.service.seen(job)
    assert seen is not None
    return seen


def test_a_guest_starts_beside_its_host_and_another_host_waits(started: World) -> None:
    started.service.want(run(started, 0))
    started.said(0, "ready")
    assert control(started, 0) is None
    started.service.want(run(started, 1, guest=True), run(started, 2))
    started.said(1, "ready")
    until(lambda: "waits until attempt 1 of job 0" in (last(started, 2).reason or ""), "why the second host waits")
    host = str(started.folder(0) / "page.bin")
    assert host in control(started, 1)["hosts"]
    until(lambda: control(started, 0) == {"guest": False, "hosts": [], "gate": True}, "what the host is told")
    until(lambda: told(started, 1).share > 0, "a share for the guest")
    assert told(started, 0) == Directive(limit_number=told(started, 0).limit_number)
    until(lambda: (seen := last(started, 1)).sharing is not None and seen.sharing.share > 0, "the share in the report")
    assert (last(started, 1).sharing.guest, last(started, 0).sharing.guest) == (True, False)
    until(lambda: 0 in last(started, 1).sharing.beside, "its neighbours in the report")
    # The host goes: the second one starts, and the guest has not started again.
    before = started.runner(1)
    started.service.want(drop=((0, 1, 0),))
    started.said(2, "ready")
    assert (started.runner(1), last(started, 1).state) == (before, "running")
    until(lambda: control(started, 1)["hosts"] == [str(started.folder(2) / "page.bin")], "its new host")


def test_a_guest_that_writes_its_own_share_is_ended_with_the_reason(started: World) -> None:
    started.service.want(run(started, 0))
    started.said(0, "ready")
    code = """
import os, sys, time
sys.path.insert(0, {source!r})
from plait.runtime.page import Page
page = Page.open(os.environ["PLAIT_RUN_DIR"] + "/page.bin")
while True:
    page.share_until = 0.0
"""
    source = str(Path(plait.__file__).parents[1])
    started.service.want(started.python(1, code.format(source=source), group=replace(group("g1", 1), guest=True)))
    until(lambda: (seen := started.service.seen(1)) is not None and seen.state == "ended", "the end of the guest")
    assert "share_until" in (last(started, 1).reason or "")
    assert last(started, 0).state == "running"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=SLOW)])
def test_without_its_agent_a_guest_has_no_lease_and_a_host_runs_free(world: World, number: int) -> None:
    world.start("--slot-memory", "16")
    world.service.want(run(world, 0, need=2 * GB), run(world, 1, guest=True, need=GB))
    until(lambda: (world.folder(1) / "page.bin").exists() and told(world, 1).share > 0, "a share for the guest", 60.0)
    limits = told(world, 0).memory_limit_bytes, told(world, 1).memory_limit_bytes
    assert limits[0] is not None
    assert limits[1] is not None
    assert sum(limits) <= 16 * GB
    file = world.layout.node("n0") / "sharing.json"

    def base_s() -> float | None:
        """The step time without guests that is remembered on the disk."""
        found: float | None = json.loads(file.read_text())["gpus"]["0"]["share"]["b0_s"]
        return found

    measured_s = until(lambda: file.exists() and base_s(), "what is remembered on the disk")
    world.end_agent(number)
    written_ns = file.stat().st_mtime_ns
    until(lambda: not leased(world, 1), "the end of the lease")
    assert (told(world, 0).share, told(world, 0).action) == (1.0, Action.RUN)
    world.start("--slot-memory", "16")
    until(lambda: leased(world, 1), "a lease by the next agent")
    until(lambda: file.stat().st_mtime_ns != written_ns, "a file of the next agent")
    assert base_s() == pytest.approx(measured_s, rel=0.5)  # it went on, and did not measure from scratch
    assert [last(world, job).state for job in (0, 1)] == ["running", "running"]


def test_a_promotion_happens_in_place_and_outlives_the_agent(started: World) -> None:
    guest = run(started, 1, guest=True)
    started.service.want(guest)
    started.said(1, "ready")
    until(lambda: leased(started, 1) and told(started, 1).share == 1.0, "all of an idle slot")
    runner = started.runner(1)
    started.service.want(replace(guest, group=replace(guest.group, guest=False, version=2)))
    until(lambda: control(started, 1) is None, "no neighbours")
    until(lambda: page(started, 1).share_until == 0.0, "no lease")
    until(lambda: last(started, 1).sharing is None, "nothing to say of sharing")
    assert (started.runner(1), told(started, 1).share) == (runner, 1.0)
    started.service.quiet = True  # the next agent has nobody to ask, and knows it from the job's own file
    started.end_agent(signal.SIGKILL)
    started.start()
    until(lambda: (started.layout.node("n0") / "agent.log").read_text().count('"reattached"') == 1, "the next agent")
    time.sleep(0.5)
    with page(started, 1) as words:
        assert words.share_until == 0.0
    started.service.quiet = False


def test_a_guest_that_does_not_fit_any_more_saves_and_goes_with_the_reason(world: World, tmp_path: Path) -> None:
    grows = tmp_path / "grows"
    world.start("--slot-memory", "16")
    world.service.want(run(world, 0, need=8 * GB), run(world, 1, guest=True, need=GB, need_file=str(grows)))
    until(lambda: (world.folder(1) / "page.bin").exists() and told(world, 1).share > 0, "a share for the guest")
    grows.write_text(str(9 * GB))
    seen = world.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (75, "its GPU memory does not fit next to j-0")
    assert seen.sharing.leaves == seen.reason
    assert last(world, 0).state == "running"
    until(lambda: told(world, 0).memory_limit_bytes is None and control(world, 0) is None, "a host that is free again")


def test_a_host_starts_beside_a_guest_that_has_freed_its_memory(world: World) -> None:
    world.start("--slot-memory", "16")
    world.service.want(run(world, 1, guest=True, need=GB))
    world.said(1, "ready")
    until(lambda: (told(world, 1).memory_limit_bytes or 0) > 10 * GB, "all of an idle slot")
    world.service.want(run(world, 0, need=2 * GB))
    world.said(0, "ready")
    assert told(world, 1).memory_limit_bytes < 2 * GB
    until(lambda: last(world, 0).state == "running" and last(world, 0).reason is None, "the host in the report")


def test_a_killed_guest_leaves_its_host_alone_and_is_its_own_failure(started: World) -> None:
    started.service.want(run(started, 0), run(started, 1, guest=True))
    until(lambda: (started.folder(1) / "page.bin").exists() and told(started, 1).share > 0, "a share for the guest")
    os.kill(until(lambda: last(started, 1).pid, "the pid of the guest"), signal.SIGKILL)
    assert started.service.wait(1, "ended").exit_code == -signal.SIGKILL
    until(lambda: control(started, 0) is None, "a host that is alone again")
    assert last(started, 0).state == "running"
    until(lambda: last(started, 0).sharing is None, "nothing to say of sharing")


def test_a_gang_pauses_together_on_a_node_and_not_at_all_over_several(world: World) -> None:
    world.start(gpus=3)
    ranks = [replace(run(world, 1, guest=True, gpus=[rank]), rank=rank, world=2) for rank in (0, 1)]
    apart = replace(run(world, 2, guest=True, gpus=[2]), world=2)
    world.service.want(run(world, 0, gpus=[0]), *ranks, apart)
    pages = [str(world.folder(1, rank=rank) / "page.bin") for rank in (0, 1)]
    for rank in (0, 1):
        world.said(1, "ready", rank=rank)
        of = world.folder(1, rank=rank) / "control.json"
        until(lambda of=of: json.loads(of.read_text())["sharing"].get("ranks") == pages, "the ranks of the gang")
        assert json.loads(of.read_text())["sharing"]["hosts"] == [str(world.folder(0) / "page.bin")]

    def shares() -> tuple[float, ...]:
        found = [Page.open(Path(path), mapped=False) for path in pages]
        return tuple(words.directive.share for words in found)

    until(lambda: shares()[0] == shares()[1] > 0, "one share of both")
    world.said(2, "ready")
    until(lambda: told(world, 2).share == 1.0, "all of an idle slot")
    with page(world, 2) as words:
        words.first_step_monotonic = 1.0
    world.service.want(run(world, 3, gpus=[2]))
    gone = world.service.wait(2, "ended")
    assert gone.exit_code == 75
    assert gone.reason.startswith("its 2 processes are on several nodes")
    assert gone.reason.endswith("beside j-3")


def test_use_and_memory_of_slots_are_reported(world: World) -> None:
    world.start("--slot-memory", "16", gpus=2)
    world.service.want(run(world, 0, need=3 * GB))
    world.said(0, "ready")
    until(lambda: last(world, 0).memory is not None, "its memory")
    assert (last(world, 0).memory.peak_bytes, last(world, 0).memory.persistent_bytes) == (3 * GB, 3 * GB)
    assert world.service.told[-1].node.gpu_memory_bytes == 16 * GB

    def means() -> bool:
        found = world.service.told[-1].usage.means
        return len(found) == 2 and (found[0].utilisation or 0.0) > 0.1 and found[0].memory_bytes == 3 * GB

    until(means, "the use of the slot")
    found = world.service.told[-1].usage.means
    assert found[0].utilisation <= 1.0
    assert (found[1].utilisation, found[1].memory_bytes) == (0.0, 0.0)
