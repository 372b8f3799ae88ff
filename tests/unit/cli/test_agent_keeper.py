"""Agents are kept by themselves where something else keeps the service."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from plait.core.errors import InputError
from plait.live.client.client import NotRunning
from plait.live.layout import Layout
from plait.live.supervisor import agent_keeper as maintain
from plait.live.supervisor import daemon


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
