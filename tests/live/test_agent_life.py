"""The agent's own life: killed, stopped, cut off, told old things; what it does to jobs then."""

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_world import DEADLINE_S, World, group, until

from plait.live.agent import journal, lease
from plait.live.agent.journal import Journal
from plait.live.agent.processes import launch
from plait.live.layout import make_private
from plait.live.protocol.wire import Assignment, GroupInfo, Mate
from plait.live.system import procs
from plait.live.system.procs import Process

pytestmark = pytest.mark.engines
LEASE_S = 3.0
LAPSED = f"no contact with the service for its lease of {LEASE_S:g} s"
PATIENT = "import time\nprint('ready')\nwhile True: time.sleep(0.01)\n"
LEAVES = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n" + PATIENT


def job_that_waits(world: World, job: int) -> str:
    """Ends with exit code 0 when the file `go` appears."""
    go = world.layout.home / "go"
    return (
        f"import os, time\nprint('ready', {job})\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nprint('end')"
    )


def has_lease(world: World, lease_s: float) -> None:
    """From now on: a job of a busy machine may take longer than that until it runs."""
    world.service.lease_s = lease_s
    until(lambda: (found := lease.read(world.layout.lease("n0"))) and found.lease_s == lease_s, "the lease")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_jobs_outlive_their_agent_and_are_reattached(started: World, number: int) -> None:
    started.service.want(started.python(1, job_that_waits(started, 1)), started.python(2, PATIENT, gpus=[1]))
    before = started.said(1, "ready"), started.runner(1)
    started.said(2, "ready")
    started.end_agent(number)
    started.service.told.clear()
    started.start()
    assert started.service.wait(1, "running").held_s > 0.0
    assert started.runner(1) == before[1]
    (started.layout.home / "go").touch()
    assert started.service.wait(1, "ended").exit_code == 0
    assert started.log(1) == "ready 1\nend\n"  # it ran once
    started.service.want(drop=((2, 1, 0),))  # and what was reattached can be stopped
    assert started.service.wait(2, "ended").exit_code == -15


def test_jobs_that_end_while_there_is_no_agent_are_told_by_the_next(started: World) -> None:
    started.starts(started.python(1, job_that_waits(started, 1)))
    started.end_agent(signal.SIGKILL)
    (started.layout.home / "go").touch()
    until(lambda: (started.folder(1) / "exit.json").exists(), "the end of the job")
    started.start()
    seen = started.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (0, None)


def test_runners_killed_while_there_is_no_agent_are_told_by_the_next(started: World) -> None:
    started.starts(started.python(1, PATIENT))
    started.end_agent(signal.SIGKILL)
    os.kill(started.runner(1), signal.SIGKILL)
    started.start()
    assert started.service.wait(1, "ended").exit_code == -9


def test_an_end_is_told_until_it_is_noted_also_by_the_next_agent(world: World) -> None:
    world.service.kept.add((1, 1, 0))
    world.start()
    world.service.want(world.run(1, "sh", "-c", "sleep 1; exit 4"))
    before = world.service.wait(1, "ended")
    world.end_agent(signal.SIGKILL)
    world.service.told.clear()
    world.start()
    again = world.service.wait(1, "ended")
    assert again.exit_code == 4
    assert again.held_s == pytest.approx(before.held_s, abs=0.1)
    assert again.held_s > 0.9
    assert again.ended_s_ago > before.ended_s_ago
    world.service.kept.clear()
    world.service.want(drop=((1, 1, 0),))
    until(lambda: not world.service.told[-1].attempts, "the end to be forgotten")


def test_a_lost_journal_starts_nothing_twice(started: World) -> None:
    started.starts(started.python(1, job_that_waits(started, 1)))
    runner = started.runner(1)
    started.end_agent(signal.SIGKILL)
    (started.layout.node("n0") / "journal.jsonl").unlink()
    started.service.told.clear()
    started.start()
    started.service.wait(1, "running")
    assert started.runner(1) == runner
    (started.layout.home / "go").touch()
    assert started.service.wait(1, "ended").exit_code == 0
    assert started.log(1) == "ready 1\nend\n"


def test_an_announced_start_that_never_happened_happens_once(world: World) -> None:
    run = world.python(1, "print('once')")
    book = Journal(world.layout.node("n0") / "journal.jsonl")
    book.append(journal.start(run))
    book.close()
    world.service.want(run)
    world.start()
    assert world.service.wait(1, "ended").exit_code == 0
    assert world.log(1) == "once\n"


