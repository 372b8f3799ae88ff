"""The contract of the live side: each daily need has the same meaning in each way in, and outlives the leader.

A row of `JOBS` is a field of jobs as the command line, a job file, the client and the page take it. All four requests
become the same job; the page of the job and its file on that page show it, `explain` names it where the job waits for
it, and the next leader knows it from the store. `CLUSTER` has what is set for a cluster, in the same ways.
"""

import html
import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner
from world import Browser, World, serving

from plait.cli.app import app
from plait.live.client.client import Client
from plait.live.fencing import Fences
from plait.live.layout import Layout
from plait.live.scheduler.engine import Engine

Login = Callable[[str], Browser]


class Need(NamedTuple):
    """A daily need: `words` of `plait submit`, the `fields` of a job file, and `stored`, where the request differs.

    `explains`: words of `plait explain`, where the need makes the job wait or end.
    """

    words: str
    fields: Mapping[str, Any]
    stored: Mapping[str, Any] = {}
    explains: str = ""


JOBS = {
    "time limit": Need("--time 2h", {"time_limit_s": 7200.0}),
    "warning": Need("--time 2h --signal 120s", {"time_limit_s": 7200.0, "signal_s": 120.0}),
    "after": Need("--after j-0", {"after": ["j-0"]}, explains="waits for j-0 (--after)"),
    "after any": Need("--after-any j-0", {"after_any": ["j-0"]}, explains="waits for j-0 (--after-any)"),
    "after fail": Need("--after-fail j-0", {"after_fail": ["j-0"]}, explains="waits for j-0 (--after-fail)"),
    "begin": Need("--begin 5h", {"begin_s": 18000.0}, explains="may start in"),
    "hold": Need("--hold", {"hold": True}, explains="held; release it with: plait release"),
    "no GPU": Need("-g 0 --cpus 2", {"gpus": 0, "cpus": 2.0}),
    "kind": Need("--gpu-kind a100", {"gpu_kinds": ["a100"]}),
    "nodes": Need("--nodes 2 --gpus-per-node 2", {"nodes": 2, "gpus_per_node": 2}, {"gpus": 4}),
    "exclusive": Need("--exclusive", {"exclusive": True}, {"gpus": 4, "exclusive": True}),
    "output": Need("--output out.{job}", {"output": "out.{job}"}),
    "tag": Need("--tag night", {"tags": ["night"]}),
    "notify": Need("--notify mail:failed", {"notify": ["mail:failed"]}),
    "retries": Need("--retries 5", {"retries": 5}),
    "array": Need("--array 0-1%1", {"array": "0-1%1"}, {"member": None}, explains="runs at most 1 job at once"),
    "matrix": Need("--matrix lr=0.1,0.01", {"matrix": {"lr": ["0.1", "0.01"]}}, {"member": None}),
}


