"""Each page and action through the API's test client: what they say, to whom, and that names from outside stay text."""

import html
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient
from world import HOSTILE, Browser, World

from plait.dashboard import figures
from plait.dashboard.api_client import CODE_S, MOST, SESSION_S, Refused, Session, Sessions
from plait.dashboard.figures import Recent, holders, hue, neighbours, of_node, reasons, recent, timeline
from plait.dashboard.pages import cluster as pages
from plait.dashboard.web import page_of
from plait.live.protocol.wire import Profile, Reply
from plait.live.service.logs import NoAnswer
from plait.live.service.serving import load_pages
from plait.outlook.queue import foresee

Login = Callable[[str], Browser]


class Tags(HTMLParser):
    """All tags with their attributes; unclosed elements that HTML wants closed are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture
def cluster(world: World) -> World:
    """Two nodes; j-0 and j-1 run (GPU 1 idle), j-2 with a hostile name runs, j-3 waits, j-4 failed."""
    world.add("n0", 4, {1: 0.01})
    world.progress[0] = {
        "steps": 50.0, "step_s": 0.5, "stage_s": [0.1, 0.1, 0.2, 0.1], "profile": Profile([0.1, 0.1, 0.2, 0.1], 0.5, 9),
        "checkpoint_steps": 40.0, "checkpoint_age_s": 12.0,
    }  # fmt: skip
    failing = world.submit("ben", name="short", retries=0)
    world.settle(2)
    assert failing == "j-0"
    world.agents["n0"].end(0, 3, reason="exit code 3; last lines of the log: <b>KeyError</b>")
    world.settle(3)
    world.submit("ann", name="long", gpus=2, iterations=100, model="gpt")
    world.submit("ann", name=HOSTILE, model=HOSTILE, command=["sh", "-c", HOSTILE], gpus=2, retries=0)
    world.submit("ben", name="large", gpus=4)
    world.settle(4)
    return world


def test_the_first_page_answers_what_is_asked_first(cluster: World, login: Login) -> None:
    text = html.unescape(login("root").get("/web/"))
    assert "4<small> of 4</small>" in text
    assert "1 held but idle" in text
    assert "needs 4 GPUs" in text
    assert "last: j-0" in text
    assert "KeyError" in text
    assert "fifo-backfill" in text
    assert "it started 3 attempts" in text
    assert "by j-1, j-2" in text
    assert "100 % of them" not in text  # one reason: its share says nothing


def test_the_job_that_failed_last_is_named_whatever_its_number(world: World, login: Login) -> None:
    world.add("n0", 4, {})
    jobs = [world.submit("ann", name=f"short{i}", retries=0) for i in range(2)]
    world.settle(2)
    for number in (1, 0):
        world.agents["n0"].end(number, 3, reason="exit code 3")
        world.settle(3)
    assert f"last: {jobs[0]}," in login("ann").get("/web/")


def test_pages_show_for_which_job_gpus_are_held(cluster: World, login: Login) -> None:
    cluster.agents["n0"].end(1)
    cluster.submit("ben", name="small")
    cluster.settle(4)
    root = login("root")
    assert "2 reserved" in root.get("/web/")
    assert "2 held for j-3" in root.get("/web/nodes")
    held = 'free</span><span class="dim">, held for</span> <a class="id" href="/web/jobs/j-3">'
    assert held in root.get("/web/nodes/n0")
    assert "waits until j-2 has ended or may be stopped (2 GPUs reserved for it: n0:" in root.get("/web/jobs/j-3")
    end_s = time.monotonic() + 60  # a decision may be compiled first, and a new job has no reason before the next one
    while "free ones are held for j-3" not in (page := root.get("/web/jobs/j-4")):
        assert time.monotonic() < end_s, html.unescape(page)
        cluster.settle(1)


def test_users_see_of_others_what_the_api_shows_them(cluster: World, login: Login) -> None:
    ben, eve = login("ben"), login("eve")
    overview = ben.get("/web/")
    assert ">long<" not in overview
    assert "KeyError" in overview  # his own job
    assert "/web/events" not in overview
    ben.get("/web/jobs/j-1", 403)
    ben.get("/web/events", 403)
    assert ">long<" in eve.get("/web/jobs")
    assert ">long<" not in ben.get("/web/jobs")
    eve.get("/web/jobs/j-1")
    eve.get("/web/events")


@pytest.mark.parametrize(
    "path",
    ["/", "/jobs", "/jobs?q=%3Cscript%3E&user=%22%3E%3Cb%3E&state=", "/jobs/j-2", "/queue", "/nodes", "/nodes/n0",
     "/events", "/events?q=%3Cscript%3E&kind=%22", "/submit?from=j-2", "/policy", "/jobs/%3Cscript%3E",
     "/nodes/%3Cscript%3E"],
)  # fmt: skip
def test_names_from_outside_stay_text(cluster: World, login: Login, path: str) -> None:
    root = login("root")
    for headers in ({}, {"HX-Request": "true"}):
        answer = root.ask("GET", f"/web{path}", headers)
        assert answer.status_code == (404 if path.endswith("%3E") else 200)
        found = Tags(answer.text)
        for tag, attributes in found.tags:
            assert not any(name.startswith("on") or name == "style" for name in attributes), (tag, attributes)
            assert tag not in ("style", "b", "iframe")
            if tag == "script":
                assert (attributes.get("src") or "").startswith("/web/assets/")
        assert ("<html" in answer.text) == (not headers)
    assert "{{7*7}}" in html.unescape(root.get("/web/jobs/j-2"))


def test_a_job_says_how_it_runs_waits_and_ended(cluster: World, login: Login) -> None:
    root = login("root")
    running = html.unescape(root.get("/web/jobs/j-1"))
    assert "n0 GPU 0" in running
    assert "for itself" in running
    assert '"command"' in running
    waiting = html.unescape(root.get("/web/jobs/j-3"))
    assert "Ahead of it" in waiting
    assert "Place in the queue" in waiting
    over = html.unescape(root.get("/web/jobs/j-0"))
    assert "KeyError" in over
    assert "Cancel" not in over
    assert root.get("/web/jobs/j-99", 404)


def test_a_job_is_cancelled_by_its_owner_and_by_nobody_else(cluster: World, login: Login) -> None:
    ben, eve, ann = login("ben"), login("eve"), login("ann")
    ben.post("/web/jobs/j-1/cancel", 403)
    eve.post("/web/jobs/j-1/cancel", 403)
    assert "/cancel" not in eve.get("/web/jobs/j-1")
    assert ann.post("/web/jobs/j-1/cancel").headers["location"] == "/web/jobs/j-1"
    cluster.settle()
    assert cluster.store.job(1).row.state == "cancelled"
    assert "Submit again" in ann.get("/web/jobs/j-1")


def test_an_array_is_one_row_that_opens_and_is_held_as_one(cluster: World, login: Login) -> None:
    ann = login("ann")
    first = int(cluster.submit(array="0-2%1", tags=["sweep"], gpus=4).removeprefix("j-"))
    cluster.settle()
    page = ann.get("/web/jobs")
    assert f'href="/web/jobs/a-{first}"' in page
    assert f'href="/web/jobs/j-{first}"' not in page
    assert f"Jobs of a-{first}" in ann.get(f"/web/jobs?array=a-{first}")
    assert f'href="/web/jobs/j-{first + 2}"' in ann.get(f"/web/jobs?array=a-{first}")
    assert f'href="/web/jobs/a-{first}"' in ann.get("/web/jobs?tag=sweep")
    assert f'href="/web/jobs/a-{first}"' not in ann.get("/web/jobs?tag=other")
    assert ann.get(f"/web/jobs/a-{first}", 303) == ""
    assert "Job 2 of array <a" in ann.get(f"/web/jobs/j-{first + 2}")
    ann.post("/web/jobs/several", **{f"a-{first}": "on", "act": "hold"})
    assert all(cluster.engine.state.jobs[first + i].request["hold"] for i in range(3))


def test_a_job_is_requeued_changed_and_cloned_by_its_owner(cluster: World, login: Login) -> None:
    ann, ben, eve = login("ann"), login("ben"), login("eve")
    for act in ("Requeue", "Change…", "Clone"):
        assert act in ann.get("/web/jobs/j-1")
        assert act not in eve.get("/web/jobs/j-1")
    assert "not yours" in ben.get("/web/jobs/j-1/change", 403)
    form = {"class": "opportunistic", "was_class": "guaranteed", "priority": "7", "gpus": "2", "was_gpus": "2"}
    ben.post("/web/jobs/j-1/change", 403, **form)
    ann.post("/web/jobs/j-1/change", **form)
    request = cluster.engine.state.jobs[1].request
    assert (request["class"], request["priority"], request["gpus"]) == ("opportunistic", 7.0, 2)
    text = html.unescape(ann.post("/web/jobs/j-1/change", 422, gpus="9", was_gpus="2").text)
    assert "needs 9 GPUs" in text
    assert 'value="9"' in text
    assert "needs a whole number (got 'two')" in html.unescape(
        ann.post("/web/jobs/j-1/change", 422, gpus="two", was_gpus="2").text
    )
    ann.post("/web/jobs/j-1/requeue")
    cluster.settle(3)
    assert "requeued by ann" in ann.get("/web/jobs/j-1")
    ann.post("/web/jobs/j-1/clone")
    assert cluster.engine.state.jobs[4].request["model"] == "gpt"
    for act in ({}, {"act": "stop"}):
        assert (
            "it is cancel, requeue, hold or release" in ann.post("/web/jobs/several", 422, **{"j-1": "on", **act}).text
        )
    ann.post("/web/jobs/several", **{"j-1": "on", "j-4": "on", "act": "cancel"})
    assert "no job is chosen" in ann.post("/web/jobs/several", 422, act="cancel").text
    assert (
        "0 of 1 jobs done. Refused: j-3: job j-3 is not yours"
        in ann.post("/web/jobs/several", 409, **{"j-3": "on", "act": "requeue"}).text
    )
    cluster.settle(2)
    assert "has cancelled" in ann.get("/web/jobs/j-1/change", 409)


def test_a_waiting_job_is_held_and_released_by_its_owner(cluster: World, login: Login) -> None:
    ann, ben = login("ann"), login("ben")
    number = next(n for n, job in cluster.engine.state.jobs.items() if job.live is None)
    owner, other = (ann, ben) if cluster.engine.state.jobs[number].owner == "ann" else (ben, ann)
    page = f"/web/jobs/j-{number}"
    assert "Hold" in owner.get(page)
    other.post(f"{page}/hold", 403, hold="on")
    owner.post(f"{page}/hold", hold="on")
    cluster.settle()
    held = html.unescape(owner.get(page))
    for text in (f"held; release it with: plait release j-{number}", "Why it waits", "<button>Release</button>"):
        assert text in held
    owner.post(f"{page}/hold")
    assert not cluster.engine.state.jobs[number].request["hold"]


def values_of(page: str) -> dict[str, str]:
    """What is in the fields of the form of a job that have a value."""
    found = {
        a["name"]: a.get("value", "") for tag, a in Tags(page).tags if tag == "input" and a.get("type") != "hidden"
    }
    return {name: value for name, value in found.items() if value and name != "q"}


def test_a_job_is_submitted_again_and_what_is_wrong_with_it_is_said(cluster: World, login: Login) -> None:
    ann = login("ann")
    form = values_of(ann.get("/web/submit?from=j-1"))
    assert (form["gpus"], form["name"], form["command"]) == ("2", "long", "python train.py")
    assert ann.post("/web/submit", **form).headers["location"] == "/web/jobs/j-4"
    assert cluster.store.job(4).row.name == "long"
    wrong = html.unescape(ann.post("/web/submit", 422, **{**form, "gpus": "x", "name": HOSTILE}).text)
    assert "needs a whole number (got 'x')" in wrong
    assert values_of(wrong)["gpus"] == "x"
    assert values_of(ann.post("/web/submit", 422, **{**form, "gpus": "x", "name": HOSTILE}).text)["name"] == HOSTILE
    assert "not JSON" in ann.post("/web/submit", 400, **{**form, "rest": "{"}).text
    assert "give it once" in ann.post("/web/submit", 422, **{**form, "rest": '{"gpus": 3}'}).text
    assert "needs the program" in ann.post("/web/submit", 422, gpus="1").text
    login("eve").post("/web/submit", 403, **form)
    login("eve").get("/web/submit", 403)


def test_a_node_is_drained_and_resumed_by_administrators(cluster: World, login: Login) -> None:
    root = login("root")
    for user in ("ann", "eve"):
        login(user).post("/web/nodes/n0/drain", 403)
        assert "/drain" not in login(user).get("/web/nodes/n0")
    assert root.post("/web/nodes/n0/drain").headers["location"] == "/web/nodes/n0"
    assert cluster.engine.state.nodes["n0"].drained
    assert "Resume" in root.get("/web/nodes/n0")
    assert "takes no new work" in root.get("/web/nodes/n0")
    root.post("/web/nodes/n0/resume")
    assert not cluster.engine.state.nodes["n0"].drained
    root.get("/web/nodes/n7", 404)


def test_nodes_are_reserved_and_given_back_by_administrators(cluster: World, login: Login) -> None:
    root = login("root")
    form = {"nodes": "n0", "project": "default", "in_hours": "0.5", "for_hours": "2"}
    login("ann").post("/web/reservations", 403, **form)
    assert root.post("/web/reservations", **form).headers["location"] == "/web/nodes"
    for user in ("ann", "root"):
        page = login(user).get("/web/nodes")
        assert "in 30 min 0 s, for 2 h 0 min" in page or "in 29 min" in page
        assert ("/reservations/r-1/cancel" in page) == (user == "root")
    assert "root reserved n0 for project default" in root.get("/web/nodes/n0")
    root.post("/web/reservations", 409, **form)
    for hours in ("2 hours", "nan", "inf", "0"):
        root.post("/web/reservations", 422, **{**form, "for_hours": hours})
    root.post("/web/reservations/r-1/cancel")
    assert "No node is reserved." in root.get("/web/nodes")


def test_what_a_drain_would_lose_is_named_before_it_is_done(cluster: World, login: Login) -> None:
    agent = cluster.agents["n0"]
    told = {"saves": "nothing", "steps": 30.0, "held_s": 75.0, "last_step_s": 70.0, "first_step_s": 5.0}
    agent.seen |= {key: replace(one, **told) for key, one in agent.seen.items() if key[0] == 1}
    cluster.settle(3)
    text = "j-1 would lose 30 steps, 1 min 15 s of work on 2 GPUs (150 GPU-seconds) and begin at the beginning"
    root, ann = login("root"), login("ann")
    dialogs = {path: asks(root.get(path)) for path in ("/web/nodes/n0", "/web/policy", "/web/jobs/j-1")}
    for path, dialog in dialogs.items():
        assert text in dialog, path
    assert "stopped after a checkpoint" not in dialogs["/web/nodes/n0"]
    assert "j-2" not in dialogs["/web/nodes/n0"], "it saves when it is stopped"
    assert text in html.unescape(ann.get("/web/jobs/j-1/change"))
    assert text in html.unescape(root.post("/web/nodes/n0/drain", 409).text)  # it was not confirmed
    assert not cluster.engine.state.nodes["n0"].drained
    root.post("/web/nodes/n0/drain", may_lose_work="on")
    assert cluster.engine.state.nodes["n0"].drained


def asks(text: str) -> str:
    """What the dialogs of a page ask."""
    return " ".join(values.get("data-ask") or "" for _, values in Tags(text).tags)


def test_the_policy_is_changed_by_administrators(cluster: World, login: Login) -> None:
    login("ann").post("/web/policy", 403, policy="fifo")
    root = login("root")
    assert root.post("/web/policy", policy="fifo").headers["location"] == "/web/policy"
    assert cluster.engine.state.policy_text == "fifo"
    again = root.post("/web/policy", 422, policy="nonsense").text  # the form again, with what was typed
    assert "nonsense" in again.partition('role="alert">')[2].partition("</p>")[0]
    assert 'name="policy" list="names" value="nonsense"' in again
    assert 'method="post"' not in login("eve").get("/web/policy").split("<main", 1)[1].split("</main", 1)[0]


def test_the_queue_is_in_the_order_of_the_policy(cluster: World, login: Login) -> None:
    text = login("ann").get("/web/queue")
    assert text.index("j-1<") < text.index("j-2<") < text.index("j-3<")
    found = cluster.do(lambda engine, now_s: engine.queue(now_s, 2, 1))
    assert (found.total, [job.place for job in found.jobs]) == (3, [2, 3])
    assert found.jobs[1].waits
    assert found.jobs[0].waited_s is None
    assert found.jobs[0].reason == ""
    assert found.jobs[1].reason in html.unescape(text)


def test_events_are_found_by_kind_and_words(cluster: World, login: Login) -> None:
    eve = login("eve")
    assert "j-0 failed" in html.unescape(eve.get("/web/events?kind=ends"))
    assert "joined" not in eve.get("/web/events?kind=ends").split("<tbody>")[1]
    assert "node n0 joined" in eve.get("/web/events?q=NODE+N0")
    assert "Nothing like that" in eve.get("/web/events?q=nowhere")
    assert "Newest" in eve.get("/web/events?before=3")
    eve.get("/web/events?before=1")


def test_neighbours_of_a_job_and_who_held_the_gpus_of_a_node(cluster: World, login: Login) -> None:
    text = login("ann").get("/web/jobs/j-1")
    beside = text.partition('<details id="neighbours"')[2].partition("</details>")[0]
    assert "Neighbours: 1 attempt of other jobs" in beside
    assert "j-2" in beside
    assert "<td>node<td>n0<td>" in beside
    assert 'id="neighbours"' not in login("ben").get("/web/jobs/j-3")
    held = login("ben").get("/web/nodes/n0").partition('id="held"')[2].partition("</details>")[0]
    assert [f"j-{i}<" in held for i in range(4)] == [True, True, True, False]
    assert "failed" in held
    assert "hostile" not in held.lower()


def test_lists_are_searched_and_have_pages(world: World, login: Login) -> None:
    for i in range(60):
        world.submit(name=f"job{i}")
    root = login("root")
    first, second = root.get("/web/jobs"), root.get("/web/jobs?page=2")
    assert first.count("<tr><td") == 50
    assert second.count("<tr><td") == 10
    assert root.get("/web/jobs?q=job59").count("<tr><td") == 1
    assert "No job is like that" in root.get("/web/jobs?page=9")
    assert root.get("/web/queue")
    root.get("/web/jobs?state=nonsense", 422)


def test_an_empty_cluster_has_pages_too(world: World, login: Login) -> None:
    root = login("root")
    assert "No node has joined yet" in root.get("/web/")
    for path in ("jobs", "queue", "nodes", "events", "policy"):
        root.get(f"/web/{path}")


@pytest.fixture
def beating(cluster: World, login: Login) -> Iterator[World]:
    """The cluster with agents that report all the time, in a thread, and stop before its clients."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.02):
            for agent in cluster.agents.values():
                agent.sync()

    thread = threading.Thread(target=beat)
    thread.start()
    yield cluster
    stop.set()
    thread.join()