def test_a_process_of_the_same_pid_is_not_mistaken_for_the_job(world: World) -> None:
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        me = Process.of(stranger.pid)
        assert me is not None
        run = world.python(1, "print('once')")
        was = Process(me.pid, me.start_time - 5, me.boot)
        procs.write_json(make_private(world.folder(1)) / "runner.json", vars(was))
        book = Journal(world.layout.node("n0") / "journal.jsonl")
        book.append(journal.start(run), journal.began((1, 1, 0), was))
        book.close()
        world.service.want(run)
        world.start()
        assert world.service.wait(1, "ended").exit_code == -9
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_node_has_one_agent(started: World) -> None:
    until(lambda: started.service.told, "the first word")
    other = subprocess.run(
        [sys.executable, "-m", "plait.live.agent", "--home", str(started.layout.home)], capture_output=True, text=True
    )
    assert other.returncode == 3
    assert "already has an agent" in other.stderr


def test_told_twice_late_or_out_of_order_changes_nothing(started: World) -> None:
    service = started.service
    run = started.python(1, PATIENT)
    service.want(run)
    started.said(1, "ready")
    runner, version = started.runner(1), service.version
    old = [
        Assignment(1, 1),  # nothing should run: from before the job
        Assignment(1, version, attempts=[run]),
        Assignment(1, version - 1, attempts=[started.python(2, PATIENT)]),
    ] * 5
    told = iter(old)
    service.override = lambda _: next(told, Assignment(1, version, attempts=[run]))
    until(lambda: next(told, None) is None, "all old answers to be given")
    service.override = None
    count = len(service.told)
    until(lambda: len(service.told) > count + 1, "further words")
    assert service.wait(1, "running")
    assert started.runner(1) == runner
    assert service.seen(2) is None


def test_a_replaced_leader_is_refused_also_by_the_next_agent(started: World) -> None:
    started.service.term = 5
    started.starts(started.python(1, PATIENT))
    for again in (False, True):
        if again:
            started.end_agent(signal.SIGKILL)
            started.start()
        started.service.told.clear()
        started.service.override = lambda told: Assignment(4, 1000)
        until(lambda: len(started.service.told) >= 3, "several answers of the old leader")
        assert started.service.told[-1].term == 5
        assert [a.state for a in started.service.told[-1].attempts] == ["running"]
        started.service.override = None
        until(lambda: started.service.told[-1].reached == started.service.version, "the right leader again")
    assert {"what": "refuse", "term": 4, "because": "term 5 was seen"} in started.journal()


def test_an_attempt_that_was_replaced_is_refused(started: World) -> None:
    started.layout.epoch_file(1).parent.mkdir(parents=True)
    started.layout.epoch_file(1).write_text("3\n")
    started.service.want(started.python(1, PATIENT, epoch=2))
    seen = started.service.wait(1, "ended", epoch=2)
    assert (seen.exit_code, seen.reason) == (None, "refused: attempt 2 of job 1 was replaced by attempt 3")
    started.service.want(started.python(2, "print(1)", epoch=4))
    started.service.wait(2, "ended", epoch=4)
    started.service.want(started.python(2, PATIENT, epoch=3))  # no EPOCH file, but a higher one was seen here
    assert started.service.wait(2, "ended", epoch=3).exit_code is None


def test_a_gpu_is_given_on_when_nobody_of_another_group_holds_it(started: World) -> None:
    slow = (
        "import os, signal, time, sys\n"
        f"go = {str(started.layout.home / 'go')!r}\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\nprint('ready')\n"
        "while not os.path.exists(go): time.sleep(0.01)\nsys.exit(75)\n"
    )
    first, mate = started.python(1, slow, gpus=[0, 1], group=group("a", 1, 2)), group("a", 1, 2)
    started.service.want(first, started.python(2, PATIENT, gpus=[1], group=mate))
    started.said(1, "ready")
    started.said(2, "ready")  # of the same group: at once
    started.service.want(started.python(3, PATIENT, gpus=[0]), started.python(4, PATIENT, gpus=[2]), drop=((1, 1, 0),))
    started.said(4, "ready")
    assert started.service.wait(1, "stopping")
    waiting = started.service.wait(3, "starting")
    assert waiting.reason == "waits until attempt 1 of job 1 has left its GPUs"
    (started.layout.home / "go").touch()
    assert started.service.wait(1, "ended").exit_code == 75
    started.said(3, "ready")


