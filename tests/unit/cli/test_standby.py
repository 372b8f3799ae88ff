"""How agents are kept alive, and with which options a service stands by: its own, the previous, or the first one's."""

import socket
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.live.client.client import NotRunning
from plait.live.layout import Layout
from plait.live.supervisor import agent_keeper as maintain
from plait.live.supervisor import daemon, services, standby
from plait.live.supervisor.options import remember, remembered
from plait.live.system.procs import Process

DB = "postgresql://host/name"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    remember(layout, {"db": DB, "port": 7001, "host": "0.0.0.0", "insecure": True, "policy": "fifo"})
    return layout


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options of each service started; nothing else of this home runs on this machine."""
    found: list[dict[str, Any]] = []

    def start_standby(layout: Layout, options: dict[str, Any], name: str) -> str:
        found.append({"name": name, **options})
        return "http://there"

    monkeypatch.setattr(standby, "start_standby", start_standby)
    monkeypatch.setattr(standby, "refuse_taken_port", lambda port, host: None)
    monkeypatch.setattr(standby.daemon, "spawn", lambda *words: None)
    here(monkeypatch)
    return found


def here(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(standby, "processes", lambda layout: {name: SimpleNamespace(pid=7) for name in names})


def test_on_another_machine_it_has_the_options_of_the_first(layout: Layout, started: list[dict[str, Any]]) -> None:
    (layout.home / "keeper.json").write_text('{"pid": 1, "boot": "another", "host": "login1"}')
    standby.start(layout, {})
    standby.look(layout, "2")
    assert started == [{"name": "2", "db": DB, "port": 7001, "host": "0.0.0.0", "insecure": True}] * 2
    assert remembered(layout, "2") == {}


def test_it_leaves_the_port_to_a_first_one_that_is_dead_at_the_moment(
    layout: Layout, started: list[dict[str, Any]]
) -> None:
    standby.start(layout, {})
    standby.look(layout, "2")
    assert [options.get("port") for options in started] == [None, None]


def test_beside_the_first_it_takes_another_port(
    layout: Layout, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, "1")
    standby.start(layout, {})
    standby.start(layout, {"port": 7002}, "3")
    assert [options.get("port") for options in started] == [None, 7002]


def test_its_own_are_remembered_and_its_keeper_uses_them(
    layout: Layout, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, "1")
    standby.start(layout, {"port": 7002, "host": "127.0.0.1"}, "b")
    standby.start(layout, {}, "b")
    remember(layout, {**remembered(layout), "lost": 9.0})  # the next plait up gave another one
    assert standby.look(layout, "b") == ["service b was started again at http://there"]
    assert [(options["port"], options["host"]) for options in started] == [(7002, "127.0.0.1")] * 3
    assert started[-1]["lost"] == 9.0
    assert remembered(layout)["port"] == 7001


def test_one_that_was_told_to_end_is_started_again_as_after_an_upgrade(
    layout: Layout, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    remember(layout, {"port": 7002}, "b")
    monkeypatch.setattr(standby.daemon.time, "sleep", lambda _: None)
    standby.keep(layout, "b", until=lambda: bool(started))  # it left no record, since it ended as it should
    assert [(options["name"], options["port"]) for options in started] == [("b", 7002)]
    here(monkeypatch, "b")
    assert standby.look(layout, "b") == []


def test_what_cannot_be_is_refused_in_words(
    layout: Layout, started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    here(monkeypatch, "2")
    with pytest.raises(InputError, match=r"service 2 of .* runs already \(process 7\); give another --name"):
        standby.start(layout, {})
    monkeypatch.undo()
    remember(layout, {})
    with pytest.raises(InputError, match="plait up --db postgresql://host/name"):
        standby.start(layout, {})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="give another --port"):
            standby.start(layout, {"db": DB, "port": taken.getsockname()[1]})
    assert started == []
    assert remembered(layout, "2") == {}


def test_one_of_another_machine_is_left_to_it(layout: Layout, started: list[dict[str, Any]]) -> None:
    record = layout.home / "service-2.json"
    record.write_text('{"url": "http://b", "pid": 1, "boot": "another", "host": "login2"}')
    with pytest.raises(InputError, match=f"service 2 of .* is kept on login2: .* rm {record}"):
        standby.start(layout, {})
    standby.start(layout, {}, "3")
    assert [options["name"] for options in started] == ["3"]


def test_one_for_which_nobody_waits_any_more_is_ended(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[subprocess.Popen[bytes]] = []

    def spawn(layout: Layout, options: dict[str, Any], log: Path) -> subprocess.Popen[bytes]:
        children.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        return children[0]

    def interrupt(layout: Layout) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(services, "_spawn", spawn)
    monkeypatch.setattr(services, "records", interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            services.start_standby(layout, {"db": DB}, "2")
        assert Process.of(children[0].pid) is None
    finally:
        children[0].kill()
        children[0].wait()


# -- agents are kept by themselves where something else keeps the service ---------------------------------


class Nodes:
    """A backend with one node, that says what it is asked."""

    def __init__(self, troubles=()):
        self.asked, self.troubles = [], list(troubles)

    def start(self):
        self.asked.append("start")
        return ["n0"]

    def maintain(self, service):
        self.asked.append("maintain")
        if self.troubles and (trouble := self.troubles.pop(0)):
            raise trouble
        return ["n1 is dead"]


@pytest.fixture
def looks(monkeypatch, tmp_path, capsys):
    """Tend so many looks; returns the exit code, the pauses, and what was said."""

    def run(nodes, looks, services=()):
        services, pauses = list(services), []

        def own_client(layout):
            trouble = services.pop(0) if services else None
            if trouble:
                raise trouble
            return nullcontext(SimpleNamespace(status=dict))

        def open_backend(layout, options):
            assert options == {"backend": "ray", "address": "a:1", "x": "y=z"}
            return nodes

        monkeypatch.setattr(maintain, "own_client", own_client)
        monkeypatch.setattr(maintain, "open_backend", open_backend)
        monkeypatch.setattr(daemon.time, "sleep", pauses.append)
        words = ["--home", str(tmp_path), "--backend", "ray", "--address", "a:1", "-o", "x=y=z"]
        code = maintain.main(words, until=lambda: len(pauses) >= looks)
        return code, pauses, capsys.readouterr().out

    return run


def test_starts_once_and_looks_every_second(looks):
    nodes = Nodes()
    code, pauses, said = looks(nodes, 3)
    assert (code, nodes.asked) == (0, ["start", "maintain", "maintain", "maintain"])
    assert pauses == [daemon.LOOK_S] * 3
    assert "started the agent of n0" in said
    assert "n1 is dead" in said


def test_trouble_passes(looks):
    away = NotRunning("no service")
    nodes = Nodes([InputError("no head answers")])
    _, pauses, said = looks(nodes, 5, [away, away])
    assert pauses == [1.0, 2.0, 4.0, daemon.LOOK_S, daemon.LOOK_S]
    assert nodes.asked == ["start", "maintain", "start", "maintain", "maintain"]
    assert "no service; next try in 2 s" in said
    assert "no head answers; next try in 4 s" in said


def test_there_is_one_of_a_home(looks, tmp_path):
    nodes = Nodes()
    with daemon.only_one(Layout(tmp_path), daemon.KEEPER):
        _, pauses, said = looks(nodes, 3)
    assert (nodes.asked, pauses) == ([], [daemon.LOOK_S] * 3)
    assert said.count("another process keeps the nodes") == 1
    _, pauses, _ = looks(nodes, 2)
    assert nodes.asked == ["start", "maintain", "maintain"]


def test_an_unknown_backend_is_no_trouble_that_passes(tmp_path, capsys):
    assert maintain.main(["--home", str(tmp_path), "--backend", "cray"]) == 2
    assert "no backend 'cray'" in capsys.readouterr().err