def test_a_log_is_read_as_text(beating: World, login: Login) -> None:
    node = beating.agents["n0"]
    node.log = "".join(f"{i:07d} {'x' * 91}\n" for i in range(12_000))
    answer = login("root").ask("GET", "/web/jobs/j-1/log?rank=0")
    assert answer.text == node.log, "all of it, more than one part"
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.headers["content-disposition"] == "inline; filename*=utf-8''j-1-attempt1-rank0.log"
    assert login("root").ask("GET", "/web/jobs/j-1/log?rank=0&epoch=1&offset=1199900").text == node.log[1_199_900:]
    assert "no rank 7" in login("root").ask("GET", "/web/jobs/j-1/log?rank=7").text


def test_a_log_is_found_by_any_name_of_its_job(beating: World, login: Login) -> None:
    name = 'réseau "训练"; x=y'
    beating.submit("ann", name=name, gpus=4)
    answer = login("root").ask("GET", f"/web/jobs/{quote(name)}/log")
    file = f"{name}-attempt0-rank0.log"
    assert (answer.status_code, answer.text) == (200, "")
    assert answer.headers["content-disposition"] == f"inline; filename*=utf-8''{quote(file, safe='')}"


def test_the_end_of_a_log_that_cannot_be_read_is_named(
    beating: World, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PART", 5)
    read, asked = beating.mailbox.ask, []

    async def once(*given: Any) -> Reply:
        asked.append(given)
        if len(asked) == 2:
            raise NoAnswer("the agent of node n0 does not answer")
        return await read(*given)

    monkeypatch.setattr(beating.mailbox, "ask", once)
    text = login("root").ask("GET", "/web/jobs/j-1/log?rank=0").text
    assert text == "step \n[plait: the rest of this log cannot be read: the agent of node n0 does not answer]\n"


def test_scripts_are_small_and_have_their_licences() -> None:
    assets = files("plait.dashboard").joinpath("assets")
    scripts = [one for one in assets.iterdir() if one.name.endswith(".js")]
    assert sum(len(one.read_bytes()) for one in scripts) <= 100_000
    names = {one.name for one in assets.iterdir()}
    readme = assets.joinpath("README.md").read_text()
    for vendored, licence in (
        ("htmx.min.js", "htmx.LICENSE"), ("hx-sse.min.js", "htmx.LICENSE"), ("uplot.min.js", "uplot.LICENSE")
    ):  # fmt: skip
        assert {vendored, licence} <= names
        assert vendored in readme
    for page in files("plait.dashboard").joinpath("templates").iterdir():
        text = page.read_text()
        for words in ("http://", "https://", "|safe"):
            assert words not in text


def test_assets_are_kept_by_browsers_and_nothing_else_is_served(http: TestClient) -> None:
    assert "immutable" in http.get("/web/assets/htmx.min.js").headers["cache-control"]
    assert http.get("/web/assets/README.md").status_code == 404
    assert http.get("/web/assets/..%2Fapp.py").status_code == 404


def test_a_service_without_pages_has_an_api_all_the_same() -> None:
    assert load_pages("none") is None
    assert load_pages("plait.no.such:thing") is None
    assert load_pages("plait.dashboard.app:make") is not None


# -- figures ------------------------------------------------------------------------------------------


def test_reasons_that_differ_in_numbers_are_one() -> None:
    words = ("needs 1 GPU", "needs 2 GPUs", "", "the quota is used")
    found = reasons({"number": number, "reason": text} for number, text in enumerate(words))
    assert [(one.text, one.count) for one in found] == [
        ("needs 1 GPU", 2), ("no reason is recorded", 1), ("the quota is used", 1),
    ]  # fmt: skip


def test_holders_are_counted_by_the_gpus_they_have() -> None:
    running = [
        {"user": "ann", "gpus": 2, "places": [{"node": "n0", "gpu": 0}, {"node": "n0", "gpu": 0}]},
        {"user": "ben", "gpus": 4},
    ]
    found = holders(running, [{"user": "cy"}, {"user": "ann"}])
    assert [(one.user, one.gpus, one.running, one.waiting) for one in found] == [
        ("ben", 4, 1, 0), ("ann", 1, 1, 1), ("cy", 0, 0, 1),
    ]  # fmt: skip


def test_lists_have_names_times_of_day_and_whole_reasons(cluster: World, login: Login) -> None:
    eve = login("eve")
    queue = html.unescape(eve.get("/web/queue"))
    assert '<td class="cut">large<td' in queue
    jobs = html.unescape(eve.get("/web/jobs"))
    assert re.search(r"\d\d:\d\d, \d+\.\d s ago", jobs)
    assert '<div class="clamp"><b>KeyError</b> (exit code 3' in jobs
    history = html.unescape(eve.get("/web/jobs/j-0"))
    assert re.search(r"\d\d:\d\d:\d\d, \d+\.\d s ago</span> j-0 failed", history)


def test_events_leave_out_measurements_and_alarms_unless_everything_is_wanted(cluster: World, login: Login) -> None:
    eve = login("eve")
    told, everything = (html.unescape(eve.get(f"/web/events{query}")) for query in ("", "?kind=everything"))
    assert "made progress" not in told
    assert "decide again at" not in told
    assert "j-0 failed" in told
    assert everything.count("<tr>") > told.count("<tr>")


def test_what_the_policy_did_is_counted() -> None:
    launch = {"type": "Launch", "groups": [{"jobs": [1, 2]}]}
    entries = [
        {"at_s": 1.0, "event": {"type": "ReplanDue"}, "commands": [launch]},
        {
            "at_s": 90.0,
            "event": {"type": "JobFinished", "jobs": [1]},
            "commands": [{"type": "Stop", "jobs": [2]}, launch],
        },
        {"at_s": 95.0, "event": {"type": "JobFailed", "job": 5}, "commands": []},
    ]
    assert recent(entries, 100.0, 50.0).text == "started 2 attempts, stopped 1 attempt; jobs: 1 finished, 1 failed"
    assert Recent(50.0).text == "started and stopped nothing"


def node(**more: object) -> dict[str, object]:
    return {
        "id": "n0", "state": "ready", "gone": False, "gpus": 2, "gpus_used": 1, "jobs": ["j-1", "j-12"],
        "gpu_jobs": [["j-1", "j-12"], []], "usage": {"gpus": [{"utilisation": 0.9}], "means": [{"utilisation": None}]},
        **more,
    }  # fmt: skip


def test_a_node_is_drawn_by_who_holds_its_gpus() -> None:
    (drawn,) = figures.node_drawings([node(), node(gone=True)])
    assert [name for name, _ in drawn.paths] == ["h1", "h2", "free"]
    assert drawn.text == "n0, ready: 1 of 2 GPUs held by j-1, j-12"
    idle = node(usage={"gpus": [{"utilisation": 0.9}], "means": [{"utilisation": 0.01}]})
    assert figures.idle_gpus([idle, node()]) == 1
    assert "1 held but idle" in figures.node_drawings([idle])[0].text
    assert figures.node_drawings([node(reserved_for={"1": "j-4"})])[0].text.endswith("by j-1, j-12; 1 held for j-4")


def test_a_timeline_has_a_lane_a_gpu_or_a_node() -> None:
    def job(ranks: int) -> dict[str, object]:
        places = [{"node": f"n{i // 8}", "gpu": i % 8} for i in range(ranks)]
        one = {"epoch": 1, "started_s": 5.0, "ended_s": None, "state": "running", "ranks": places}
        return {"created_s": 0.0, "ended_s": None, "attempts": [one]}

    assert timeline(job(2), 9.0) == {
        "from": 0.0, "to": 9.0, "lanes": ["n0 GPU 0", "n0 GPU 1"],
        "bars": [[0, 5.0, 9.0, "1 running", "running", False], [1, 5.0, 9.0, "1 running", "running", False]],
    }  # fmt: skip
    assert timeline(job(40), 9.0)["lanes"] == [f"n{i}" for i in range(5)]

    def other(job: str, started_s: float, ended_s: float | None, *gpus: tuple[str, int]) -> dict[str, object]:
        state = "finished" if ended_s else "running"
        return {"job": job, "started_s": started_s, "ended_s": ended_s, "state": state, "gpus": list(gpus)}

    others = [
        other("j-7", 8.0, None, ("n0", 1), ("n0", 5)), other("j-6", -3.0, 5.0, ("n0", 1)),
        other("j-5", 6.0, 7.0, ("n0", 9)), other("j-4", 1.0, None, ("n9", 0)),
    ]  # fmt: skip
    drawn = timeline(job(2), 9.0, others)
    assert drawn["lanes"] == ["n0 GPU 0", "n0 GPU 1"]
    assert drawn["bars"][2:] == [[1, 8.0, 9.0, "j-7", "running", True], [1, 0.0, 5.0, "j-6", "finished", True]]
    assert timeline(job(40), 9.0, others)["bars"][5:] == [
        [0, 8.0, 9.0, "j-7", "running", True], [0, 0.0, 5.0, "j-6", "finished", True],
        [0, 6.0, 7.0, "j-5", "finished", True],
    ]  # fmt: skip
    beside = [(one["job"], where, seconds) for one, where, seconds in neighbours(job(2), others, 9.0)]
    assert beside == [("j-7", "GPU", 1.0), ("j-5", "node", 1.0)]
    node = of_node(6, others, 9.0, 8.0)
    assert (node["from"], node["to"], node["lanes"][-1]) == (1.0, 9.0, "GPU 5")
    assert node["bars"][:3] == [
        [1, 8.0, 9.0, "j-7", f"h{hue('j-7')}", False], [5, 8.0, 9.0, "j-7", f"h{hue('j-7')}", False],
        [1, 1.0, 5.0, "j-6", f"h{hue('j-6')}", False],
    ]  # fmt: skip
    assert of_node(4, [], 9.0, 8.0)["bars"] == []


def test_the_simulated_queue_knows_the_runs_before_of_the_same_script(world: World) -> None:
    node = world.add("n0", 1)
    for script, seconds in [("secret_short.py", 10.0)] * 3 + [("long.py", 5000.0)] * 6:
        job = world.submit(command=["python", script])
        world.settle()
        node.end(int(job.removeprefix("j-")), held_s=seconds)
        world.settle()
    short = [world.submit(command=["python", "secret_short.py"]) for _ in range(2)]
    stated = world.submit(command=["python", "secret_short.py"], iterations=7)
    world.settle()
    with TestClient(world.app) as http:
        answers = [
            http.get("/v1/state", headers={"Authorization": f"Bearer {world.tokens[user]}"}).json()
            for user in ("ann", "ben")
        ]
        explained = http.get(
            f"/v1/jobs/{short[1]}/explain", headers={"Authorization": f"Bearer {world.tokens['ann']}"}
        ).json()
    for state in answers:
        assert "secret" not in json.dumps(state)
        assert set(state["left_s"]) == {"9", "10", "11"}
        assert set(state["left_from"].values()) == {"3 ended jobs of the same user, command and size"}
        simulated = foresee(state)
        found = {job: eta.end.said for job, eta in simulated.honest.etas.items()}
        for job, most_s in (*zip(short, (60.0, 120.0), strict=True), (stated, 180.0)):
            assert 1.0 < found[int(job.removeprefix("j-"))][1] < most_s
        assert 10.0 < max(middle for _, middle, _ in found.values()) < 180.0
        text = (
            "how long 3 jobs without progress still take is drawn from 3 ended jobs of the same user, command and size"
        )
        assert text in simulated.honest.assumptions
        assert not any("did not report" in text for text in simulated.honest.assumptions)
    quick = explained["forecast"]["end"]
    assert quick["wide_s"][0] < found[10][1] < quick["wide_s"][1]
    old = {**answers[0], "left_s": {}, "left_from": {}}  # of a service that does not say it
    untold = foresee(old)
    assert max(eta.end.middle_s for eta in untold.honest.etas.values()) > 1000.0


# -- who gets in, how forms prove where they come from, and what every answer says to the browser ---------


PAGES = ("/web/", "/web/jobs", "/web/queue", "/web/nodes", "/web/events", "/web/policy", "/web/submit", "/web/live")


@pytest.mark.parametrize("path", [*PAGES, "/web/jobs/j-0", "/web/jobs/j-0/log", "/web/jobs/j-0/tail", "/web/nodes/n0"])
def test_a_stranger_is_asked_for_a_token(http: TestClient, path: str) -> None:
    answer = http.get(path, follow_redirects=False)
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/web/login")
    part = http.get(path, headers={"HX-Request": "true"}, follow_redirects=False)
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/web/login")


def test_the_address_of_the_service_leads_to_the_page(http: TestClient) -> None:
    assert http.get("/", follow_redirects=False).headers["location"] == "/web/"


def test_a_token_opens_a_session_whose_cookie_is_not_the_token(world: World, http: TestClient) -> None:
    answer = http.post(
        "/web/login", data={"token": f" {world.tokens['ann']} ", "next": "/web/jobs?q=a"}, follow_redirects=False
    )
    assert (answer.status_code, answer.headers["location"]) == (303, "/web/jobs?q=a")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/web"))
    assert world.tokens["ann"] not in cookie
    wrong = http.post("/web/login", data={"token": "plait_wrong"})
    assert wrong.status_code == 401
    assert "not valid" in wrong.text
    assert "set-cookie" not in wrong.headers


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/v1/jobs", "/web/\\evil", ""])
def test_nobody_is_sent_elsewhere_after_the_login(world: World, http: TestClient, target: str) -> None:
    answer = http.post("/web/login", data={"token": world.tokens["ann"], "next": target}, follow_redirects=False)
    assert answer.headers["location"] == "/web/"


def test_the_link_of_the_command_line_counts_once(world: World, http: TestClient) -> None:
    assert http.post("/web/codes").status_code == 401
    assert http.post("/web/codes", headers={"Authorization": "Bearer wrong"}).status_code == 401
    link = http.post("/web/codes", headers={"Authorization": f"Bearer {world.tokens['eve']}"}).json()["path"]
    assert world.tokens["eve"] not in link
    assert http.get(link, follow_redirects=False).headers["location"] == "/web/"
    http.cookies.clear()
    again = http.get(link, follow_redirects=False)
    assert (again.status_code, "plait web" in again.text) == (401, True)


def test_sessions_and_codes_end() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    name = sessions.begin(Session("s", "ann", "user", "default"))
    now[0] = SESSION_S - 1
    assert sessions.find(name) is not None  # and lasts as long from here
    now[0] += SESSION_S + 1
    assert sessions.find(name) is None
    code = sessions.code_for("s")
    now[0] += CODE_S + 1
    assert sessions.redeem(code) is None
    first = sessions.begin(Session("s", "ann", "user", "default"))
    for _ in range(MOST):
        sessions.begin(Session("s", "ann", "user", "default"))
    assert sessions.find(first) is None


def test_a_revoked_token_ends_its_session_at_once(world: World, login: Callable[[str], Browser]) -> None:
    ann = login("ann")
    ann.get("/web/jobs")
    token = next(one for one in world.api.tokens.all() if one.user == "ann")
    world.api.tokens.revoke(token.id)
    assert "login" in ann.ask("GET", "/web/jobs").headers["location"]


def test_logging_out_ends_the_session(login: Callable[[str], Browser]) -> None:
    ann = login("ann")
    assert ann.post("/web/logout").headers["location"] == "/web/login"
    ann.get("/web/jobs", 303)


ACTIONS = (
    "/web/submit",
    "/web/submit/what-if",
    "/web/jobs/j-0/cancel",
    "/web/nodes/n0/drain",
    "/web/nodes/n0/resume",
    "/web/policy",
    "/web/logout",
)


@pytest.mark.parametrize("path", ACTIONS)
def test_a_form_without_the_token_of_its_session_does_nothing(
    world: World, login: Callable[[str], Browser], path: str
) -> None:
    world.add("n0")
    job = world.submit()
    root, other = login("root"), login("root")
    for csrf in ("", "wrong", other.csrf()):
        root.post(path, 403, csrf=csrf, policy="fifo", command="true")
    token = root.csrf()
    answer = root.ask("POST", path, {"Origin": "https://evil.example"}, data={"csrf": token})
    assert answer.status_code == 403
    root.get("/web/")  # still logged in
    assert world.store.job(0).row.state not in ("cancelled", "stopping"), job
    assert world.store.job(1) is None
    assert world.engine.state.policy_text == "fifo-backfill"
    assert not world.engine.state.nodes["n0"].drained


def test_every_answer_forbids_what_pages_do_not_need(login: Callable[[str], Browser]) -> None:
    ann = login("ann")
    for path in (*PAGES[:-1], "/web/login", "/web/nothing", "/web/jobs/j-77", "/web/assets/page.css"):
        if path == "/web/events":
            continue
        headers = ann.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert ("no-store" in headers["cache-control"]) == ("assets" not in path)


def test_a_form_that_is_too_large_is_refused(login: Callable[[str], Browser]) -> None:
    ann = login("ann")
    assert "more than" in ann.post("/web/submit", 413, job="x" * 100_001).text
    ann.post("/web/submit", 400, **{f"f{i}": "x" for i in range(300)})


def test_pages_are_numbers() -> None:
    assert [page_of(one) for one in ("7", "0", "x", "٣", "99999999", None)] == [7, 1, 1, 1, 1, 1]


def test_a_session_of_an_agent_cannot_begin(world: World, http: TestClient) -> None:
    secret, _ = world.api.tokens.make("n0", "agent", node="n0")
    assert http.post("/web/login", data={"token": secret}).status_code == 403


def test_what_is_refused_says_why() -> None:
    error = Refused(409, "no", "plait ls", "gpus")
    assert (str(error), error.status, error.next_step, error.field) == ("no", 409, "plait ls", "gpus")
