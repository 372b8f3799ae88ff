"""The process between the backend and Ray, and the executor on a node, with a library `ray` that is made up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from plait.core.options import words
from plait.live.agent.node import AgentOptions
from plait.live.backends.ray import backend
from plait.live.backends.ray import bridge as ray_bridge
from plait.live.layout import Layout

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")

#: A library for the bridge's process: connects, and answers the first question only.
HANGS = """
import time
def init(address, **words):
    if address == "refuses:1": raise ConnectionError("no token\\nsecond line")
    if address == "hangs:1": time.sleep(600)
    print("Ray prints what it likes")
def remote(**words): return lambda kind: kind
asked = []
def nodes():
    asked.append(1)
    if len(asked) > 1: time.sleep(600)
    return [{"NodeID": "ab", "Alive": True, "Resources": {"GPU": 2.0, "accelerator_type:A100": 1.0}, "Labels": {}}]
"""


@pytest.fixture
def connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bridge of its own process to an address; ended at the end."""
    (tmp_path / "ray.py").write_text(HANGS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    made = []

    def bridge(address: str) -> backend.Bridge:
        made.append(backend.Bridge(address, "plait-test", "", tmp_path / "ray-folder"))
        return made[-1]

    yield bridge
    for each in made:
        each.kill()


def test_an_answer_that_does_not_come_is_not_waited_for(connect: Any) -> None:
    bridge = connect("box:1")
    (node,) = bridge.ask({"do": "nodes"}, 60.0)["nodes"]
    assert (node["id"], node["gpus"], node["kind"], node["alive"]) == ("ab", 2, "A100", True)
    with pytest.raises(backend.NoHead, match=r"did not answer in 0\.2 s"):
        bridge.ask({"do": "nodes"}, 0.2)
    bridge.kill()
    assert bridge._process.returncode == -9


def test_a_bridge_that_died_is_no_head(connect: Any) -> None:
    bridge = connect("box:1")
    bridge._process.kill()
    bridge._process.wait()
    with pytest.raises(backend.NoHead, match="is broken"):
        bridge.ask({"do": "nodes"}, 60.0)


def test_a_question_that_it_does_not_know_does_not_end_it(connect: Any) -> None:
    bridge = connect("box:1")
    with pytest.raises(backend.NoHead, match="refused: ValueError: no request 'dance'"):
        bridge.ask({"do": "dance"}, 60.0)
    assert bridge.ask({"do": "nodes"}, 60.0)["nodes"]


def test_a_cluster_that_refuses_or_does_not_let_in_is_named(connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(backend.NoHead, match=r"at refuses:1 refused: ConnectionError: no token; with token auth"):
        connect("refuses:1")
    monkeypatch.setattr(backend, "CONNECT_S", 0.2)
    with pytest.raises(backend.NoHead, match=r"at hangs:1 did not answer in 0\.2 s"):
        connect("hangs:1")


class Library:
    """Ray as far as `tell` needs it; a reference is the name of an executor and what it was asked."""

    class RayError(Exception):
        """What Ray raises."""

    def __init__(self) -> None:
        self.exceptions = SimpleNamespace(RayError=Library.RayError)
        self.asked: list[tuple[str, Any]] = []
        self.late: set[str] = set()
        self.dead: set[str] = set()

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [reference for reference in references if reference[0] not in self.late]
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference: tuple[str, Any]) -> str:
        if reference[0] in self.dead:
            raise Library.RayError("\n  the actor died\nof many reasons")
        return json.dumps({"agent": 7})

    def executor(self, order: dict[str, Any]) -> Any:
        def ask(text: str) -> tuple[str, Any]:
            self.asked.append((order["executor"], json.loads(text)["do"]))
            return self.asked[-1]

        return SimpleNamespace(handle=SimpleNamespace(remote=ask))


def test_a_question_that_is_open_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    bridge = ray_bridge.Bridge.__new__(ray_bridge.Bridge)
    bridge.ray, bridge._pending = library, {}
    monkeypatch.setattr(bridge, "_executor", library.executor)
    orders = [{"do": "keep", "node": f"n{i}", "executor": f"e{i}"} for i in range(3)]
    library.late, library.dead = {"e1"}, {"e2"}
    first = bridge.answer({"do": "tell", "orders": orders})["answers"]
    assert (first["n0"], first["n1"]) == ({"agent": 7}, {"late": True})
    assert first["n2"] == {"problem": "its executor does not answer: the actor died"}
    library.late, library.dead = set(), set()
    second = bridge.answer({"do": "tell", "orders": orders})["answers"]
    assert [answer["agent"] for answer in second.values()] == [7, 7, 7]
    assert [name for name, _ in library.asked] == ["e0", "e1", "e2", "e0", "e2"]


class Host:
    """Agents that are only noted."""

    def __init__(self) -> None:
        self.running, self.did = False, []

    def runs(self, name: str) -> bool:
        return self.running

    def spawn(self, name: str, size: Mapping[str, object]) -> None:
        self.did.append(("spawn", *words(AgentOptions, size)))
        self.running = True

    def end(self, names: list[str], jobs: bool, size_of: Any) -> None:
        self.did.append(("end", jobs))
        self.running = False

    def agent(self, name: str) -> Any:
        return SimpleNamespace(pid=7) if self.running else None


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An executor, its host, and the order to keep an agent; it does nothing between questions."""
    monkeypatch.setattr(ray_bridge.threading, "Thread", lambda **words: SimpleNamespace(start=lambda: None))
    monkeypatch.setattr(
        ray_bridge, "Nvml", lambda: SimpleNamespace(gpus=lambda: [SimpleNamespace(index=i) for i in (0, 1, 2)])
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    word = tmp_path / "word"
    word.write_text("right\n")
    order = {
        "do": "keep", "home": str(tmp_path), "node": "n0", "gpus": 2, "real": True, "rack": 1, "gpu_kind": None,
        "word": "right", "word_file": str(word), "grace_s": 1.0, "jobs": True,
    }  # fmt: skip
    made = ray_bridge.Executor(json.dumps(order))
    made._host = Host()
    return SimpleNamespace(made=made, host=made._host, order=order, word=word, layout=Layout(tmp_path))


def tell(executor: Any, **words: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(executor.made.handle(json.dumps(executor.order | words)))
    return answer


def test_an_executor_starts_the_agent_once_and_ends_it(executor: Any) -> None:
    assert tell(executor)["started"] is True
    assert (tell(executor)["started"], tell(executor)["agent"]) == (False, 7)
    assert tell(executor, do="end")["agent"] is None
    assert executor.host.did == [("spawn", "--cuda", "0,1", "--rack", "1"), ("end", True)]


def test_an_executor_uses_the_gpus_that_ray_shows_it_or_slots(executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,1")
    tell(executor, gpu_kind="A100")
    assert executor.host.did == [("spawn", "--cuda", "1,2", "--rack", "1", "--gpu-kind", "A100")]
    executor.made._order["gpus"] = 3  # more than it sees
    assert executor.made._size() == {"gpus": 3, "rack": 1, "gpu-kind": "A100"}


def test_an_agent_that_dies_again_and_again_is_started_later_each_time(
    executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(ray_bridge.time, "monotonic", lambda: now[0])
    starts = []
    for _ in range(100):
        executor.host.running = False
        if tell(executor)["started"]:
            starts.append(round(now[0] - 1000.0, 1))
        now[0] += 0.1
    gaps = [later - earlier for earlier, later in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] > 1.0


@pytest.mark.parametrize("part", ["runs", "spawn"])
@pytest.mark.parametrize(
    "trouble", [OSError(5, "Input/output error"), subprocess.CalledProcessError(1, ["agent"]), RuntimeError("odd")]
)
def test_an_executor_that_meets_an_error_tells_it_and_tries_again(
    executor: Any, monkeypatch: pytest.MonkeyPatch, part: str, trouble: Exception
) -> None:
    ticks = iter([None, None])

    def fail(*_: object) -> None:
        raise trouble

    with monkeypatch.context() as patch:
        patch.setattr(executor.host, part, fail)
        patch.setattr(ray_bridge.time, "sleep", lambda s: next(ticks))
        with pytest.raises(StopIteration):  # the thread got through two looks: the third is not there
            executor.made._keep()
        executor.made._next_s = 0.0  # its pause is over
        assert tell(executor)["problem"] == f"its agent cannot be started: {trouble}"
    executor.made._next_s = 0.0
    assert (tell(executor)["problem"], executor.host.running) == (None, True)


@pytest.mark.parametrize(
    ("word", "problem"), [("wrong\n", "is another folder than that of the service"), (None, "does not see the home")]
)
def test_an_executor_that_sees_another_folder_starts_nothing(executor: Any, word: str | None, problem: str) -> None:
    if word is None:
        executor.word.unlink()
    else:
        executor.word.write_text(word)
    answer = tell(executor)
    assert problem in answer["problem"]
    assert executor.host.did == []
    executor.word.write_text("right\n")
    assert tell(executor)["problem"] is None
    assert len(executor.host.did) == 1