def test_a_lost_service_stops_nothing_and_is_found_again_elsewhere(started: World) -> None:
    started.starts(started.python(1, job_that_waits(started, 1)))
    old = started.service
    old.close()
    (started.layout.home / "go").touch()
    until(lambda: (started.folder(1) / "exit.json").exists(), "the job to end by itself")
    started.service = type(old)()
    started.service.runs, started.service.version = old.runs, old.version
    started.publish()
    assert started.service.wait(1, "ended").exit_code == 0


@pytest.mark.parametrize("script", [LEAVES, PATIENT], ids=["leaves at SIGTERM", "dies of SIGTERM"])
def test_without_contact_for_the_lease_work_is_stopped_gracefully_and_has_not_failed(world: World, script: str) -> None:
    world.start()
    world.starts(world.python(1, script))
    has_lease(world, LEASE_S)
    world.service.quiet = True
    until(lambda: (world.folder(1) / "exit.json").exists(), "the job to be stopped")
    world.service.quiet = False
    seen = world.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (75, LAPSED)


def test_a_node_on_loan_is_given_back_when_the_lease_is_over_and_its_jobs_have_stopped(world: World) -> None:
    agent = world.start("--on-loan").agent
    assert agent is not None
    world.starts(world.python(1, LEAVES))
    has_lease(world, LEASE_S)
    world.layout.service_file.unlink(missing_ok=True)
    world.service.quiet = True
    until(lambda: agent.poll() is not None, "the end of the agent")
    assert agent.returncode == 0  # which is the end of the allocation
    assert json.loads((world.folder(1) / "exit.json").read_text())["exit_code"] == 75


def test_an_agent_stopped_for_less_than_its_lease_changes_nothing(started: World) -> None:
    started.starts(started.python(1, PATIENT))
    has_lease(started, 2 * LEASE_S)
    started.agent.send_signal(signal.SIGSTOP)
    time.sleep(1.0)
    asked = len(started.service.told)
    started.agent.send_signal(signal.SIGCONT)
    until(lambda: len(started.service.told) > asked + 3, "words after it was woken")
    assert started.service.wait(1, "running")
    assert not (started.folder(1) / "exit.json").exists()


#: A shell's program, which the death of the shell alone does not end; and one that no signal but SIGKILL ends.
SHELL = "import subprocess, sys; subprocess.run(['sh', '-c', 'echo begun; sleep 900; echo never'])"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('begun', flush=True); time.sleep(900)"
)


@pytest.mark.parametrize("code", [SHELL, STUBBORN], ids=["shell", "stubborn"])
@pytest.mark.parametrize("fault", ["killed", "stopped", "all stopped"])
def test_work_ends_with_the_lease_of_its_node_whatever_has_become_of_its_agent(
    started: World, code: str, fault: str
) -> None:
    """As the service may start the job elsewhere a moment later: no process of it lives on, of whatever depth."""
    lease_s = 3 * LEASE_S  # the runner has a twentieth of it to kill and to write down, before it is killed itself
    started.service.lease_s = lease_s
    started.starts(started.python(1, code), "begun")
    asked = [told for told in started.service.told if told.reached]
    assert asked
    agent, runner, mark = started.agent, started.runner(1), launch.mark_of(started.layout, 1, 1, 0)
    assert agent is not None
    if fault == "all stopped":
        for pid in [runner, *procs.descendants(runner)]:
            os.kill(pid, signal.SIGSTOP)
    last_s = procs.boot_s()
    if fault == "killed":
        started.end_agent(signal.SIGKILL)
    else:
        agent.send_signal(signal.SIGSTOP)
    working = [pid for pid in procs.marked(mark) if pid != runner]
    assert working
    if fault == "all stopped":  # who wakes them finds the runner dead, and what a shell started ends at once
        until(lambda: procs.start_time(runner) is None, "the end of the runner")
        for pid in procs.marked(mark):
            os.kill(pid, signal.SIGCONT)
    until(lambda: not procs.marked(mark), "the end of all its processes")
    assert procs.boot_s() - last_s < lease_s + (2.0 if fault == "all stopped" else 1.0)
    if fault != "all stopped":
        ended = json.loads((started.folder(1) / "exit.json").read_text())
        assert (ended["exit_code"], ended["reason"]) == (75, LAPSED.replace(f"{LEASE_S:g}", f"{lease_s:g}"))
    if fault == "killed":
        started.start()
    else:
        agent.send_signal(signal.SIGCONT)
    seen = started.service.wait(1, "ended")
    assert (seen.exit_code, seen.reason) == (75, LAPSED.replace(f"{LEASE_S:g}", f"{lease_s:g}"))


