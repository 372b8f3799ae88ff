"""Keepers: one of a name in a home, undeterred by trouble, and a backend that hangs keeps nobody from the service."""

import os
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from plait.core.errors import InputError
from plait.live.layout import Layout
from plait.live.supervisor import daemon, keeper
from plait.live.system import modules
from plait.live.system.procs import Process

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
#: Nothing here takes so long on any machine.
PATIENCE_S = 60.0


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_there_is_one_of_a_name(layout: Layout) -> None:
    with daemon.only_one(layout, "keeper") as first, daemon.only_one(layout, "keeper") as second:
        assert (bool(first), bool(second)) == (True, False)
        with daemon.only_one(layout, "keeper-2") as other:
            assert other
        assert daemon.running(layout, "keeper") is not None
    assert daemon.running(layout, "keeper") is None


def test_a_machine_that_died_at_work_keeps_no_other_from_it(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    with daemon.exclusive(layout):  # NFS may hold its lock for as long as that machine is away
        with pytest.raises(InputError, match="another plait up"), daemon.exclusive(layout, 0.0):
            pass
        monkeypatch.setattr(daemon.socket, "gethostname", lambda: "another")
        with daemon.exclusive(layout, 0.0):
            pass


def test_those_of_this_machine_are_ended_and_those_of_others_left_alone(layout: Layout) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from plait.live.supervisor import daemon; from plait.live.layout import Layout\n"
        "with daemon.only_one(Layout(Path(sys.argv[1])), 'keeper-2'): print('up', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(layout.home)], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"up\n"
        found = daemon.running(layout, "keeper-2")
        assert found.pid == child.pid
        foreign = layout.home / "keeper-3.json"
        foreign.write_text(f'{{"pid": {child.pid}, "start_time": {found.start_time}, "boot": "another machine"}}')
        daemon.stop_all(layout)
        assert child.wait(PATIENCE_S) == -9
        assert foreign.exists()
        assert not (layout.home / "keeper-2.json").exists()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_no_trouble_ends_a_keeper(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(daemon.time, "sleep", pauses.append)
    troubles = [InputError("the port is taken"), ZeroDivisionError("a mistake of ours"), None, InputError("again")]

    def look() -> list[str]:
        trouble = troubles.pop(0)
        if trouble is not None:
            raise trouble
        return ["one thing", "another"]

    daemon.watch(look, until=lambda: not troubles)
    assert pauses == [1.0, 2.0, daemon.LOOK_S, 1.0]
    said = capsys.readouterr().out
    for text in ("the port is taken; next try in 1 s", "Traceback", "ZeroDivisionError: a mistake of ours"):
        assert text in said
    assert said.count("thing\n") == 1
    assert "another\n" in said


def test_a_service_is_started_again_while_the_backend_hangs(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, released, restarted = threading.Event(), threading.Event(), threading.Event()
    died, me = threading.Event(), Process.of(os.getpid())

    class Backend:
        def maintain(self, service: object) -> list[str]:
            hangs.set()
            assert released.wait(PATIENCE_S)
            return []

    def restart(layout: Layout) -> None:
        died.clear()
        restarted.set()

    monkeypatch.setattr(daemon, "LOOK_S", 0.01)
    monkeypatch.setattr(keeper, "remembered_backend", lambda layout: Backend())
    monkeypatch.setattr(keeper, "any_service_process", lambda layout: None if died.is_set() else me)
    monkeypatch.setattr(keeper, "service_process", lambda layout: None if died.is_set() else me)
    monkeypatch.setattr(keeper, "answers", lambda layout, process: True)
    monkeypatch.setattr(keeper, "restart_service", restart)
    monkeypatch.setattr(keeper, "own_client", lambda layout: nullcontext())
    stop = threading.Event()
    thread = threading.Thread(target=keeper.keep, args=(layout, stop.is_set))
    thread.start()
    try:
        assert hangs.wait(PATIENCE_S)
        died.set()
        assert restarted.wait(PATIENCE_S)
    finally:
        stop.set()
        released.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


class Silent:
    """A service that lives and does not answer, whose main thread is in a state that tests set."""

    def __init__(self, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
        self.process, self.answers, self.state, self.ticks = Process(7, 7, "boot"), False, b"S", 0
        self.done: list[str] = []
        monkeypatch.setattr(keeper, "any_service_process", lambda layout: self.process)
        monkeypatch.setattr(keeper, "answers", lambda layout, process: self.answers)
        monkeypatch.setattr(keeper, "end", lambda process: self.done.append("end"))
        monkeypatch.setattr(keeper, "restart_service", lambda layout: self.done.append("restart"))
        self.keeper = keeper.ServiceKeeper(layout, lambda pid: (self.state, self.ticks))

    def looks(self, many: int, ticks: int = 0) -> None:
        for _ in range(many):
            self.ticks += ticks
            self.keeper.look()


def test_a_service_that_sleeps_and_answers_nothing_is_started_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    wedged = Silent(layout, monkeypatch)
    wedged.looks(keeper.SILENT_LOOKS, ticks=1)  # it wakes for a moment, to find that it cannot accept
    assert wedged.done == []
    wedged.looks(3, ticks=1)
    assert wedged.done == ["end", "restart"]


def test_a_service_on_a_busy_machine_is_left_alone(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    starved = Silent(layout, monkeypatch)
    starved.state = b"R"
    starved.looks(500, ticks=5)
    for _ in range(50):
        starved.answers, starved.state = True, b"S"
        starved.looks(1)
        starved.answers = False
        starved.looks(keeper.SILENT_LOOKS - 1)
    assert starved.done == []


def test_a_service_in_a_loop_without_end_is_started_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Silent(layout, monkeypatch)
    stuck.state = b"R"
    stuck.looks(125, ticks=100)
    assert stuck.done[:2] == ["end", "restart"]


def test_a_keeper_whose_lock_was_removed_leaves_the_home_to_others(layout: Layout) -> None:
    with daemon.only_one(layout, "keeper") as claim:
        assert claim.holds()
        (layout.home / "keeper.json").unlink()
        assert claim.holds()
        assert daemon.running(layout, "keeper") is not None, "a record that was lost is written again"
        (layout.home / "keeper.lock").unlink()
        assert not claim.holds()
        with daemon.only_one(layout, "keeper") as other:
            assert other.holds()
        assert not claim.holds()


def test_a_keeper_begins_on_a_full_disk(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    full, tries = [True], []

    def write_json(*words: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    def backend(layout: Layout) -> object:
        tries.append(1)
        if full[0]:
            raise OSError(28, "No space left on device")
        return object()

    monkeypatch.setattr(daemon.procs, "write_json", write_json)
    monkeypatch.setattr(keeper, "remembered_backend", backend)
    monkeypatch.setattr(keeper, "time", SimpleNamespace(sleep=lambda seconds: full.__setitem__(0, len(tries) < 3)))
    monkeypatch.setattr(daemon, "watch", lambda look, over: tries.append(2))
    keeper.keep(layout)
    assert tries[:4] == [1, 1, 1, 1]
    assert 2 in tries


def test_keepers_and_services_are_found_without_their_files(layout: Layout) -> None:
    code = "import runpy, sys, time; sys.argv[0] = ''; time.sleep(600)"
    words = [sys.executable, "-c", code, "-m", "plait.live.supervisor.keeper", "--home", str(layout.home)]
    standby = [*words[:4], "plait.live.supervisor.standby", f"--home={layout.home}", "--name", "b"]
    service = [*words[:4], "plait.live.service", "--home", str(layout.home), "--standby"]
    foreign = [*words[:-1], str(layout.home / "other")]
    children = [subprocess.Popen(command) for command in (words, standby, service, foreign)]
    try:
        for child in children:  # the words are there once it has begun to run
            while "-m" not in modules.command_line(child.pid):
                assert child.poll() is None
        assert {p.pid for p in modules.services(layout.home, "2")} == {children[2].pid}
        assert modules.services(layout.home, "1") == []
        assert daemon.stop_all(layout)
        assert [children[0].wait(PATIENCE_S), children[1].wait(PATIENCE_S)] == [-9, -9]
        assert children[2].poll() is None
        assert children[3].poll() is None
    finally:
        for child in children:
            child.kill()
            child.wait()
