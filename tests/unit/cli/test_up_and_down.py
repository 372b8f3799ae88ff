"""`plait up`, `plait down` and the keeper take turns, and none of them harms what another one started."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sample_answers import sample

pytest.importorskip("starlette", reason="needs the extra [live]")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")

from plait.cli.commands import cluster  # noqa: E402
from plait.core.errors import InputError  # noqa: E402
from plait.live.api.cluster import ClusterStatus, Losses, NetworkOfCluster, NodeRow  # noqa: E402
from plait.live.api.costs import Costs  # noqa: E402
from plait.live.client.client import Client, NotRunning  # noqa: E402
from plait.live.layout import Layout  # noqa: E402
from plait.live.service.main import only_one  # noqa: E402
from plait.live.supervisor import agent_keeper as maintain  # noqa: E402
from plait.live.supervisor import daemon, down, keeper, services  # noqa: E402
from plait.live.supervisor import up as starting  # noqa: E402
from plait.live.supervisor.options import remember, remembered, was_up  # noqa: E402
from plait.live.supervisor.services import elsewhere, process_of, start_service  # noqa: E402
from plait.live.system.procs import Patience, Process  # noqa: E402

#: Nothing here takes so long on any machine.
PATIENCE_S = 60.0


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


class Nodes:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def start(self) -> list[str]:
        self.asked.append("start")
        return ["n0"]

    def expected(self) -> int:
        return 1

    def expected_gpus(self) -> int:
        return 1

    def most_gpus(self) -> int:
        return 0

    def stop(self, jobs: bool) -> None:
        self.asked.append("stop")


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Nodes:
    found = Nodes()
    monkeypatch.setattr(starting, "open_backend", lambda layout, options: found)
    monkeypatch.setattr(down, "remembered_backend", lambda layout, patience_s: found)
    return found


@pytest.fixture
def slow_keeper(layout: Layout) -> Iterator[str]:
    """A module to be spawned as a keeper that never comes to write its own record."""
    (layout.home / "slow_keeper.py").write_text("import time\ntime.sleep(600)\n")
    environment = os.environ.get("PYTHONPATH", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(layout.home), environment]))
        yield "slow_keeper"
    daemon.stop(layout, "keeper")


def test_they_wait_for_each_other(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, leave, restarted = threading.Event(), threading.Event(), threading.Event()
    up: list[object] = []

    def other() -> None:
        with daemon.exclusive(layout):
            entered.set()
            assert leave.wait(PATIENCE_S)
            up.append(object())  # the service that it starts

    monkeypatch.setattr(keeper, "any_service_process", lambda layout: up[0] if up else None)
    monkeypatch.setattr(keeper, "restart_service", lambda layout: restarted.set())
    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert entered.wait(PATIENCE_S)
        with pytest.raises(InputError, match=r"another plait up .* end that one"), daemon.exclusive(layout, 0.0):
            pass
        monkeypatch.setattr(daemon.time, "sleep", lambda _: leave.set())  # the keeper has looked, and waits
        assert keeper.ServiceKeeper(layout).look() == []
    finally:
        leave.set()
        thread.join(PATIENCE_S)
    assert not restarted.is_set()


def test_a_second_start_leaves_alone_what_runs(layout: Layout) -> None:
    said = '{"url": "http://127.0.0.1:1", "pid": 1, "start_time": -1}'
    layout.service_file.write_text(said)
    with only_one(layout), pytest.raises(InputError, match=r"a service runs in .* already \(process \d+\)"):
        start_service(layout, {})
    assert layout.service_file.read_text() == said


def test_up_ends_nothing_if_the_service_does_not_start(
    layout: Layout, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start_service(layout: Layout, options: dict[str, Any]) -> None:
        raise InputError("a service runs already")

    (layout.home / "nodes").mkdir()
    monkeypatch.setattr(services, "start_service", start_service)
    with pytest.raises(InputError, match="a service runs already"):
        starting.start(layout, {})
    with pytest.raises(InputError, match="no option 'max-node' of nodes on this machine; there are: delay, idle, max-"):
        starting.start(layout, {"nodes": 1, "max-node": "4"})
    assert nodes.asked == []


def test_a_backend_of_another_package_may_be_strict_about_options(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    strict, served = [], []

    def start_service(layout: Layout, options: dict[str, Any]) -> None:
        served.append(options)
        raise InputError("enough")

    monkeypatch.setattr(starting, "open_backend", lambda layout, options: strict.append(options) or Nodes())
    monkeypatch.setattr(services, "start_service", start_service)
    remember(layout, {"backend": "foreign", "zone": "b", "round": 5.0, "most-gpus": 4})
    with pytest.raises(InputError, match="enough"):
        starting.start(layout, {})
    assert strict == [{"backend": "foreign", "zone": "b"}]
    assert served == [{"backend": "foreign", "zone": "b", "round": 5.0, "expect-gpus": 1, "most-gpus": 0}]


def test_a_service_that_died_comes_back_at_its_port_unless_that_is_taken(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr(services, "start_service", lambda layout, options: served.append(options))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        layout.service_file.write_text(f'{{"url": "http://127.0.0.1:{port}", "pid": 1, "start_time": -1}}')
        starting.restart_service(layout)
    starting.restart_service(layout)
    remember(layout, {"port": 1})
    starting.restart_service(layout)
    layout.service_file.write_text('{"url": "http://["}')
    remember(layout, {})
    starting.restart_service(layout)
    assert served == [{}, {"port": port}, {"port": 1}, {}]


def test_up_ends_the_keeper_that_has_the_options_of_before_and_failing_starts_it_again(
    layout: Layout, nodes: Nodes, slow_keeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, spawned = [], []

    def start_service(layout: Layout, options: dict[str, Any]) -> SimpleNamespace:
        seen.append(daemon.running(layout, "keeper"))
        raise InputError("enough")

    monkeypatch.setattr(services, "start_service", start_service)
    with pytest.raises(InputError, match="enough"):
        starting.start(layout, {"nodes": 3})  # nobody kept it
    daemon.spawn(layout, "keeper", slow_keeper)
    monkeypatch.setattr(daemon, "spawn", lambda layout, *words: spawned.append(words))
    with pytest.raises(InputError, match="enough"):
        starting.start(layout, {"nodes": 3})
    assert seen == [None, None]
    assert spawned == [("keeper", "plait.live.supervisor.keeper")]


@pytest.mark.usefixtures("no_engine")
def test_one_that_comes_back_beside_a_leader_stands_by_though_the_engine_is_away(
    layout: Layout, nodes: Nodes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[str] = []
    monkeypatch.setattr(services, "others_ready", lambda layout: True)
    monkeypatch.setattr(services, "start_standby", lambda layout, options, name: started.append(name))
    monkeypatch.setattr(services, "own_client", lambda layout: SimpleNamespace(status=lambda: sample(ClusterStatus)))
    starting.start(layout, {"db": "postgresql://h/d"})
    assert (started, nodes.asked) == (["1"], ["start"])
    assert "no head answers; the service runs" in capsys.readouterr().err
    assert remembered(layout)["db"] == "postgresql://h/d"


def test_down_ends_a_keeper_that_has_hardly_begun(layout: Layout, nodes: Nodes, slow_keeper: str) -> None:
    daemon.spawn(layout, "keeper", slow_keeper)
    child = daemon.running(layout, "keeper")
    assert child is not None
    daemon.spawn(layout, "keeper", slow_keeper)  # there is one
    assert daemon.running(layout, "keeper") == child
    down.stop(layout, stop_jobs=False)
    assert not child.alive


def test_the_environment_names_no_other_cluster(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, str]] = []

    class Backend(Nodes):
        def maintain(self, service: Client) -> list[str]:
            heard.append((service.url, service._http.headers["Authorization"]))
            return []

    monkeypatch.setenv("PLAIT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("PLAIT_TOKEN", "plait_of_another_cluster")
    monkeypatch.setattr(keeper, "service_process", lambda layout: object())
    monkeypatch.setattr(Client, "status", lambda self: sample(ClusterStatus))
    layout.service_file.write_text('{"url": "http://127.0.0.1:2"}')
    layout.token_file.write_text("plait_ours\n")
    keeper.maintain_nodes(layout, Backend())  # type: ignore[arg-type]
    maintain.Nodes(layout, Backend()).look()  # type: ignore[arg-type]
    assert heard == [("http://127.0.0.1:2", "Bearer plait_ours")] * 2


@pytest.fixture
def no_engine(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes cannot be started, as where no head of Ray answers."""

    def start() -> list[str]:
        nodes.asked.append("start")
        raise InputError("no head answers")

    monkeypatch.setattr(nodes, "start", start)