@pytest.mark.parametrize("who", ["runner", "agent and runner"])
def test_what_a_shell_started_dies_with_the_runner(started: World, who: str) -> None:
    started.starts(started.python(1, SHELL), "begun")
    mark = launch.mark_of(started.layout, 1, 1, 0)
    if who != "runner":
        started.end_agent(signal.SIGKILL)
    os.kill(started.runner(1), signal.SIGKILL)
    until(lambda: not procs.marked(mark), "the end of all its processes")
    if started.agent is None:
        started.start()
    assert started.service.wait(1, "ended").exit_code == -9


def test_an_agent_without_its_journal_reattaches_to_what_runs_on_its_node(started: World) -> None:
    started.starts(started.python(1, PATIENT))
    started.end_agent(signal.SIGKILL)
    (started.layout.node("n0") / "journal.jsonl").unlink()
    told = len(started.service.told)
    started.start()
    until(lambda: len(started.service.told) > told + 2, "words of the new agent")
    assert [a.state for words in started.service.told[told:] for a in words.attempts][:1] == ["running"]
    started.service.want(drop=((1, 1, 0),))
    until(lambda: (started.folder(1) / "exit.json").exists(), "its end")


def test_jobs_go_on_without_an_end_where_the_service_was_stopped_before_the_agent(world: World) -> None:
    """As `plait down` does: nobody is left who could start them elsewhere. Who starts a service ends that."""
    world.start("--parks")
    world.starts(world.python(1, PATIENT))
    has_lease(world, LEASE_S)
    world.layout.service_file.unlink()
    world.service.quiet = True
    world.end_agent()
    parked = lease.read(world.layout.lease("n0"))
    assert parked.parked
    time.sleep(LEASE_S + 0.5)
    assert not (world.folder(1) / "exit.json").exists()
    lease.unpark(world.layout.leases())
    until(lambda: (world.folder(1) / "exit.json").exists(), "the end of the lease")


def test_an_agent_told_to_stop_jobs_ends_them_and_tells(world: World) -> None:
    world.start("--stop-jobs")
    world.starts(world.python(1, PATIENT))
    assert world.end_agent(signal.SIGTERM) == 0
    seen = world.service.seen(1)
    assert (seen.state, seen.exit_code) == ("ended", 75)


