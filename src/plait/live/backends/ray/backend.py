"""Agents on the nodes of a Ray cluster: one executor a node, which hosts the agent and carries nothing else.

    plait up --backend ray --address 10.0.0.1:6379

Ray schedules no job, sees no job, and may die: agents are beyond its reach, and the service talks to them itself. Ray's
reports of dead nodes only let the service accept sooner what it would find out by itself. See `bridge`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plait.core.errors import InputError, MissingExtra, PlaitError
from plait.core.words import counted
from plait.live.backends.base import COMING, DEAD, UP, BackendNode, seconds, whole
from plait.live.backends.fitting import AllocationLimits, Fitting
from plait.live.backends.host import AgentHost
from plait.live.client.client import Client, Refused
from plait.live.layout import Layout, make_private, write_secret
from plait.live.scheduler.options import ANY_SIZE
from plait.live.system import procs

# ---- requests to the head ----
#
# They go through a process that talks to Ray, `bridge`, and every wait has an end: Ray's own client waits long for a
# head that is dead, and cannot be stopped while it does.

#: Most seconds for a connection to the head, and for the bridge to come up.
PROBE_S, CONNECT_S = 3.0, 30.0


class NoHead(PlaitError):
    """The Ray cluster does not answer."""


def probe(host: str, port: int) -> None:
    """Whether anything listens there; raises NoHead if not."""
    try:
        socket.create_connection((host, port), timeout=PROBE_S).close()
    except OSError as error:
        raise NoHead(
            f"no head of a Ray cluster answers at {host}:{port} ({error}); is it up? One on this machine is "
            "started with: plait ray up"
        ) from None


class Bridge:
    """The process that talks to Ray; every wait has an end."""

    def __init__(self, address: str, namespace: str, token: str, folder: Path) -> None:
        """Started, and connected; raises NoHead if it is not in time. Its log is in the folder."""
        environment = dict(os.environ)
        if token:
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}
        with open(make_private(folder) / "bridge.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plait.live.backends.ray.bridge", address, namespace],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self._address, self._log = address, folder / "bridge.log"
        self._buffer = b""
        try:
            self._read(CONNECT_S)
        except NoHead:
            self.kill()
            raise

    def ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """The answer; raises NoHead if there is none in time, or Ray could not do it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NoHead(f"the connection to the Ray cluster at {self._address} is broken ({error})") from None
        return self._read(wait_s)

    def _read(self, wait_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd, until = self._process.stdout.fileno(), time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise NoHead(f"the Ray cluster at {self._address} did not answer in {wait_s:g} s; see {self._log}")
            part = os.read(fd, 1 << 16)
            if not part:
                raise NoHead(f"the connection to the Ray cluster at {self._address} ended; see {self._log}")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NoHead(
                f"the Ray cluster at {self._address} refused: {answer['error']}; with token authentication, give "
                "-o token-file=PATH or set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH"
            )
        return answer

    def kill(self) -> None:
        """End it at once; it has nothing to put in order."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()


# ---- nodes that Ray has lost: reported to the service until it has recorded them ----


class Gone:
    """By name, until the service does not have them any more."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}  # Ray's reasons of their deaths; empty without a reason
        self._told: set[str] = set()
        self._dead: set[str] = set()  # ids of Ray's, each of which counts once

    def note(self, found: Sequence[Mapping[str, Any]], before: Iterable[str], now: Collection[str]) -> None:
        """Compare two looks at the nodes: `found` as the bridge gives them, and the names of nodes used before and now.

        A restarted head may not know earlier nodes, which does not prove that they are dead.
        """
        dead = {item["id"]: item for item in found if not item["alive"]}
        died = [item for number, item in dead.items() if number not in self._dead]
        self._dead = set(dead)
        self._why = dict.fromkeys(before, "") | self._why
        self._why |= {name_of(item): item["why"] or "the node is dead" for item in died}
        self._why = {name: why for name, why in self._why.items() if name not in now}
        self._told &= set(self._why)

    def tell(self, service: Client) -> list[str]:
        """Report lost nodes; return messages. Raises any error of the client; the next poll reports everything again.

        Nodes that a user drained stay in the service's list: they would come back without that.
        """
        there = {node.id: node for node in service.nodes()} if self._why else {}
        said = []
        for name, why in list(self._why.items()):
            node = there.get(name)
            lost = node is not None and node.state in ("lost", "left")
            if node is None or (lost and node.drained):
                del self._why[name]
            elif lost and not node.gpus_used:
                with contextlib.suppress(Refused):  # something may still run there: retried
                    service.forget_node(name)
                    said.append(f"node {name} is gone")
            elif why and not lost and (name not in self._told or node.state == "suspect"):
                with contextlib.suppress(Refused):  # forgotten meanwhile
                    service.node_gone(
                        name, f"Ray: {why}", certain=False
                    )  # its agent may live; if suspect again: the leader may be another by now
                said += [] if name in self._told else [f"Ray reports that {name} is dead"]
                self._told.add(name)
        return said


# ---- nodes that plait uses: their names there, and how many GPUs they have ----


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NAME, SLOTS, RACK = "plait/node", "plait/slots", "plait/rack"


@dataclass(frozen=True)
class RayNode:
    """A node of Ray that plait uses. `real`: its GPUs are GPUs, not slots; `cpus`: CPUs as Ray counts them."""

    id: str
    name: str
    gpus: int
    real: bool
    rack: int
    kind: str | None
    address: str
    cpus: float = 0.0

    @property
    def executor(self) -> str:
        """Name of the actor on it; another one when the node comes back as another node of Ray."""
        return f"executor-{self.name}-{self.id[:8]}"


def name_nodes(found: Sequence[Mapping[str, Any]], taken: Mapping[str, str], slots: int | None) -> dict[str, RayNode]:
    """The living nodes that have something to give, by name.

    `found` as the bridge gives them, `taken` the names that nodes of Ray (by id) have already, `slots` of nodes that
    report neither GPUs nor slots. Of two that claim one name, the one that has it keeps it until it is dead: so a
    raylet that was started again takes over once Ray has noticed. The other one is not used: under a name made up for
    it, which the next look may give differently, there would be two agents on the same GPUs.

    >>> node = {"id": "ab12cd34ef", "alive": True, "host": "box", "address": "1.2.3.4", "gpus": 2, "kind": None}
    >>> name_nodes([node | {"labels": {}}], {}, None)["box"].executor
    'executor-box-ab12cd34'
    >>> second = node | {"id": "99zz88yy77"}
    >>> list(name_nodes([node | {"labels": {}}, second | {"labels": {"plait/node": "box-2"}}], {}, None))
    ['box-2', 'box']
    """
    named: dict[str, RayNode] = {}
    # nodes with a name already come first; then by id, so that every look gives the same
    for item in sorted(found, key=lambda item: (item["id"] not in taken, item["id"])):
        name, (gpus, real) = name_of(item), _size(item, slots)
        if name in named or not item["alive"] or gpus == 0:
            continue
        rack = str(item["labels"].get(RACK, "0"))
        kind = item["kind"] if item["kind"] and _NAME.fullmatch(item["kind"]) else None
        named[name] = RayNode(
            item["id"], name, gpus, real, int(rack) if rack.isdigit() else 0, kind, str(item["address"]),
            item.get("cpus", 0.0),
        )  # fmt: skip
    return named


def passed_over(found: Sequence[Mapping[str, Any]], named: Mapping[str, RayNode], slots: int | None) -> list[str]:
    """A sentence for each living node of `found` with resources that is not in `named` because its name is taken.

    `slots`: CPU slots per node.
    """
    used = {node.id for node in named.values()}
    return [
        f"the raylet {item['id'][:8]} at {item['address']} is not used, since another one is {name_of(item)} already; "
        "give it a name of its own: ray start --labels plait/node=NAME"
        for item in found
        if item["alive"] and item["id"] not in used and _size(item, slots)[0] > 0
    ]


def name_of(item: Mapping[str, Any]) -> str:
    """The label plait/node, otherwise the host's name: a returning node gets the same name from every caller.

    >>> name_of({"labels": {"plait/node": "n7"}, "host": "gpu box"}), name_of({"labels": {}, "host": "gpu box"})
    ('n7', 'gpu-box')
    """
    label = str(item["labels"].get(NAME) or "")
    if _NAME.fullmatch(label):
        return label
    return re.sub(r"[^A-Za-z0-9._-]", "-", str(item["host"]))[:63].lstrip("._-") or "node"


def _size(item: Mapping[str, Any], slots: int | None) -> tuple[int, bool]:
    """How many GPUs or slots; whether they are GPUs. A label of 0 keeps plait away from a node."""
    label = str(item["labels"].get(SLOTS, ""))
    if label.isdigit():
        return int(label), False
    if item["gpus"] > 0:
        return int(item["gpus"]), True
    return slots or 0, False


#: Most seconds for an answer, for executors at the start.
CALL_S, START_S = 10.0, 90.0
#: After a failure the head is looked for again so often.
AGAIN_S = 3.0


class RayBackend:
    """Brings agents to the nodes of a Ray cluster by executors, and takes them away."""

    name = "ray"

    def __init__(self, layout: Layout, options: Mapping[str, Any], stop_grace_s: float) -> None:
        """Nothing is started yet. Options: address (host:port), gpus-per-node, token-file, max-nodes, idle.

        With `max-nodes` Ray's autoscaler is requested to have as many nodes as jobs want, from 1 on; a node is given
        back after `idle` seconds without a job.

        Raises InputError for wrong options, MissingExtra without ray.
        """
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "ray", "the backend ray")
        self.layout, self.stop_grace_s = layout, stop_grace_s
        self.address = str(options.get("address") or "")
        self.host, _, port = self.address.rpartition(":")
        if not self.host or not port.isdigit():
            raise InputError(
                f"--address {self.address!r} is not where the head of a Ray cluster is; write host:port, "
                "for example --address 10.0.0.1:6379, or start one here with: plait ray up"
            )
        self.port = int(port)
        self.slots = whole(options, "gpus-per-node")
        own = layout.home / "ray" / "token"
        self.token = str(options.get("token-file") or (own if own.exists() else ""))
        self.namespace = "plait-" + hashlib.sha256(str(layout.home).encode()).hexdigest()[:12]
        self._bridge: Bridge | None = None
        self._nodes: dict[str, RayNode] = {}
        self._gone = Gone()
        self._passed_over: list[str] = []
        self._agents: dict[str, int | None] = {}
        self._problems: dict[str, str] = {}
        self._attached: set[str] = set()  # nodes whose executor has answered since the head did
        self._again_s = 0.0
        self._trouble = ""
        most, idle_s = whole(options, "max-nodes"), seconds(options, "idle", AllocationLimits.idle_s)
        if most is not None and most < 1:
            raise InputError(f"max-nodes={most} of --backend ray; needs at least 1")
        self._limits = None if most is None else AllocationLimits(1, 1, most, idle_s)
        self._fitting, self._numbers = Fitting(layout, time.monotonic, " to Ray"), dict[str, int]()
        self._given_back: dict[str, str] = {}  # names by id, of nodes that Ray still has
        self._requested: list[dict[str, float]] = []

    @property
    def word_file(self) -> Path:
        """Holds the word by which executors know that they see the home folder, and that they are wanted."""
        return self.layout.home / "ray" / "word"

    def start(self) -> list[str]:
        """Executors and agents on all nodes that are usable; raises InputError if the cluster cannot be used."""
        make_private(self.word_file.parent)
        if not self.word_file.exists():
            write_secret(self.word_file, secrets.token_hex(16))
        started: list[str] = []
        until = time.monotonic() + START_S
        try:
            while True:
                started += self._look()
                if self._nodes and set(self._nodes) <= {n for n, pid in self._agents.items() if pid}:
                    print(*self._passed_over, sep="\n", end="\n" * bool(self._passed_over), file=sys.stderr)
                    return sorted(set(started))
                problem = next((f"node {n}: {why}" for n, why in sorted(self._problems.items())), None)
                if problem and time.monotonic() > until - START_S + CALL_S:
                    raise InputError(f"the Ray cluster at {self.address} cannot be used: {problem}")
                if not self._nodes and (self._limits is None or time.monotonic() > until):
                    raise InputError(
                        f"the Ray cluster at {self.address} has no node with GPUs or a label plait/slots; give "
                        "--gpus-per-node, or start its nodes with: ray start --labels plait/slots=4"
                    )
                if time.monotonic() > until:
                    late = ", ".join(sorted(n for n in self._nodes if not self._agents.get(n)))
                    raise InputError(f"no executor on {late} in {START_S:g} s; look at it with: ray list actors")
                time.sleep(0.1)
        except NoHead as error:
            raise InputError(str(error)) from None

    def maintain(self, service: Client) -> list[str]:
        """Check the cluster once. Without a head nothing is done, and jobs continue; its loss and return are noted."""
        if time.monotonic() < self._again_s:
            return []
        attached, passed_over = self._attached, self._passed_over
        try:
            started = self._look()
        except NoHead as error:
            self._again_s, self._attached = time.monotonic() + AGAIN_S, set()
            known, self._trouble = self._trouble, str(error)
            return [] if known else [f"{error}; jobs go on, and nodes are attached again when it is back"]
        said = [f"the agent of {name} was started" for name in started]
        if self._trouble:
            self._trouble = ""
            said.append(f"the head at {self.address} is back")  # its nodes come one by one
        if new := sorted(self._attached - attached):
            said.append(f"attached: {', '.join(new)}")
        said += [line for line in self._passed_over if line not in passed_over]
        said += self._gone.tell(service)
        return said + self._fit(service, self._limits) if self._limits and self._nodes else said

    def _fit(self, service: Client, limits: AllocationLimits) -> list[str]:
        """Have Ray keep as many nodes as jobs want, and leave those that they no longer want.

        Ray ends nodes that nobody uses, and an executor is use: so a node is given back by ending its executor.
        """
        rows, said = {row.id: row for row in service.nodes()}, list[str]()
        going = {name for name in rows if self._fitting.mark(name).exists()}
        self._fitting.forget(service, going - self._nodes.keys())
        largest = max(self._nodes.values(), key=lambda node: node.gpus)
        names = {-self._numbers.setdefault(name, len(self._numbers)): name for name in self._nodes}
        held = [self._fitting.held(number, rows.get(name)) for number, name in names.items()]
        moves = self._fitting.moves(service.status().wanted, held, replace(limits, gpus=largest.gpus))
        for number in moves.drain:
            said += self._fitting.drain(service, names[number])
        for node in [self._nodes[names[number]] for number in moves.release if names[number] in going]:
            self._tell([{**self._order(node), "do": "end", "jobs": True}], True)
            self._ask({"do": "remove", "executors": [node.executor]}, CALL_S)
            self._given_back[node.id] = node.name
            said.append(f"node {node.name} is given back to Ray")
        for node_id in [one for one, name in self._given_back.items() if name not in rows][: moves.submit]:
            said.append(f"node {self._given_back.pop(node_id)} is taken again")
        count = sum(not self._fitting.mark(name).exists() for name in self._nodes) + moves.submit
        requested = [{"GPU": float(largest.gpus)} if largest.real else {"CPU": largest.cpus}] * count
        if requested != self._requested:
            self._ask({"do": "autoscale", "bundles": requested}, CALL_S)
            self._requested = requested
            said.append(f"Ray is to have {counted(count, 'node')}")
        return said

    def list_nodes(self) -> list[BackendNode]:
        """Nodes as Ray knows them, and what keeps them from work."""
        with contextlib.suppress(NoHead):
            self._look()
        return [
            BackendNode(
                name,
                node.gpus,
                DEAD if self._trouble else UP if self._agents.get(name) else COMING,
                self._trouble or self._problems.get(name, node.address),
                self._agents.get(name),
            )
            for name, node in sorted(self._nodes.items())
        ]

    def expected_gpus(self) -> int:
        """Ray nodes may come and go."""
        return 0

    def expected(self) -> int:
        """Nodes that were found at the last look."""
        return len(self._nodes)

    def most_gpus(self) -> int:
        """Anybody may add nodes to a Ray cluster, its autoscaler too, whatever `max-nodes` is."""
        return ANY_SIZE

    def stop(self, jobs: bool) -> None:
        """End agents and executors. Raises PlaitError if some are on machines that cannot be reached."""
        problem, asked, ended = "", set[str](), set[str]()
        try:
            self._find()
            asked = set(self._nodes)
            orders = [{**self._order(node), "do": "end", "jobs": jobs} for node in self._nodes.values()]
            ended = {name for name, answer in self._tell(orders, jobs).items() if answer.get("agent", 0) is None}
            # executors elsewhere that have not ended their agent stay, for the next backend that sends orders
            done = [node.executor for name, node in self._nodes.items() if name in ended or self._on_this_machine(name)]
            self._ask({"do": "remove", "executors": done}, CALL_S)
        except NoHead as error:
            problem = str(error)
        finally:
            self.word_file.unlink(missing_ok=True)  # executors that did not get the request stop keeping their agents
            self.close()
        self._end_here(jobs)
        # Nodes whose agent still runs elsewhere: it has a record, and ignored the request or holds its lock
        host = AgentHost(self.layout, self.stop_grace_s)
        names = [n for n in self._named() if n not in ended and (self.layout.node(n) / "agent.json").exists()]
        left = [n for n in names if not self._on_this_machine(n) and (n in asked or host.runs(n))]
        if left:
            problem = problem or "Ray reaches no executor that ends them"
            raise PlaitError(
                f"{problem}; the agents of {', '.join(left)} run on: end them there, or by plait down when "
                "Ray reaches them again"
            )

    def close(self) -> None:
        """Let go of the cluster; what runs there runs on."""
        if self._bridge is not None:
            self._bridge.kill()
            self._bridge = None

    # ---- one look ----

    def _find(self) -> None:
        found = self._ask({"do": "nodes"}, CALL_S)["nodes"]
        there = {item["id"] for item in found if item["alive"]}
        self._given_back = {number: name for number, name in self._given_back.items() if number in there}
        found = [item for item in found if item["id"] not in self._given_back]
        taken = {node.id: node.name for node in self._nodes.values()}
        self._nodes = name_nodes(found, taken, self.slots)
        self._gone.note(found, taken.values(), self._nodes)
        self._passed_over = passed_over(found, self._nodes, self.slots)
        self._agents = {name: pid for name, pid in self._agents.items() if name in self._nodes}

    def _look(self) -> list[str]:
        """Find nodes, keep an executor on each; the names of nodes whose agent was started now."""
        self._find()
        answers = self._tell([self._order(node) for node in self._nodes.values()], False)
        self._problems = {name: answer["problem"] for name, answer in answers.items() if answer.get("problem")}
        self._agents |= {name: answer.get("agent") for name, answer in answers.items() if not answer.get("late")}
        late = {name for name, answer in answers.items() if answer.get("late")}
        self._attached = (self._attached & late) | (set(answers) - late - set(self._problems))
        return [name for name, answer in answers.items() if answer.get("started")]

    def _order(self, node: RayNode) -> dict[str, Any]:
        try:
            word = self.word_file.read_text(encoding="ascii").strip()
        except OSError:
            word = ""
        return {
            "do": "keep", "home": str(self.layout.home), "node": node.name, "id": node.id, "executor": node.executor,
            "gpus": node.gpus, "real": node.real, "rack": node.rack, "gpu_kind": node.kind, "word": word,
            "word_file": str(self.word_file), "grace_s": self.stop_grace_s,
        }  # fmt: skip

    def _tell(self, orders: Sequence[dict[str, Any]], jobs: bool) -> dict[str, Any]:
        if not orders:
            return {}
        ending = orders[0]["do"] == "end"
        wait_s = (self.stop_grace_s if jobs else 0.0) + 20.0 if ending else 2.0
        answer = self._ask({"do": "tell", "orders": list(orders), "wait_s": wait_s}, wait_s + CALL_S)
        answers: dict[str, Any] = answer["answers"]
        return answers

    def _ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """An answer of the bridge, which is started if there is none and killed if it does not answer."""
        try:
            probe(self.host, self.port)  # Ray's client would wait long for a head that is dead
            if self._bridge is None:
                self._bridge = Bridge(self.address, self.namespace, self.token, self.layout.home / "ray")
            return self._bridge.ask(request, wait_s)
        except NoHead:
            self.close()
            raise

    # ---- agents of this machine, where Ray does not help ----

    def _on_this_machine(self, name: str) -> bool:
        record = procs.read_json(self.layout.node(name) / "agent.json") or {}
        return record.get("boot") == procs.boot_id()

    def _end_here(self, jobs: bool) -> None:
        """Agents on this machine that no executor ended: of a dead raylet, of a head that is gone."""
        host = AgentHost(self.layout, self.stop_grace_s, detached=True)
        mine = [n for n in self._named() if self._on_this_machine(n) and (host.runs(n) or (jobs and host.has_jobs(n)))]
        host.end(mine, jobs, lambda name: {"gpus": 1})

    def _named(self) -> list[str]:
        """All nodes that ever had an agent, of dead raylets and of a head that is gone too."""
        folder = self.layout.home / "nodes"
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
