"""Keepers: one of a name in a home, undeterred by trouble, and a backend that hangs keeps nobody from the service."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from plait.core.errors import InputError
from plait.live.layout import Layout
from plait.live.supervisor import daemon, keeper

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
#: Nothing here takes so long on any machine.
PATIENCE_S = 60.0


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_there_is_one_of_a_name(layout: Layout) -> None:
    with daemon.only_one(layout, "keeper") as first, daemon.only_one(layout, "keeper") as second:
        assert (first, second) == (True, False)
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
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        found = daemon.running(layout, "keeper-2")
        assert found is not None
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
    assert "the port is taken; next try in 1 s" in said
    assert "Traceback" in said
    assert "ZeroDivisionError: a mistake of ours" in said
    assert said.count("thing\n") == 1
    assert "another\n" in said


def test_a_service_is_started_again_while_the_backend_hangs(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs, released, restarted = threading.Event(), threading.Event(), threading.Event()
    died = threading.Event()

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
    monkeypatch.setattr(keeper, "service_process", lambda layout: None if died.is_set() else object())
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