@pytest.mark.parametrize("moment", ["death", "pause"])
def test_a_notice_while_an_agent_is_being_started_again_costs_no_checkpoint(world: World, moment: str) -> None:
    agent = [sys.executable, "-m", "plait.live.agent", "--home", str(world.layout.home), "--gpus", "4", "--stop-jobs"]
    keep = f"from plait.live.backends.slurm.node import Keeper; raise SystemExit(Keeper({agent!r}).run())"
    keeper = subprocess.Popen([sys.executable, "-c", keep], start_new_session=True)
    try:
        leave = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n" + PATIENT
        world.starts(world.python(1, leave))
        record = world.layout.node("n0") / "agent.json"
        pid = json.loads(record.read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        if moment == "pause":
            until(lambda: not Path(f"/proc/{pid}").exists(), "the keeper to take note of the agent's death")
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(DEADLINE_S) == 0
    finally:
        keeper.kill()
        keeper.wait()
    seen = world.service.seen(1)
    assert (seen.state, seen.exit_code) == ("ended", 75)


def test_members_of_a_group_are_told_of_it_and_of_its_changes(started: World) -> None:
    runs = [started.python(job, PATIENT, group=group("pair", 1, 2, gate="tokens")) for job in (1, 2)]
    started.service.want(*runs)
    started.said(1, "ready")
    started.said(2, "ready")
    folder = started.layout.gates / "pair"
    control = json.loads((started.folder(2) / "control.json").read_text())
    assert control["epoch"] == 1
    assert control["group"] | {"index": 1, "rank": 0, "gate": "tokens", "dir": str(folder)} == control["group"]
    assert (folder / "v1" / "page.bin").exists()
    changed = GroupInfo("pair", "barrier", members=[Mate(1, 0), Mate(2, 2)], version=2)
    started.service.want(*(started.python(job, PATIENT, group=changed) for job in (1, 2)))

    def told() -> bool:
        now = json.loads((started.folder(2) / "control.json").read_text())
        word = struct.unpack_from("<q", (started.folder(2) / "page.bin").read_bytes(), 2056)[0]
        return bool(now["group"]["gate"] == "barrier" and word == now["version"] > control["version"])

    until(told, "the change to be told")
    alone = GroupInfo("pair", "none", members=[Mate(1, 0)], version=3)
    started.service.want(started.python(1, PATIENT, group=alone), drop=((2, 1, 0),))
    started.service.wait(2, "ended")
    started.service.want(drop=((1, 1, 0),))
    started.service.wait(1, "ended")
    until(lambda: not folder.exists(), "the folder of the group to go with its last member")


def test_progress_comes_from_the_page_and_nonsense_in_it_does_no_harm(started: World) -> None:
    job = (
        "import os, struct, time\n"
        "page = open(os.environ['PLAIT_RUN_DIR'] + '/page.bin', 'r+b', buffering=0)\n"
        "def put(at, kind, *v): page.seek(at); page.write(struct.pack('<' + kind, *v))\n"
        "for step in range(1, 31):\n"
        "    put(64, 'd', step); put(72, 'd', 0.02); put(160, '4d', *(step * t for t in (0.1, 0.2, 0.3, 0.0)))\n"
        "    time.sleep(0.01)\n"
        "    if step % 5 == 0: print('step', step)\n"
        "put(88, 'd', 500); put(120, '2d', 25, time.time()); put(112, 'd', 0.5)\n"
        "put(336, '5d', 0.02, 0.1, 0.2, 0.3, 0.0); put(328, 'q', 20); put(320, 'q', 2)\n"
        "print('done')\n"
        "while not os.path.exists(os.environ['PLAIT_RUN_DIR'] + '/go'): time.sleep(0.01)\n"
        "put(64, 'd', float('nan')); put(72, 'd', float('inf')); put(256, 'q', 99); print('wild')\n"
        "page.truncate(10); time.sleep(1000)\n"
    )
    started.starts(started.python(1, job), "done")
    seen = until(lambda: (s := started.service.wait(1, "running")).checkpoint_steps and s, "the page to be told")
    assert (seen.steps, seen.step_s, seen.total_steps, seen.skew, seen.checkpoint_steps) == (30, 0.02, 500, 0.5, 25)
    assert (seen.profile.samples, seen.profile.stage_s) == (20, [0.1, 0.2, 0.3, 0.0])
    assert 0 <= (seen.checkpoint_age_s or -1) < 60
    (started.folder(1) / "go").touch()
    started.said(1, "wild")
    seen = until(lambda: (s := started.service.wait(1, "running")).steps == 0 and s, "nonsense to be left out")
    assert (seen.step_s, seen.gate) == (None, "none")


def test_a_journal_is_read_past_torn_lines_and_written_anew_without_the_past(tmp_path: Path, world: World) -> None:
    path = tmp_path / "journal.jsonl"
    book = Journal(path)
    one, two = world.run(1, "true", epoch=3), world.run(2, "true")
    book.append({"what": "term", "term": 7}, journal.start(one), journal.end((1, 3, 0), 0, None))
    book.append(journal.forget((1, 3, 0)))
    with open(path, "ab") as file:
        file.write(b'{"what": "start", "run": {"job": 5, "ep')
    book.append(journal.start(two), journal.began((2, 1, 0), Process(10, 20, "boot")))
    book.close()
    memory = journal.read(path)
    assert (memory.term, memory.epochs, list(memory.attempts)) == (7, {1: 3, 2: 1}, [(2, 1, 0)])
    assert memory.attempts[2, 1, 0].process == Process(10, 20, "boot")
    again = Journal(path)
    again.close()
    assert again.memory == memory == journal.read(path)
    assert b'"ep' not in path.read_bytes().replace(b'"epoch', b"")
    assert path.stat().st_mode & 0o077 == 0


def test_a_process_is_its_pid_and_its_start() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        process = Process.of(child.pid)
        assert process.alive
        assert not Process(process.pid, process.start_time + 1, process.boot).send(signal.SIGKILL)
        assert not Process(process.pid, process.start_time, "another boot").alive
        assert child.pid in procs.children(os.getpid())
    finally:
        child.kill()
        child.wait()
    assert not process.alive
    assert Process.of(child.pid) is None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_full_disk_hides_no_end_and_delays_starts_until_there_is_room(small_disk: Path) -> None:
    world = World(small_disk / "home").start()
    try:
        go = small_disk.parent / "go"
        first = f"import os, time\nprint('ready')\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nos._exit(7)"
        world.starts(world.python(1, first))
        fill = small_disk / "fill"
        with open(fill, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1024))
        world.service.want(world.python(2, "print('once')", gpus=[1]))
        until(lambda: (seen := world.service.seen(2)) and "No space left" in (seen.reason or ""), "why it waits")
        go.touch()
        assert world.service.wait(1, "ended").exit_code == 7
        assert world.service.wait(2, "starting")
        fill.unlink()
        assert world.service.wait(2, "ended").exit_code == 0
        assert world.log(2) == "once\n"
    finally:
        world.close()