def service_of(layout: Layout) -> Process | None:
    return process_of(json.loads(layout.service_file.read_text())) if layout.service_file.exists() else None


@pytest.mark.usefixtures("no_engine")
def test_a_home_that_was_up_has_its_service_though_the_engine_is_away(
    layout: Layout, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    (layout.home / "nodes").mkdir()  # there are agents
    remember(layout, {"backend": "ray", "address": "a:1", "nodes": 2})
    try:
        with starting.start(layout, {"nodes": 2, "policy": "fifo"}) as service:
            assert service.status().policy == "fifo"
        assert "no head answers; the service runs, and its nodes are tried again" in capsys.readouterr().err
        assert nodes.asked == ["start"]
    finally:
        down.stop(layout, stop_jobs=False)


@pytest.mark.usefixtures("no_engine")
def test_other_options_that_fail_are_undone_and_agents_of_before_go_on(layout: Layout, nodes: Nodes) -> None:
    (layout.home / "nodes").mkdir()
    before = {"backend": "ray", "address": "a:1"}
    remember(layout, before)
    with pytest.raises(InputError, match="no head answers"):
        starting.start(layout, {"address": "a:2"})
    assert (nodes.asked, service_of(layout), remembered(layout)) == (["start"], None, before)


@pytest.mark.usefixtures("no_engine")
def test_a_first_start_that_fails_leaves_nothing(layout: Layout, nodes: Nodes) -> None:
    (layout.home / "nodes").mkdir()
    with pytest.raises(InputError, match="no head answers"):
        starting.start(layout, {"backend": "ray"})
    assert (nodes.asked, service_of(layout), was_up(layout)) == (["start", "stop"], None, False)


@pytest.mark.parametrize(("given", "error"), [({"address": "a:2"}, InputError("away")), ({}, KeyboardInterrupt())])
def test_a_start_after_down_that_fails_leaves_nothing_but_the_options_of_before(
    layout: Layout, nodes: Nodes, given: dict[str, Any], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> list[str]:
        nodes.asked.append("start")
        raise error

    monkeypatch.setattr(nodes, "start", start)
    (layout.home / "nodes").mkdir()
    before = {"backend": "ray", "address": "a:1"}
    remember(layout, before)
    down.stop(layout, stop_jobs=False)
    for _ in range(2):
        nodes.asked.clear()
        with pytest.raises(type(error)):
            starting.start(layout, given)
        assert (nodes.asked, service_of(layout), remembered(layout)) == (["start", "stop"], None, before)


@pytest.mark.usefixtures("no_engine")
def test_after_down_the_service_comes_though_the_engine_is_away(layout: Layout) -> None:
    remember(layout, {"backend": "ray", "address": "a:1"})
    down.stop(layout, stop_jobs=False)
    try:
        with starting.start(layout, {}) as service:  # agents of other machines may run on, as those of Slurm do
            assert service.status().nodes
    finally:
        down.stop(layout, stop_jobs=False)


def test_down_says_that_it_ended_agents_that_had_no_service(
    layout: Layout, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        agent = Process.of(child.pid)
        assert agent is not None
        layout.node("n0").mkdir(parents=True)
        (layout.node("n0") / "agent.json").write_text(json.dumps(vars(agent)))
        assert down.stop(layout, stop_jobs=False) == [f"nothing runs in {layout.home}"]
        monkeypatch.setattr(nodes, "stop", lambda jobs: (child.kill(), child.wait()))
        assert down.stop(layout, stop_jobs=False) == ["1 agent ended"]
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        (1, "1 job stopped; plait up starts it, from its checkpoint if it has one"),
        (2, "2 jobs stopped; plait up starts them, from their checkpoints where they have any"),
    ],
)
def test_down_promises_no_job_more_than_its_checkpoint(
    jobs: int, says: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = {100 + n: f"home:j-{n}:1:0" for n in range(jobs)}
    monkeypatch.setattr(down, "job_processes", lambda _: dict(marks))
    monkeypatch.setattr(down, "kill_jobs", lambda _: marks.clear())
    assert down.stop(layout, stop_jobs=True) == [says]


LOSSES = {"losses": [{"id": "j-3"}], "text": "j-3 would lose 2.0 s of work"}


@pytest.mark.parametrize(
    ("marks", "answers", "says"),
    [
        ({1: "home:j-3:1:0"}, LOSSES, "^j-3 would lose 2.0 s of work; nothing was done, because it cannot resume from"),
        ({}, LOSSES, "^j-3 would lose 2.0 s of work; nothing was done"),  # on other machines
        ({1: "home:j-3:1:0"}, {"losses": [], "text": ""}, ""),
        (
            {1: "home:j-3:1:0", 2: "home:j-5:1:0"},
            None,
            "^no service runs; nothing was done, because it is not known what j-3, j-5 would lose",
        ),
        ({}, None, ""),
    ],
)
def test_down_ends_no_job_that_would_lose_work_without_consent(
    marks: dict[int, str], answers: dict[str, Any] | None, says: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same rule and the same words as for a drain."""

    def own_client(layout: Layout) -> Any:
        if answers is None:
            raise NotRunning("no service runs")
        return contextlib.nullcontext(SimpleNamespace(losses=lambda: sample(Losses, **answers)))

    ended: list[bool] = []
    monkeypatch.setattr(services, "own_client", own_client)
    monkeypatch.setattr(down, "job_processes", lambda _: dict(marks))
    monkeypatch.setattr(cluster, "_end", lambda layout, stop_jobs: ended.append(stop_jobs))
    layout.service_file.write_text("{}")
    with pytest.raises(InputError, match=says) if says else contextlib.nullcontext():
        cluster.down(stop_jobs=True, home=str(layout.home))
    assert ended == [True] * (not says)
    cluster.down(stop_jobs=True, may_lose_work=True, home=str(layout.home))
    cluster.down(home=str(layout.home))
    assert ended[-2:] == [True, False]


def of_another_machine(layout: Layout, file: str, **more: object) -> Path:
    """What a process that lives on another machine says of itself, in a file of the home."""
    path = layout.home / file
    path.write_text(json.dumps({"url": "http://a", "pid": os.getpid(), "boot": "another", "host": "login1", **more}))
    return path


@pytest.mark.parametrize("file", ["service.json", "keeper.json", "service-1.json"])
def test_what_another_machine_keeps_is_left_to_it(layout: Layout, nodes: Nodes, file: str) -> None:
    path = of_another_machine(layout, file)
    (layout.home / "nodes").mkdir()
    for begin in (lambda: starting.start(layout, {}), lambda: down.stop(layout, stop_jobs=True)):
        with pytest.raises(InputError, match=rf"is kept on login1: .* down there; .* rm {path}"):
            begin()
    assert path.exists()
    assert nodes.asked == []


def test_a_standby_is_ended_without_nodes_of_another_machine(
    layout: Layout, nodes: Nodes, slow_keeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (layout.home / "nodes").mkdir()
    of_another_machine(layout, "service-1.json", role="leader")
    of_another_machine(layout, "service.json")
    daemon.spawn(layout, "keeper-2", slow_keeper)
    child = daemon.running(layout, "keeper-2")
    assert child is not None
    assert down.stop(layout, stop_jobs=True) == ["nodes and jobs are kept on login1; end them there with plait down"]
    assert not child.alive
    assert layout.service_file.exists()
    assert nodes.asked == []


def test_what_ran_before_this_machine_was_started_anew_is_dead(layout: Layout) -> None:
    with daemon.only_one(layout, "keeper"):
        said = json.loads((layout.home / "keeper.json").read_text())
    assert said["host"] == socket.gethostname()
    for file in ("service.json", "keeper.json"):
        of_another_machine(layout, file, host=socket.gethostname())
    assert elsewhere(layout) == {}
    assert down.stop(layout, stop_jobs=False) == [f"nothing runs in {layout.home}"]


def test_a_service_that_nobody_keeps_is_kept_again(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "any_service_process", lambda layout: SimpleNamespace(pid=7))
    layout.service_file.write_text('{"url": "http://127.0.0.1:2"}')
    layout.token_file.write_text("plait_ours\n")
    remember(layout, {"nodes": 2})
    assert starting.start(layout, {"nodes": 2}).url == "http://127.0.0.1:2"
    with pytest.raises(InputError, match=r"runs in .* already"):
        starting.start(layout, {"nodes": 3})
    with daemon.only_one(layout, "keeper"), pytest.raises(InputError, match=r"runs in .* already"):
        starting.start(layout, {})


class Answers:
    """A service of a home whose nodes are shown as they were, until their agents report."""

    url = "http://127.0.0.1:1"

    def __init__(self, *looks: list[NodeRow]) -> None:
        self.looks = list(looks)

    def nodes(self) -> list[NodeRow]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    def status(self) -> ClusterStatus:
        return sample(ClusterStatus, policy="fifo")

    def network(self) -> NetworkOfCluster:
        return sample(NetworkOfCluster, policy="fifo")


def _node(name: str, gpus: int, state: str = "ready", **more: object) -> NodeRow:
    return sample(NodeRow, id=name, gpus=gpus, state=state, **more)


def test_up_with_fewer_slots_waits_for_their_agents_and_says_what_is_there(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LOOK_S", 0.001)
    backend: Any = SimpleNamespace(
        name="local", expected=lambda: 1, list_nodes=lambda: [SimpleNamespace(name="n0", gpus=2, pid=None)]
    )
    before = [_node("n0", 8), _node("n1", 8)]
    service: Any = Answers(before, before, [_node("n0", 2), _node("n1", 8, gone=True)])
    process: Any = SimpleNamespace(poll=lambda: None, pid=1)
    starting._await_nodes(service, layout, process, backend)
    assert len(service.looks) == 1, "not before n0 has the size it was started with"
    said = starting.welcome(service, layout, "/h", 1.0)
    assert "1 node, 2 slots" in said[0]
    assert any("n1 is no longer started" in line and "plait nodes forget n1 --home /h" in line for line in said)


def test_up_with_fewer_nodes_takes_none_away_whose_jobs_would_lose_work() -> None:
    class WithLosses(Answers):
        def losses(self, jobs: Sequence[str] = (), nodes: Sequence[str] = ()) -> Losses:
            assert list(nodes) == ["n1"]
            return Losses([], self.text)

    backend: Any = SimpleNamespace(name="local", list_nodes=lambda: [SimpleNamespace(name="n0", gpus=2, pid=None)])
    service: Any = WithLosses([_node("n0", 2), _node("n1", 2), _node("n2", 2, "lost"), _node("spot", 2)])
    service.text = ""
    starting._refuse_losses(service, backend)
    service.text = "j-3 would lose 2.0 s"
    with pytest.raises(InputError, match=r"^j-3 would lose 2\.0 s; nothing was done, because n1 would be taken away"):
        starting._refuse_losses(service, backend)


def test_up_with_another_number_of_slots_names_the_jobs_that_hold_the_node(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "LOOK_S", 0.001)
    monkeypatch.setattr(starting, "Patience", lambda looks: Patience(1, lambda pid: (b"S", 0)))
    backend: Any = SimpleNamespace(
        name="local", expected=lambda: 1, list_nodes=lambda: [SimpleNamespace(name="n0", gpus=2, pid=None)]
    )
    process: Any = SimpleNamespace(poll=lambda: None, pid=1)
    service: Any = Answers([_node("n0", 8, jobs=["j-1", "j-4"])])
    with pytest.raises(InputError) as refused:
        starting._await_nodes(service, layout, process, backend)
    assert str(refused.value) == (
        "0 of 1 node joined; j-1, j-4 run on n0 with 8 slots, and it cannot have 2 before they have ended. "
        "Start it as it was with: plait up --gpus-per-node 8"
    )
    with pytest.raises(
        InputError, match=r"0 of 1 node joined; the others have done nothing for 30 s: look at .*agent\.log"
    ):
        starting._await_nodes(Answers([]), layout, process, backend)  # type: ignore[arg-type]


def test_nothing_is_said_of_nodes_where_none_was_taken_away(layout: Layout) -> None:
    service: Any = Answers([_node("n0", 2)])
    assert not any("no longer started" in line for line in starting.welcome(service, layout, None, 1.0))


def test_up_warns_of_prices_of_kinds_that_no_node_has(layout: Layout) -> None:
    service: Any = Answers([_node("n0", 2, gpu_kind="cpu-slot")])
    prices: dict[str, float] = {"a100": 2.5}
    service.status = lambda: sample(ClusterStatus, policy="fifo", prices="a100=2.5")
    service.costs = lambda limit: sample(Costs, prices=prices)
    wrong, free = (one for one in starting.welcome(service, layout, None, 1.0) if one.startswith("warning"))
    assert "a100=2.5" in wrong
    assert wrong.endswith("the nodes have cpu-slot")
    assert "cpu-slot has no price and counts as free" in free
    assert free.endswith("plait up --price a100=2.5 --price cpu-slot=PRICE")
    prices |= {"*": 0.8}
    del prices["a100"]
    assert not any("warning" in one for one in starting.welcome(service, layout, None, 1.0))


@pytest.mark.parametrize(
    ("declared", "advice"),
    [
        ("leaf-spine", "--network leaf-spine:aggregators=4096"),
        ("leaf-spine:spines=1", "--network leaf-spine:spines=1,aggregators=4096"),
        ("3 switches, 8 links", "aggregators = 4096 at its switches in the cluster file"),
    ],
)
def test_up_says_how_switches_of_a_network_get_memory(layout: Layout, declared: str, advice: str) -> None:
    service: Any = Answers([_node("n0", 2)])
    service.network = lambda: sample(NetworkOfCluster, network=declared, policy="fifo")
    (line,) = [line for line in starting.welcome(service, layout, None, 1.0) if line.startswith("network")]
    assert "no switch aggregates" in line
    assert line.endswith(advice)
