"""A live run as a Chrome trace, and the page about incidents: both from the log of a real engine."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from jsonschema import Draft202012Validator
from mcp import Client as Host
from mcp import StdioServerParameters, stdio_client
from test_service_api import Service
from test_service_api import service as service  # a fixture

from documented_code import PAGES, blocks
from plait.cli import main
from plait.cli.commands import trace as command
from plait.cli.mcp.server import SKILL_URI, Asking, make_server
from plait.cli.mcp.skill import skill_text
from plait.live.api.jobs import LogPart
from plait.live.client.client import Client
from plait.live.protocol.wire import ENDED, PREEMPTED, RUNNING, Seen
from plait.live.store import Store

Event = dict[str, Any]


def client(service: Service, who: str) -> Client:
    def forward(request: httpx.Request) -> httpx.Response:
        given = {"params": dict(request.url.params), "content": request.content, "headers": dict(request.headers)}
        answer = service.http.request(request.method, request.url.path, **given)
        return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))

    return Client("http://a:1", service.tokens[who], transport=httpx.MockTransport(forward))


def settled(service: Service, seen: dict[tuple[int, int, int], Seen], until: str, job: int) -> None:
    """The node does what it is asked until the job is in this state."""
    for _ in range(200):
        told = service.sync(*seen.values())
        listed = {(run["job"], run["epoch"], run["rank"]): run for run in told["attempts"]}
        for key in [key for key in seen if key not in listed]:
            del seen[key]
        for key, run in listed.items():
            old = seen.setdefault(key, Seen(*key, RUNNING, pid=7, first_step_s=0.001))
            if run.get("stop") and old.state != ENDED:
                seen[key] = Seen(*key, ENDED, exit_code=PREEMPTED)
        if service.ask("GET", f"/v1/jobs/j-{job}").json()["state"] == until:
            return
    raise AssertionError(f"j-{job} is not {until}: {service.ask('GET', f'/v1/jobs/j-{job}').json()}")


@pytest.fixture
def ran(service: Service) -> Service:
    """j-0 was sent back once and finished, j-1 of another user was cancelled while it waited, j-2 runs."""
    seen: dict[tuple[int, int, int], Seen] = {}
    service.submit("ann", name="first", gpus=2)
    settled(service, seen, "running", 0)
    service.submit("ben", name="second", gpus=2)
    service.ask("POST", "/v1/jobs/j-0/requeue", "ann", json={"may_lose_work": True})
    service.ask("DELETE", "/v1/jobs/j-1", "ben")
    for _ in range(400):
        settled(service, seen, "running", 0)
        if service.ask("GET", "/v1/jobs/j-0").json()["epoch"] == 2:
            break
    for rank in (0, 1):
        seen[0, 2, rank] = Seen(0, 2, rank, ENDED, exit_code=0)
    settled(service, seen, "finished", 0)
    service.submit("ann", name="third")
    settled(service, seen, "running", 2)
    return service


def export(monkeypatch: pytest.MonkeyPatch, service: Service, who: str, *words: str) -> list[Event]:
    monkeypatch.setattr(command, "client", lambda home: client(service, who))
    with pytest.raises(SystemExit) as left:
        main(["trace", "export", *words])
    assert not left.value.code
    found: list[Event] = json.loads(Path(words[0]).read_text(encoding="utf-8"))["traceEvents"]
    return found


def test_who_held_gpus_and_who_waited_is_there(ran: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events = export(monkeypatch, ran, "eve", str(tmp_path / "run.json"))
    spans = [(e["name"], e["args"]["gpus"], e["args"]["then"]) for e in events if e["ph"] == "X"]
    # j-2 starts with the last entry of the log, so nothing is known of it yet
    assert sorted(spans) == [*[("j-0", 2, "finished")] * 2, *[("j-0", 2, "stopped")] * 2]
    names = {e["args"].get("name") for e in events if e["ph"] == "M"}
    assert names >= {"queue", "node n0", "GPU 0"}
    assert [e["args"]["jobs"] for e in events if e["ph"] == "C"][-1] == 0
    with client(ran, "eve") as asked:
        entries = list(asked.all_events())
    (tmp_path / "log.json").write_text(json.dumps(entries), encoding="utf-8")
    found = export(monkeypatch, ran, "eve", str(tmp_path / "again.json"), "--log", str(tmp_path / "log.json"))
    assert [e for e in found if e["ph"] == "M"] == [e for e in events if e["ph"] == "M"]


def test_the_story_of_a_lost_node_and_the_replay_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = next(page for page in PAGES if page.stem == "debug-an-incident")
    look, story = [block.text for block in blocks(page) if block.language == "python"]
    names: dict[str, Any] = {}
    exec(story, names)
    names["test_a_job_survives_its_node"](tmp_path)
    monkeypatch.chdir(tmp_path)
    store = Store.open(Path("plait.db"))
    store.backup("incident.db")
    store.close()
    exec(look, {})
    assert capsys.readouterr().out.startswith("3.25 [0]")


# -- tools for coding agents, asked by the protocol's own client over a real engine and store -------------


CHANGING = {"submit_job", "clone_job", "update_job", "requeue_job", "cancel_job"}


class Agent:
    """A coding agent with the token of `who`: calls tools, and gets what they answer."""

    def __init__(self, service: Service, who: str = "ann", *, here: bool = False, read_only: bool = False) -> None:
        def forward(request: httpx.Request) -> httpx.Response:
            given = {"params": dict(request.url.params), "content": request.content, "headers": dict(request.headers)}
            answer = service.http.request(request.method, request.url.path, **given)
            return httpx.Response(answer.status_code, content=answer.content, headers=dict(answer.headers))

        def connect() -> Client:
            return Client("http://a:1", service.tokens[who], transport=httpx.MockTransport(forward))

        self.server = make_server(Asking(connect, lambda: here), read_only=read_only)

    def run(self, ask: Callable[[Host], Any]) -> Any:
        async def within() -> Any:
            async with Host(self.server) as host:
                return await ask(host)

        return anyio.run(within)

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        answer = self.run(lambda host: host.call_tool(tool, arguments))
        assert not answer.is_error, answer.content[0].text
        found: dict[str, Any] = answer.structured_content
        return found

    def refused(self, tool: str, **arguments: Any) -> str:
        answer = self.run(lambda host: host.call_tool(tool, arguments))
        assert answer.is_error, answer
        return str(answer.content[0].text)


@pytest.fixture
def ann(service: Service) -> Agent:
    return Agent(service)


JOB = {"command": ["true"], "name": "first"}


def test_tools_say_what_they_take_and_whether_they_change_anything(ann: Agent) -> None:
    tools = {tool.name: tool for tool in ann.run(lambda host: host.list_tools()).tools}
    assert {name for name, tool in tools.items() if not tool.annotations.read_only_hint} == CHANGING
    assert {name for name, tool in tools.items() if tool.annotations.destructive_hint} == {
        "update_job", "requeue_job", "cancel_job"
    }  # fmt: skip
    for name, tool in tools.items():
        assert tool.description.split("\n")[0].rstrip().endswith((".", "}.")), name
        Draft202012Validator.check_schema(tool.input_schema)
        for argument, schema in tool.input_schema["properties"].items():
            assert schema.get("description"), f"{name}: {argument} has no description"
    fields = tools["submit_job"].input_schema["properties"]["job"]["anyOf"][0]["properties"]
    assert fields["gpus"]["description"].startswith("Number of GPUs")


def test_of_a_server_that_only_reads_nothing_changes(service: Service) -> None:
    agent = Agent(service, "admin", read_only=True)
    assert not CHANGING & {tool.name for tool in agent.run(lambda host: host.list_tools()).tools}
    assert "Unknown tool" in agent.refused("cancel_job", job="j-0")


def test_a_job_from_submission_to_its_end(service: Service, ann: Agent, tmp_path: Path) -> None:
    assert "no node has joined yet" in ann.refused("what_if_submit", job=JOB)
    service.sync()
    assert ann.call("what_if_submit", job=JOB)["jobs"][0]["blocked_by"]["kind"]
    fields = {**JOB, "workdir": str(tmp_path), "python": sys.executable}
    job = ann.call("submit_job", job=fields, key="once")["jobs"][0]["id"]
    assert ann.call("submit_job", job=fields, key="once")["jobs"][0]["id"] == job
    assert service.sync()
    shown = ann.call("show_job", job=job)
    assert shown["would_lose"] == ""
    assert (shown["user"], shown["name"]) == ("ann", "first")
    assert ann.call("list_jobs", user="ann")["jobs"][0]["id"] == job
    assert ann.call("list_queue")["total"] == 1
    assert ann.call("explain_job", job=job)["summary"]
    assert set(ann.call("forecast_job", job=job)) >= {"id", "state", "summary", "forecast"}
    assert ann.call("wait_for_job", job=job, timeout_s=0.01)["ended"] is False
    assert ann.call("update_job", job=job, priority=3)["id"] == job
    assert next(step["event"]["type"] for step in ann.call("job_events", job=job)["events"]) == "Requested"
    assert ann.call("job_usage", job=job)["id"] == job
    again = ann.call("clone_job", job=job, gpus=2)["id"]
    assert ann.call("what_if_queue", nodes="+1x2")["counts"]
    assert ann.call("cancel_job", job=again)["id"] == again
    ended = ann.call("wait_for_job", job=again, timeout_s=5)
    assert (ended["ended"], ended["state"]) == (True, "cancelled")
    status = ann.call("cluster_status")
    assert (status["me"]["role"], status["gpus"]["total"]) == ("user", 2)
    assert [node["id"] for node in ann.call("list_nodes")["nodes"]] == ["n0"]


def test_a_job_file_is_submitted_whole_or_not_at_all(ann: Agent) -> None:
    text = "jobs:\n  - command: [a, b]\n    name: one\n  - command: [c]\n    workdir: /\n"
    assert len(ann.call("submit_job", job_file=text)["jobs"]) == 2
    shown = {job["name"]: job for job in ann.call("list_jobs")["jobs"]}
    assert shown["one"]["command"] == ["a", "b"]
    assert "job_file: job 2" in ann.refused("submit_job", job_file=text.replace("[c]", "[c]\n    gpus: -1")).replace(
        "job_file.yaml", "job_file"
    )
    assert "did you mean 'gpus'" in ann.refused("submit_job", job={**JOB, "gpu": 2})
    assert "one of them, not both" in ann.refused("submit_job", job=JOB, job_file=text)
    assert "one of them, not both" in ann.refused("submit_job")
    assert len(ann.call("list_jobs")["jobs"]) == 2


def test_a_program_that_is_not_there_is_refused_where_jobs_run_here(service: Service) -> None:
    assert "command not found: 'pythn'" in Agent(service, here=True).refused("submit_job", job={"command": ["pythn"]})
    assert Agent(service).call("submit_job", job={"command": ["pythn"]})["jobs"]


def test_logs_are_read_from_their_end_and_searched(
    service: Service, ann: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = service.submit(gpus=1)
    assert ann.call("read_log", job=job)["size"] == 0
    text = "".join(f"step {i} loss {1000 - i}\n" for i in range(1000)) + "\x1b[31mCUDA error: out\x1b[0m"

    def logs(self: Client, job: str, *, rank: int, offset: int = 0, limit: int, epoch: int | None) -> LogPart:
        part = text.encode()[offset : offset + min(limit, 7000)]
        following = offset + len(part)
        return LogPart(text=part.decode(), offset=offset, next=following, size=len(text), epoch=1, rank=rank)

    monkeypatch.setattr(Client, "logs", logs)
    end = ann.call("read_log", job=job, limit=100)
    assert end["text"].endswith("loss 1\nCUDA error: out")
    assert ann.call("read_log", job=job, offset=0, limit=12)["text"] == "step 0 loss "
    found = ann.call("search_log", job=job, pattern="cuda ERROR", context=1)
    assert found["matches"] == [{"line": 1001, "text": "CUDA error: out", "before": ["step 999 loss 1"]}]
    assert (found["found"], found["next"], found["size"]) == (1, len(text), len(text))
    many = ann.call("search_log", job=job, pattern=r"step \d+ ", limit=2)
    assert many["found"] == 1000
    assert [match["line"] for match in many["matches"]] == [999, 1000]
    assert "is not a regular expression" in ann.refused("search_log", job=job, pattern="(")


def test_roles_are_those_of_the_service(service: Service) -> None:
    job = service.submit("ann")
    eve, ben = Agent(service, "eve"), Agent(service, "ben")
    assert eve.call("show_job", job=job)["id"] == job
    assert eve.call("cluster_status")["me"]["role"] == "viewer"
    for tool, arguments in (("submit_job", {"job": JOB}), ("cancel_job", {"job": job}), ("clone_job", {"job": job})):
        assert "viewer" in eve.refused(tool, **arguments)
    assert "is not yours to change" in ben.refused("cancel_job", job=job)
    assert Agent(service, "admin").call("cancel_job", job=job)["state"] == "cancelled"


@pytest.mark.parametrize("tool", ["show_job", "explain_job", "forecast_job", "read_log", "cancel_job", "job_events"])
def test_a_job_that_is_not_there(ann: Agent, tool: str) -> None:
    assert "j-99" in ann.refused(tool, job="j-99")


def test_arguments_that_cannot_be(ann: Agent) -> None:
    assert "limit" in ann.refused("list_jobs", limit=0)
    assert "nothing is to change" in ann.refused("update_job", job="j-0")
    assert ann.refused("what_if_queue", policy="srfs")


def test_a_service_that_is_down_or_was_never_started(tmp_path: Path) -> None:
    for connect, says in (
        (
            lambda: Client("http://127.0.0.1:9", "x"),
            "no service answers at http://127.0.0.1:9; start it with: plait up",
        ),
        (lambda: Client.at(str(tmp_path)), "no service runs in"),
    ):
        agent = Agent.__new__(Agent)
        agent.server = make_server(Asking(connect, lambda: False))
        assert says in agent.refused("list_jobs")


def test_the_command_speaks_the_protocol_and_offers_the_skill(tmp_path: Path) -> None:
    """As hosts start it: a process that is spoken to on its standard input and output."""

    async def talk() -> tuple[str, str]:
        command = ["-c", "from plait.cli import main; main()", "mcp", "--home", str(tmp_path)]
        async with Host(stdio_client(StdioServerParameters(command=sys.executable, args=command))) as host:
            answer = await host.call_tool("list_jobs", {})
            skill = await host.read_resource(SKILL_URI)
        assert answer.is_error
        return answer.content[0].text, skill.contents[0].text  # type: ignore[union-attr]

    said, skill = anyio.run(talk)
    assert f"no service runs in {tmp_path}; start it with: plait up" in said
    assert skill == skill_text()