def test_a_service_of_another_version_is_reported_and_jobs_run_on_until_there_is_one_of_ours(started: World) -> None:
    started.starts(started.python(1, PATIENT))
    runner = started.runner(1)
    started.service.speaks = 0
    log = started.layout.node("n0") / "agent.log"
    until(lambda: "this plait speaks version 0" in log.read_text(), "the refusal in the agent's log")
    started.service.told.clear()
    started.service.speaks = 1
    assert started.service.wait(1, "running").epoch == 1
    assert started.runner(1) == runner


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_node_that_goes_gives_notice_and_has_a_last_word(world: World, number: int) -> None:
    world.start("--stop-jobs", "--stop-grace", "20")
    code = "import signal, sys, time\nsignal.signal(15, lambda *_: time.sleep(0.3) or sys.exit(75))\nprint('ready')\n"
    world.service.want(world.python(1, code + "while True: time.sleep(0.01)"), world.python(2, PATIENT, gpus=[1]))
    world.said(1, "ready")
    world.said(2, "ready")
    assert world.service.told[-1].leaving_s is None
    assert world.end_agent(number) == 0
    notices = sorted((t for t in world.service.told if t.leaving_s is not None), key=lambda t: -(t.leaving_s or 0.0))
    assert 10 < (notices[0].leaving_s or 0.0) <= 20  # of two on their way the first may arrive second
    assert notices[-1].leaving_s == 0
    assert {(s.job, s.state, s.exit_code) for s in notices[-1].attempts} == {(1, "ended", 75), (2, "ended", 75)}
    assert {s.reason for s in notices[-1].attempts} == {"its node is leaving"}


def test_the_last_word_is_repeated_until_the_next_leader_hears_it(world: World) -> None:
    world.start("--stop-jobs", "--stop-grace", "20")
    world.starts(world.python(1, "import sys, signal\nsignal.signal(15, lambda *_: sys.exit(0))\n" + PATIENT))
    old = world.service
    old.quiet = True
    world.agent.send_signal(signal.SIGTERM)
    log = world.layout.node("n0") / "agent.log"
    until(lambda: '"last word"' in log.read_text(), "a last word that nobody takes in")
    heard = len(old.heard)
    until(lambda: len(old.heard) > heard, "another one")
    world.service = type(old)()
    world.publish()
    old.close()
    assert world.agent.wait(20) == 0
    world.agent = None
    (told,) = world.service.told
    assert told.leaving_s == 0
    assert [(s.job, s.state, s.exit_code) for s in told.attempts] == [(1, "ended", 75)]


def test_where_no_service_is_left_a_node_goes_without_a_word(world: World) -> None:
    world.start("--stop-jobs", "--stop-grace", "600")
    until(lambda: world.service.told, "the agent")
    world.service.quiet = True
    world.layout.service_file.unlink()
    assert world.end_agent() == 0  # before its notice is over


def test_what_is_assigned_to_a_node_that_goes_is_declined(world: World) -> None:
    world.start("--stop-jobs", "--stop-grace", "20")
    go = world.layout.home / "go"
    ignore = "import os, signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready')\n"
    code = f"{ignore}while not os.path.exists({str(go)!r}): time.sleep(0.01)"
    world.starts(world.python(1, code))
    world.agent.send_signal(signal.SIGTERM)
    until(lambda: world.service.told[-1].leaving_s, "the notice")
    world.service.want(world.python(2, PATIENT, gpus=[1]))
    seen = world.service.wait(2, "ended")
    assert (seen.exit_code, seen.pid, seen.reason) == (75, 0, "its node is leaving")
    go.touch()
    assert world.agent.wait(20) == 0
    world.agent = None
