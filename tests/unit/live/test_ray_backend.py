"""What the Ray backend decides, with a bridge that is made up: no Ray is needed, and none is started."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from itertools import count, pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from plait.core.errors import InputError, MissingExtra, PlaitError
from plait.core.options import words
from plait.live.agent.node import AgentOptions
from plait.live.api.cluster import NodeRow, WantedGpus
from plait.live.backends.base import COMING, DEAD, UP
from plait.live.backends.ray import backend
from plait.live.backends.ray import backend as ray
from plait.live.backends.ray import bridge as ray_bridge
from plait.live.backends.ray.backend import name_nodes
from plait.live.client.client import NotRunning, Refused
from plait.live.layout import Layout, make_private
from plait.live.system import procs
from sample_answers import sample

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")


def raylet(name: str, *, number: str = "", alive: bool = True, why: str = "", **labels: str) -> dict[str, Any]:
    """A node as the bridge gives it."""
    marks = {"plait/node": name, "plait/slots": "4"} | {f"plait/{key}": value for key, value in labels.items()}
    return {
        "id": number or f"id-of-{name}", "alive": alive, "host": "box", "address": "10.0.0.7", "gpus": 0, "kind": None,
        "labels": marks, "why": why,
    }  # fmt: skip


class Cluster:
    """A Ray cluster as its bridge tells of it; `up` False: no head answers; `hangs`: it does, and no more."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self.nodes, self.up, self.hangs, self.said = list(nodes), True, False, {}
        self.bridges = self.killed = 0
        self.asked: list[dict[str, Any]] = []

    def bridge(self, *_: object) -> Cluster:
        self.bridges += 1
        return self

    def ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        self.asked.append(request)
        if self.hangs:
            raise ray.NoHead("it did not answer")
        if request["do"] == "nodes":
            return {"nodes": self.nodes}
        if request["do"] == "tell":
            here = {"agent": 4000 if request["orders"][0]["do"] == "keep" else None, "started": False, "problem": None}
            return {"answers": {order["node"]: self.said.get(order["node"], here) for order in request["orders"]}}
        return {"removed": request.get("executors", ())}

    def kill(self) -> None:
        self.killed += 1

    def orders(self, what: str) -> list[str]:
        return [o["node"] for r in self.asked if r["do"] == "tell" for o in r["orders"] if o["do"] == what]


class Service:
    """Notes which nodes it is told to be dead, and which to forget; `down`: it does not answer."""

    def __init__(self) -> None:
        self.gone: list[tuple[str, str]] = []
        self.states = {f"n{i}": "ready" for i in range(3)}
        self.busy: set[str] = set()
        self.drained: set[str] = set()
        self.down = False
        self.wanted, self.losses = WantedGpus(0, "jobs", ""), count()

    def status(self) -> Any:
        return self

    def drain(self, node: str) -> None:
        if node in self.busy:
            raise Refused(f"j-1 would lose {next(self.losses)} s", 409)
        self.drained.add(node)

    def nodes(self) -> list[NodeRow]:
        return [
            sample(NodeRow, id=name, state=state, drained=name in self.drained, gpus_used=int(name in self.busy))
            for name, state in self.states.items()
        ]

    def node_gone(self, node: str, why: str, *, certain: bool = True) -> None:
        if self.down:
            raise NotRunning("no service answers")
        self.gone.append((node, why))

    def forget_node(self, node: str) -> None:
        assert node not in self.busy
        if self.states[node] != "lost":
            raise Refused("its agent still reports", 409)
        del self.states[node]


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    module = ModuleType("ray")
    module.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setattr(ray, "AGAIN_S", 0.0)
    return Layout(tmp_path)


def backend_of(
    cluster: Cluster, layout: Layout, monkeypatch: pytest.MonkeyPatch, options: Mapping[str, Any] | None = None
) -> Any:
    def probe(host: str, port: int) -> None:
        if not cluster.up:
            raise ray.NoHead("no head answers")

    monkeypatch.setattr(ray, "Bridge", cluster.bridge)
    monkeypatch.setattr(ray, "probe", probe)
    return ray.RayBackend(layout, {"address": "10.0.0.1:6379", **(options or {})}, 1.0)