@pytest.fixture
def url(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, kind in (("n0", "a100"), ("n1", "a100"), ("cpu", "cpu")):
        world.add(name, kind=kind)
    world.engine.context.options = replace(world.engine.context.options, channels=("mail",))
    world.submit("ann", name="first")
    world.settle()
    with serving(world) as address:
        monkeypatch.setenv("PLAIT_URL", address)
        monkeypatch.setenv("PLAIT_TOKEN", world.tokens["ann"])
        monkeypatch.setenv("PLAIT_HOME", str(tmp_path / "nowhere"))
        monkeypatch.chdir(tmp_path)
        yield address


def plait(*words: str, token: str | None = None) -> str:
    done = CliRunner().invoke(app, words, env={} if token is None else {"PLAIT_TOKEN": token})
    assert done.exit_code == 0, done.output
    return done.stdout


def request_of(world: World, number: int, need: Need) -> dict[str, Any]:
    """What the service keeps of the need."""
    request = world.engine.state.jobs[number].request
    return {name: request.get(name) for name in need.stored or need.fields}


@pytest.mark.parametrize("name", JOBS)
def test_a_need_is_the_same_in_each_way_in_and_outlives_the_leader(
    world: World, url: str, login: Login, tmp_path: Path, name: str
) -> None:
    need = JOBS[name]
    plain = {"command": ["true"], "workdir": str(tmp_path)}
    first = world.engine.state.numbers
    plait("submit", *shlex.split(need.words), "--", "true")
    (tmp_path / "job.json").write_text(json.dumps({**plain, **need.fields}))
    plait("submit", "-f", "job.json")
    with Client(url, world.tokens["ann"]) as client:
        client.submit([{**plain, **need.fields}])
        each = (world.engine.state.numbers - first) // 3
        form = {"command": "true", "workdir": str(tmp_path), "rest": json.dumps(need.fields)}
        login("ann").post("/web/submit", **form)
        world.settle()
        numbers = range(first + each - 1, world.engine.state.numbers, each)
        assert len(numbers) == 4
        kept = [request_of(world, number, need) for number in numbers]
        wanted = {**need.fields, **need.stored} if not need.stored else need.stored
        if "member" not in wanted:
            assert kept == [wanted] * 4
        else:
            assert [one["member"]["index"] for one in kept] == [1] * 4
        job = f"j-{numbers[0]}"
        page, whole = login("ann").get(f"/web/jobs/{job}"), client.job(job)
        for field, value in kept[0].items():
            shown = getattr(whole, {"member": "array"}.get(field, field))
            assert shown == value or field == "member"
            assert field == "member" or f"&#34;{field}&#34;" in page or f'"{field}"' in page, field
        assert need.explains in plait("explain", job)
        assert need.explains in (client.explain(job).summary or "")
    leader = Engine(world.store, Fences(Layout(tmp_path)), now_s=world.clock(), options=world.engine.options)
    assert [leader.state.jobs[number].request for number in numbers] == [
        world.engine.state.jobs[number].request for number in numbers
    ]
    if need.explains:
        assert need.explains in (leader.explain(numbers[0], leader.begin_s).summary or "")


class Setting(NamedTuple):
    """What an administrator sets: `words` of `plait`, the same by the client, and the request of the API.

    `page` and `shown`: the page that shows it and its words there; `explains`: words of `explain` of j-0, which runs.
    `left`: what the next leader knows of it.
    """

    words: str
    client: Callable[[Client], object]
    request: tuple[str, str, Mapping[str, Any]]
    page: str
    shown: str
    left: Callable[[Engine], object]
    explains: str = ""


CLUSTER = {
    "fair share": Setting(
        "policy set tiresias-l:fair=7d", lambda c: c.set_policy("tiresias-l:fair=7d"),
        ("PUT", "/v1/policy", {"policy": "tiresias-l:fair=7d"}), "/web/policy", "tiresias-l:fair=7d",
        lambda engine: engine.state.policy_text, "fair share (half-life 7 d 0 h): project default has used",
    ),
    "limits of a project": Setting(
        "project set default --default-time 1d --max-time 7d --max-idle 1h",
        lambda c: c.set_project("default", default_time_s=86_400.0, most_time_s=604_800.0, most_idle_s=3600.0),
        ("POST", "/v1/projects",
         {"name": "default", "default_time_s": 86_400.0, "most_time_s": 604_800.0, "most_idle_s": 3600.0}),
        "/web/", "default", lambda engine: engine.state.projects["default"],
    ),
    "reservation": Setting(
        "nodes reserve n0,n1 --project vision --from 2h --for 4h",
        lambda c: c.reserve(["n0", "n1"], "vision", for_s=14_400.0, in_s=7200.0),
        ("POST", "/v1/reservations", {"nodes": ["n0", "n1"], "project": "vision", "for_s": 14_400.0, "in_s": 7200.0}),
        "/web/nodes", "n0, n1<td>vision", lambda engine: [one.id for one in engine.reservations(engine.begin_s)],
        "n0, n1 reserved for project vision from",
    ),
    "drain": Setting(
        "nodes drain n1", lambda c: c.drain("n1"), ("POST", "/v1/nodes/n1/drain", {}), "/web/nodes/n1", "Resume",
        lambda engine: engine.state.nodes["n1"].drained,
    ),
    "requeue": Setting(
        "requeue j-0", lambda c: c.requeue("j-0"), ("POST", "/v1/jobs/j-0/requeue", {}), "/web/jobs/j-0", "requeued",
        lambda engine: engine.state.jobs[0].epoch - 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ["words", "client", "request"])
@pytest.mark.parametrize("name", CLUSTER)
def test_a_setting_is_the_same_in_each_way_and_outlives_the_leader(
    world: World, url: str, login: Login, tmp_path: Path, name: str, way: str
) -> None:
    setting, root = CLUSTER[name], world.tokens["root"]
    with Client(url, root) as client:
        client.set_project("vision", weight=2.0)
        if way == "words":
            plait(*shlex.split(setting.words), token=root)
        elif way == "client":
            setting.client(client)
        else:
            method, path, body = setting.request
            assert (
                login("root")
                .http.request(method, path, json=body, headers={"Authorization": f"Bearer {root}"})
                .is_success
            )
        world.settle(6)
        page = login("root").get(setting.page)
        assert setting.shown in page
        assert setting.explains in plait("explain", "j-0", token=root)
    leader = Engine(world.store, Fences(Layout(tmp_path)), now_s=world.clock(), options=world.engine.options)
    assert setting.left(leader) == setting.left(world.engine)
    assert setting.left(leader)


# -- a job from the form or from a program is refused when its files are not there, as `plait submit` refuses it ---


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nlp").mkdir()
    (tmp_path / "nlp" / "plain.py").touch()
    return tmp_path / "nlp"


@pytest.fixture
def near(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """A service whose only node is on its own machine: the agent's lease lies in the same home."""
    monkeypatch.setattr("plait.live.layout.SHARED_MEMORY", tmp_path / "none")
    world.add("n0", 4)
    lease: Path = Layout(world.engine.layout.home).lease("n0")
    lease.parent.mkdir(parents=True, exist_ok=True)
    lease.touch()
    return world


def refusal(browser: Browser, **form: str) -> str:
    """The error that the form shows, at submission and at What if alike."""
    shown = [browser.post(path, 422, gpus="1", **form).text for path in ("/web/submit", "/web/submit/what-if")]
    errors = [html.unescape(page.partition('role="alert">')[2].partition("</p>")[0]) for page in shown]
    assert errors[0] == errors[1]
    return errors[0]


def test_without_workdir_a_file_by_its_relative_path_is_refused_on_any_node(world: World, login: Login) -> None:
    world.add("far", 4)
    ann = login("ann")
    for command in ("python plain.py 40", "bash run.sh", "./run"):
        error = refusal(ann, command=command)
        assert "workdir" in error
        assert "without workdir the job runs in an empty folder of its own" in error
    assert "does not begin with /" in refusal(ann, command="python plain.py", workdir="nlp")
    assert world.engine.state.numbers == 0
    ann.post("/web/submit", 303, command="python /data/plain.py 40", gpus="1")  # what else may be there is not known
    ann.post("/web/submit", 303, command="python plain.py", workdir="/data/of/the/node", gpus="1")
    ann.post("/web/submit", 303, command="python plain.py", container="own/image", gpus="1")


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"command": "python plian.py"}, "no file 'plian.py' in FOLDER, where the job runs (did you mean 'plain.py'?)"),
        ({"command": "pyhton plain.py"}, "command not found: 'pyhton'; did you mean 'python"),
        ({"command": "plain.py"}, "'plain.py' is a file of FOLDER, which runs as: python plain.py"),
        ({"command": "./plain.py"}, "FOLDER/plain.py is not executable"),
        ({"command": "python plain.py", "workdir": "/nowhere/nlp"}, "the folder /nowhere/nlp is not there"),
        ({"command": "python /nowhere/plain.py"}, "no file '/nowhere/plain.py'; give the path of the file"),
        ({"command": "true", "container": "gone.sif"}, "the image gone.sif is not there"),
    ],
)
def test_a_file_that_is_not_on_this_machine_is_refused(
    near: World, login: Login, folder: Path, form: dict[str, str], words: str
) -> None:
    ann = login("ann")
    assert words.replace("FOLDER", str(folder)) in refusal(ann, **{"workdir": str(folder), **form})
    ann.post("/web/submit", 303, command="python plain.py", workdir=str(folder), gpus="1")
    near.engine.state.nodes["n0"].address = "10.0.0.7"
    if "container" not in form:
        ann.post("/web/submit", 303, gpus="1", **{"workdir": "/home/there", **form})