def test_it_needs_ray_and_the_address_of_a_head(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("", "box", "6379", "box:port"):
        with pytest.raises(InputError, match="write host:port"):
            ray.RayBackend(layout, {"address": address}, 1.0)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(ray.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="ray"):
        ray.RayBackend(layout, {"address": "box:6379"}, 1.0)


def test_a_start_waits_for_an_agent_on_each_usable_node(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(raylet("n0"), raylet("n1", rack="3"), raylet("out", slots="0"), raylet("gone", alive=False))
    looks = iter([{"late": True}, {"agent": None, "started": False}, {"agent": 4001, "started": True}])
    backend = backend_of(cluster, layout, monkeypatch)

    def tell(request: dict[str, Any], wait_s: float, ask: Any = cluster.ask) -> dict[str, Any]:
        if request["do"] == "tell":
            cluster.said["n1"] = next(looks)
        answer: dict[str, Any] = ask(request, wait_s)
        return answer

    monkeypatch.setattr(cluster, "ask", tell)
    assert backend.start() == ["n1"]
    assert backend.expected() == 2
    assert next(looks, None) is None
    told = {o["node"]: o for r in cluster.asked if r["do"] == "tell" for o in r["orders"]}
    assert sorted(told) == ["n0", "n1"]
    assert (told["n1"]["rack"], told["n1"]["gpus"], told["n1"]["real"]) == (3, 4, False)
    assert told["n0"]["word"] == backend.word_file.read_text().strip()


def test_a_start_says_why_the_cluster_cannot_be_used(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(raylet("out", slots="0"))
    backend = backend_of(cluster, layout, monkeypatch)
    with pytest.raises(InputError, match="no node with GPUs or a label plait/slots"):
        backend.start()
    cluster.nodes = [raylet("n0")]
    monkeypatch.setattr(ray, "CALL_S", -1.0)
    cluster.said["n0"] = {"agent": None, "problem": "it does not see the home folder"}
    with pytest.raises(InputError, match="cannot be used: node n0: it does not see the home folder"):
        backend.start()
    monkeypatch.setattr(ray, "START_S", -1.0)
    cluster.said["n0"] = {"late": True}
    with pytest.raises(InputError, match="no executor on n0 in"):
        backend.start()
    cluster.hangs = True
    with pytest.raises(InputError, match="did not answer"):
        backend.start()


def test_nodes_are_given_back_and_what_a_person_drained_stays(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, service = Cluster(*map(raylet, ("n0", "n1", "n2"))), Service()
    for name in service.states:
        (make_private(layout.node(name)) / "given-back").touch()  # and back since, but for n1
    (layout.node("n1") / "given-back").unlink()
    service.wanted, service.busy, service.drained = WantedGpus(4, "policy", ""), {"n0", "n2"}, {"n1"}
    options = {"max-nodes": "2", "idle": 0}
    first, second = (backend_of(cluster, layout, monkeypatch, options) for _ in range(2))
    kept = "node n2 is not given back yet: j-1 would lose 0 s"
    assert first.maintain(service) == ["attached: n0, n1, n2", kept, "Ray is to have 3 nodes"]
    assert first.maintain(service) == ["node n0 is not given back yet: j-1 would lose 1 s"]
    service.busy = {"n0"}
    assert first.maintain(service) == ["node n2 is drained, to be given back to Ray", "Ray is to have 2 nodes"]
    service.wanted = WantedGpus(8, "policy", "")
    given = ["attached: n0, n1, n2", "node n2 is given back to Ray", "Ray is to have 3 nodes"]
    assert second.maintain(service) == given  # another one, until the service has forgotten n2
    service.states["n2"] = "lost"
    assert (second.maintain(service), list(service.states)) == ([], ["n0", "n1"])
    assert second.maintain(service) == ["node n2 is taken again"]
    with pytest.raises(InputError, match="max-nodes=0 of --backend ray; needs at least 1"):
        backend_of(cluster, layout, monkeypatch, {"max-nodes": 0})


def test_only_a_death_that_ray_tells_of_is_passed_on(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, service = Cluster(raylet("n0"), raylet("n1"), raylet("n2")), Service()
    backend = backend_of(cluster, layout, monkeypatch)
    assert backend.maintain(service) == ["attached: n0, n1, n2"]
    cluster.nodes[1] = raylet("n1", alive=False, why="the machine is off")
    del cluster.nodes[2]  # a head that was started anew knows nothing of it
    assert backend.maintain(service) == ["Ray reports that n1 is dead"]
    assert backend.maintain(service) == []
    assert service.gone == [("n1", "Ray: the machine is off")]
    cluster.nodes.append(raylet("n1", number="another"))  # the raylet was started again
    assert backend.maintain(service) == ["attached: n1"]
    assert len(service.gone) == 1


def test_a_death_is_told_again_until_the_service_has_it(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, service = Cluster(raylet("n0"), raylet("n1")), Service()
    backend = backend_of(cluster, layout, monkeypatch)
    backend.maintain(service)
    cluster.nodes[1], service.down = raylet("n1", alive=False), True
    for _ in range(2):
        with pytest.raises(NotRunning):
            backend.maintain(service)
    service.down = False
    assert backend.maintain(service) == ["Ray reports that n1 is dead"]
    assert backend.maintain(service) == []  # its agent may still speak
    service.states["n1"] = "suspect"  # to the leader that took over, which nobody has told
    assert backend.maintain(service) == []
    cluster.nodes.append(raylet("of old", alive=False))
    again = backend_of(cluster, layout, monkeypatch)  # another keeper tells of the deaths before its time
    assert again.maintain(service) == ["attached: n0", "Ray reports that n1 is dead"]
    assert service.gone == [("n1", "Ray: the node is dead")] * 3


def test_the_service_forgets_nodes_that_are_lost_and_gone(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, service = Cluster(*map(raylet, ("n0", "n1", "n2", "out"))), Service()
    backend = backend_of(cluster, layout, monkeypatch)
    backend.maintain(service)
    service.states |= {"by-hand": "lost", "n0": "lost", "out": "ready"}
    service.drained = {"out"}
    cluster.nodes = [raylet("n0"), raylet("n1", alive=False), raylet("out", alive=False)]  # n2: unknown by now
    assert backend.maintain(service) == ["Ray reports that n1 is dead", "Ray reports that out is dead"]
    service.states |= {"n1": "lost", "n2": "lost", "out": "lost"}
    service.busy = {"n1"}
    assert backend.maintain(service) == ["node n2 is gone"]
    service.busy = set()
    assert backend.maintain(service) == ["node n1 is gone"]
    assert backend.maintain(service) == []
    assert sorted(service.states) == ["by-hand", "n0", "out"]  # not Ray's; there, and late; drained by somebody


def test_that_the_head_is_gone_and_back_is_said_once(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, service = Cluster(raylet("n0"), raylet("n1")), Service()
    backend = backend_of(cluster, layout, monkeypatch)
    backend.maintain(service)
    cluster.up = False
    assert backend.maintain(service) == ["no head answers; jobs go on, and nodes are attached again when it is back"]
    assert (cluster.bridges, cluster.killed) == (1, 1)
    assert backend.maintain(service) == []
    assert {place.state for place in backend.list_nodes()} == {DEAD}
    cluster.up, cluster.nodes = True, []  # raylets come later than their head
    assert backend.maintain(service) == ["the head at 10.0.0.1:6379 is back"]
    cluster.nodes, cluster.said = [raylet("n0", number="new-0"), raylet("n1", number="new-1")], {"n1": {"late": True}}
    assert backend.maintain(service) == ["attached: n0"]
    assert [(p.name, p.state) for p in backend.list_nodes()] == [("n0", UP), ("n1", COMING)]
    cluster.said = {"n0": {"late": True}}  # busy for a moment, and still attached
    assert backend.maintain(service) == ["attached: n1"]
    cluster.said = {}
    assert backend.maintain(service) == []
    assert service.gone == []
    assert cluster.bridges == 2


def test_after_a_failure_the_head_is_left_alone_for_a_while(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "AGAIN_S", 3.0)
    now = [100.0]
    monkeypatch.setattr(ray.time, "monotonic", lambda: now[0])
    cluster, service = Cluster(raylet("n0")), Service()
    cluster.up = False
    backend = backend_of(cluster, layout, monkeypatch)
    assert len(backend.maintain(service)) == 1
    cluster.up, now[0] = True, 102.9
    assert backend.maintain(service) == []
    assert cluster.bridges == 0
    now[0] = 103.0
    assert backend.maintain(service) == ["the head at 10.0.0.1:6379 is back", "attached: n0"]


def test_an_end_tells_all_executors_and_takes_them_away(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(raylet("n0"), raylet("n1"))
    backend = backend_of(cluster, layout, monkeypatch)
    backend.start()
    backend.stop(jobs=True)
    assert cluster.orders("end") == ["n0", "n1"]
    assert [o["jobs"] for r in cluster.asked[-2:-1] for o in r["orders"]] == [True, True]
    assert cluster.asked[-1] == {"do": "remove", "executors": ["executor-n0-id-of-n0", "executor-n1-id-of-n1"]}
    assert not backend.word_file.exists()
    assert cluster.killed == 1


@pytest.fixture
def elsewhere(layout: Layout) -> Iterator[Callable[..., None]]:
    """Makes the agent of a node run on another machine: its record, and its lock unless it has ended."""
    with contextlib.ExitStack() as locks:

        def runs(name: str, *, lock: bool = True) -> None:
            make_private(layout.node(name))
            record = {"pid": 1, "start_time": 1, "boot": "of another machine"}
            procs.write_json(layout.node(name) / "agent.json", record)
            file = locks.enter_context(open(layout.node(name) / "agent.lock", "w"))
            if lock:
                fcntl.flock(file, fcntl.LOCK_EX)

        yield runs


def test_an_end_without_a_head_names_the_agents_that_run_on(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., None]
) -> None:
    cluster = Cluster(raylet("n0"), raylet("n1"))
    backend_of(cluster, layout, monkeypatch).start()
    elsewhere("n0")
    elsewhere("n1")
    elsewhere("n2", lock=False)  # its machine died
    cluster.up = False
    backend = backend_of(cluster, layout, monkeypatch)  # `plait down` is a process of its own
    with pytest.raises(PlaitError, match="no head answers; the agents of n0, n1 run on: end them there"):
        backend.stop(jobs=False)
    assert not backend.word_file.exists()  # executors stop keeping agents by themselves


@pytest.mark.parametrize("answer", [{"late": True}, {"problem": "its executor does not answer"}, {"agent": 4000}])
def test_an_end_names_the_agents_that_it_did_not_reach_and_leaves_their_executors(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[..., None], answer: dict[str, Any]
) -> None:
    cluster = Cluster(raylet("n0"), raylet("n1"), raylet("n2", alive=False))
    backend_of(cluster, layout, monkeypatch).start()
    elsewhere("n0", lock=False)  # was killed: its record stays
    elsewhere("n1", lock=False)  # where locks are not seen by all nodes, the answer counts
    elsewhere("n2")  # its raylet is dead, and it goes on
    cluster.said["n1"] = answer
    with pytest.raises(PlaitError, match="Ray reaches no executor that ends them; the agents of n1, n2 run on: end"):
        backend_of(cluster, layout, monkeypatch).stop(jobs=True)
    assert cluster.asked[-1] == {"do": "remove", "executors": ["executor-n0-id-of-n0"]}
    del cluster.said["n1"]
    with pytest.raises(PlaitError, match="the agents of n2 run on"):
        backend_of(cluster, layout, monkeypatch).stop(jobs=True)
    assert cluster.orders("end") == ["n0", "n1", "n0", "n1"]


def test_names_are_the_same_for_every_keeper(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain: dict[str, Any] = {"labels": {}, "host": "gpu box", "gpus": 2}
    first, second = (raylet("x", number=number) | plain for number in ("bbbbbbbbb2", "aaaaaaaaa1"))
    cluster, service = Cluster(first), Service()
    keeper = backend_of(cluster, layout, monkeypatch)
    assert keeper.maintain(service) == ["attached: gpu-box"]
    cluster.nodes = [first, second]  # another on the same machine, or the one that was started again
    (line,) = keeper.maintain(service)
    assert line.startswith("the raylet aaaaaaaa at 10.0.0.7 is not used, since another one is gpu-box already; give it")
    assert keeper.maintain(service) == []
    again = backend_of(cluster, layout, monkeypatch)
    again.start()
    assert [place.name for place in again.list_nodes()] == ["gpu-box"]  # one machine, one agent
    assert "the raylet bbbbbbbb at 10.0.0.7 is not used" in capsys.readouterr().err
    cluster.nodes = [first | {"alive": False}, second]
    assert keeper.maintain(service) == []
    assert [order["id"] for order in cluster.asked[-1]["orders"]] == ["aaaaaaaaa1"]
    assert service.gone == []


def test_of_two_that_claim_one_label_the_one_that_has_it_keeps_it_until_it_is_dead() -> None:
    old, new = raylet("n0", number="zz-old"), raylet("n0", number="aa-new")
    assert name_nodes([new, old], {"zz-old": "n0"}, None)["n0"].id == "zz-old"
    assert name_nodes([new, old | {"alive": False}], {"zz-old": "n0"}, None)["n0"].id == "aa-new"


def test_nodes_give_gpus_or_slots_as_they_say() -> None:
    bare = raylet("n0") | {"labels": {"plait/node": "n0"}}
    assert name_nodes([bare], {}, None) == {}
    assert name_nodes([bare], {}, 3)["n0"].gpus == 3
    real = name_nodes([bare | {"gpus": 8, "kind": "A100"}], {}, 3)["n0"]
    assert (real.gpus, real.real, real.kind) == (8, True, "A100")
    assert not name_nodes([raylet("n0", rack="left") | {"gpus": 8, "kind": "no kind!"}], {}, None)["n0"].real
    odd = name_nodes([raylet("n0", rack="left") | {"kind": "no kind!"}], {}, None)["n0"]
    assert (odd.rack, odd.kind) == (0, None)
    strange = raylet("../../etc")
    assert list(name_nodes([strange], {}, None)) == ["box"]  # no name becomes a path


# -- the process between the backend and Ray, and the executor on a node, with a library `ray` that is made up ---


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