def test_the_api_names_the_job_and_its_field(near: World, folder: Path) -> None:
    http = TestClient(near.app)
    jobs = [{"command": ["python", name], "workdir": str(folder)} for name in ("plain.py", "gone.py")]

    def submit(body: Any) -> tuple[int, Any]:
        answer = http.post("/v1/jobs", json=body, headers={"authorization": f"Bearer {near.tokens['ann']}"})
        return answer.status_code, answer.json()

    status, answer = submit({"jobs": jobs})
    assert (status, answer["error"]["field"]) == (422, "jobs.1.command")
    assert submit(jobs[1])[1]["error"]["field"] == "command"
    assert near.engine.state.numbers == 0
    assert submit({"jobs": jobs[:1] * 2})[0] == 200


def test_the_form_names_the_folder_next_to_the_command(near: World, login: Login, folder: Path) -> None:
    ann = login("ann")
    always = ann.get("/web/submit").partition("<summary>More fields")[0]
    assert always.index('name="command"') < always.index('name="workdir"') < always.index('name="name"')
    note = always.partition('id="workdir-note">')[2].partition("</span>")[0]
    assert "default: an empty folder of the job&#39;s own, jobs/j-N" in note
    page = ann.post("/web/submit/what-if", 200, command="python plain.py", workdir=str(folder), gpus="1").text
    assert f"It would run in <code>{folder}</code>" in page
    assert "It would run in an empty folder of its own" in (
        ann.post("/web/submit/what-if", 200, command="true", gpus="1").text
    )
