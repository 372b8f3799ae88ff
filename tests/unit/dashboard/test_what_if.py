"""What would be if, through API and pages, for each role: a submission, the forecast of a job, another choice."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from starlette.testclient import TestClient
from world import Browser, World

from plait.dashboard.pages import overview as outlook
from plait.live.api.explain import SubmissionVariant, Times
from plait.live.scheduler.explain.submission import _best
from sample_answers import sample

Login = Callable[[str], Browser]

JOB = {"command": ["python", "train.py"], "workdir": "/home/ann", "name": "net"}


def ask(http: TestClient, world: World, user: str, method: str, path: str, body: Any = None) -> Any:
    answer = http.request(method, path, json=body, headers={"authorization": f"Bearer {world.tokens[user]}"})
    return answer.status_code, answer.json()


@pytest.fixture
def busy(world: World) -> World:
    """Four GPUs: j-0 and j-1 hold two each, with 100 s and 300 s to go; j-2 waits for four."""
    world.add("n0", 4)
    for job, steps in ((0, 100), (1, 300)):
        world.progress[job] = {"steps": 10.0, "step_s": 1.0}
        assert world.submit("ann", name="held", gpus=2, iterations=steps + 10) == f"j-{job}"
    world.settle(4)
    world.submit("ben", name="large", gpus=4, iterations=50)
    world.settle(2)
    return world


@pytest.fixture
def two_nodes(busy: World) -> World:
    """The same beside a node of two GPUs, too small for j-2, which j-3 holds with 100 s to go."""
    busy.add("n1", 2)
    busy.progress[3] = {"steps": 10.0, "step_s": 1.0}
    assert busy.submit("ann", name="held", gpus=2, iterations=110) == "j-3"
    busy.settle(4)
    return busy


@pytest.fixture
def http(world: World) -> TestClient:
    return TestClient(world.app)


def test_an_idle_cluster_starts_it_at_once(world: World, http: TestClient) -> None:
    world.add("n0", 4)
    status, found = ask(http, world, "ann", "POST", "/v1/what-if", {**JOB, "gpus": 4})
    assert status == 200
    assert found["start"]["middle_s"] == 0
    assert found["blocked_by"] == {"kind": "nothing", "text": "nothing: it would start at once", "jobs": []}
    assert "fewer than five jobs have ended" in found["duration"]
    assert world.do(lambda engine, now_s: engine.state.numbers) == 0


def test_while_decisions_are_compiled_it_says_so(world: World, http: TestClient) -> None:
    world.add("n0", 4)
    world.engine.ready = False
    for _ in range(2):
        world.submit("ann", gpus=1, iterations=50)
    found = ask(http, world, "ben", "POST", "/v1/what-if", {**JOB, "gpus": 4})[1]["blocked_by"]
    assert found["kind"] == "compiling"
    assert found["text"].startswith("what decisions need is being compiled, about 20 s, once after an installation; ")
    assert found["text"].endswith("2 jobs ahead of it wait for 2 GPUs; only 4 GPUs of a kind are free")


def test_sooner_is_sooner_at_worst_too_or_says_that_it_is_not() -> None:
    def times(middle_s: float, worst_s: float | None) -> Times:
        return Times(middle_s, [middle_s, middle_s], [0.0, worst_s])

    def gains(middle_s: float, worst_s: float | None) -> list[str]:
        requested, other = (
            sample(SubmissionVariant, start=times(0, 0), end=end, gpu_hours=[1.0, 1.0, 1.0])
            for end in (times(14_400, 20_040), times(middle_s, worst_s))
        )
        return [text for row in _best(requested, [other]) for text in row.gains]

    assert gains(7200, 20_040) == ["ends sooner"]
    assert gains(7200, 35_940) == gains(7200, None) == ["usually ends sooner, may end later"]
    assert gains(14_300, 15_000) == []


def test_what_blocks_it_is_named_and_what_would_be_sooner(two_nodes: World, http: TestClient) -> None:
    seq = two_nodes.do(lambda engine, now_s: engine.state.seq)
    status, found = ask(http, two_nodes, "ben", "POST", "/v1/what-if", {**JOB, "gpus": 4})
    assert status == 200
    assert found["blocked_by"]["kind"] == "queue"
    assert [job["id"] for job in found["blocked_by"]["jobs"]] == ["j-2"]
    assert (found["place"], found["waiting"]) == (2, 2)
    assert found["start"]["middle_s"] > 250
    half, wide = found["start"]["half_s"], found["start"]["wide_s"]
    assert wide[0] <= half[0] <= half[1] <= wide[1]
    two = next(one for one in found["variants"] if one["option"] == "--gpus 2")
    assert two["start"]["middle_s"] == pytest.approx(100, rel=0.4)
    assert "starts sooner" in two["gains"]
    assert two_nodes.do(lambda engine, now_s: engine.state.numbers) == 4
    assert two_nodes.do(lambda engine, now_s: engine.state.seq) - seq <= 2  # what agents report, and nothing else


def test_the_holders_are_named_where_nobody_is_ahead(world: World, http: TestClient) -> None:
    world.add("n0", 4)
    world.progress[0] = {"steps": 10.0, "step_s": 1.0}
    world.submit("ann", gpus=4, iterations=500)
    world.settle(3)
    found = ask(http, world, "ben", "POST", "/v1/what-if", JOB)[1]
    assert found["blocked_by"]["kind"] == "held"
    assert found["blocked_by"]["jobs"][0]["text"].startswith("j-0 of ann holds 4 GPUs and ends in about")


@pytest.mark.parametrize(
    ("user", "body", "status", "words"),
    [
        ("eve", JOB, 403, ""),
        ("ann", {**JOB, "gpus": 5}, 422, "the largest gang that fits this cluster is 4"),
        ("ann", {**JOB, "gpus": -1}, 422, "gpus is -1, needs at least 0"),
        ("ann", {**JOB, "gpu_memory": 90e9}, 422, "the GPUs it may use have 80 GB (a100)"),
        ("ann", {**JOB, "project": "other"}, 403, "belongs to project default"),
        ("ann", {"gpus": 1}, 422, "command is missing"),
    ],
)
def test_it_is_refused_like_a_submission(
    busy: World, http: TestClient, user: str, body: Any, status: int, words: str
) -> None:
    busy.settle(8)
    found = ask(http, busy, user, "POST", "/v1/what-if", body)
    assert found[0] == status, found
    assert words in found[1]["error"]["message"]


def test_without_a_node_it_says_so(world: World, http: TestClient) -> None:
    status, found = ask(http, world, "ann", "POST", "/v1/what-if", JOB)
    assert status == 404
    assert "no node has joined yet" in found["error"]["message"]


def test_a_job_that_waits_has_its_forecast_as_intervals(busy: World, http: TestClient) -> None:
    status, found = ask(http, busy, "ben", "GET", "/v1/jobs/j-2/explain")
    assert status == 200
    forecast = found["forecast"]
    assert forecast["start"]["middle_s"] == pytest.approx(300, rel=0.4)
    assert forecast["end"]["wide_s"][0] >= forecast["start"]["wide_s"][0]
    assert any("no new jobs" in text for text in forecast["assumptions"])
    assert ask(http, busy, "ann", "GET", "/v1/jobs/j-0/explain")[1]["forecast"]["start"] is None
    said = forecast["said"]
    status, _ = ask(http, busy, "ben", "POST", "/v1/jobs/j-2/forecast", {"start": said["start"], "end": said["end"]})
    assert status == 200
    assert busy.do(lambda engine, now_s: list(engine.state.record.open)) == [2]


# -- the queue under another choice -------------------------------------------------------------------


def test_more_nodes_let_those_that_wait_gain(busy: World, http: TestClient) -> None:
    status, found = ask(http, busy, "eve", "POST", "/v1/what-if/queue", {"nodes": "+1x4"})
    assert status == 200, found
    assert [row["id"] for row in found["gain"]] == ["j-2"]
    assert (found["lose"], found["counts"]) == ([], {"gain": 1, "lose": 0, "same": 2})
    low, _, middle, _, high = found["gain"][0]["hours"]
    assert low <= middle <= high < 0
    assert middle == pytest.approx(-300 / 3600, rel=0.4)
    assert found["totals"]["gpus"] == [4, 8]


def test_without_its_node_a_job_loses_and_other_choices_add_up(busy: World, http: TestClient) -> None:
    busy.add("n1", 4)
    busy.settle(3)
    found = ask(http, busy, "ann", "POST", "/v1/what-if/queue", {"without": ["n1"]})[1]
    assert [row["id"] for row in found["lose"]] == ["j-2"]
    both = ask(http, busy, "ann", "POST", "/v1/what-if/queue", {"without": ["n1"], "nodes": "+1x4"})[1]
    assert both["counts"] == {"gain": 0, "lose": 0, "same": 3}
    assert both["choice"] == "nodes +1x4, without node n1"


def test_another_priority_lets_one_pass_another(busy: World, http: TestClient) -> None:
    busy.submit("ann", name="next", gpus=4, iterations=50)
    busy.settle(2)
    found = ask(http, busy, "ann", "POST", "/v1/what-if/queue", {"priority": {"j-3": 5}})[1]
    assert ([row["id"] for row in found["gain"]], [row["id"] for row in found["lose"]]) == (["j-3"], ["j-2"])
    now = ask(http, busy, "ann", "GET", "/v1/queue")[1]
    assert [job["priority"] for job in now["jobs"]] == [None] * 4


def test_another_policy_lets_short_jobs_pass(busy: World, http: TestClient) -> None:
    found = ask(http, busy, "ann", "POST", "/v1/what-if/queue", {"policy": "srsf"})[1]
    assert found["choice"] == "policy srsf"
    assert busy.do(lambda engine, now_s: engine.state.policy_text) == "fifo-backfill"


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 422, "nothing would be different"),
        ({"without": ["n9"]}, 422, "no node 'n9'; did you mean 'n0'?"),
        ({"nodes": "many"}, 422, "cannot read cluster 'many'; write NODESxGPUS"),
        ({"nodes": "+1x8:h100"}, 422, "no GPU kind 'h100'; this cluster has a100"),
        ({"policy": "srfs"}, 422, "unknown policy 'srfs'; did you mean"),
        ({"policy": "os:system"}, 422, "os:system"),  # no module and no file of the machine is read for it
        ({"policy": "2d-gittins:history=/etc/passwd"}, 422, "history"),
        ({"priority": {"j-77": 3}}, 422, "no job j-77 that waits or runs"),
        ({"priority": {"seven": 3}}, 422, ""),
        ({"policy": "pollux", "priority": {"j-2": 3}}, 422, "policy pollux ignores priorities"),
    ],
)
def test_a_choice_that_cannot_be_says_what_could(
    busy: World, http: TestClient, body: Any, status: int, words: str
) -> None:
    found = ask(http, busy, "ann", "POST", "/v1/what-if/queue", body)
    assert found[0] == status, found
    assert words in found[1]["error"]["message"]


# -- pages ---------------------------------------------------------------------------------------------


def test_the_first_page_says_when_the_queue_is_empty_and_jobs_end(
    busy: World, login: Login, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlook, "WAIT_S", 60.0)
    page = login("ann").get("/web/")
    empty = page.partition("<dt>Queue empty in</dt>")[2].partition("</div>")[0]
    said = r'<dd class="long">\d+ min \d+ s</dd><dd class="note">80 %: 5 min \d+ s to \d+ min \d+ s</dd>'
    assert re.fullmatch(said, empty)
    running = page.partition('id="running"')[2].partition("</section>")[0]
    assert re.search(r"j-1</a>.*?data-unit=\"to go\">[\d.]+ (s|min)", running)
    monkeypatch.setattr(outlook, "WAIT_S", 0.0)
    monkeypatch.setattr(outlook, "KEPT_S", -1.0)
    assert "being computed" in login("ann").get("/web/")


def test_the_form_shows_what_a_job_would_get_and_takes_over_a_variant(two_nodes: World, login: Login) -> None:
    ann = login("ann")
    form = {"command": "python train.py", "workdir": "/home/ann", "gpus": "4", "class": "guaranteed"}
    page = ann.post("/web/submit/what-if", 200, **form).text
    assert 'id="outlook"' in page
    assert "nothing is submitted" in page
    assert 'value="--gpus 2"' in page
    assert 'name="gpus" type="number" value="4"' in page
    taken = ann.post("/web/submit/what-if", 200, **form, min_gpus="3", use="--gpus 2").text
    assert 'name="gpus" type="number" value="2"' in taken
    assert 'name="min_gpus" type="number" value=""' in taken
    assert "no field of this form" in ann.post("/web/submit/what-if", 422, **form, use="--gpux 2").text
    assert "largest gang" in ann.post("/web/submit/what-if", 422, **{**form, "gpus": "7"}).text
    login("eve").post("/web/submit/what-if", 403, **form)
    assert two_nodes.do(lambda engine, now_s: engine.state.numbers) == 4


def test_the_page_of_choices_names_who_gains_and_what_is_wrong(busy: World, login: Login) -> None:
    eve = login("eve")
    assert 'id="gain"' not in eve.get("/web/what-if")
    page = eve.get("/web/what-if?nodes=%2B1x4")
    assert 'href="/web/jobs/j-2">j-2</a>' in page.split('id="gain"')[1].split('id="lose"')[0]
    assert "sooner" in page
    assert "no node &#39;n9&#39;" in eve.get("/web/what-if?without=n9", 422)
    assert "write JOB=PRIORITY" in eve.get("/web/what-if?priority=fast", 422)
    assert busy.do(lambda engine, now_s: engine.state.policy_text) == "fifo-backfill"


def test_the_page_of_a_job_has_its_forecast_and_loads_what_other_sizes_would_bring(
    two_nodes: World, login: Login
) -> None:
    ben = login("ben")
    page = ben.get("/web/jobs/j-2")
    assert "start 50 %: " in page
    assert "Its duration is drawn from" in page
    assert 'hx-get="/web/jobs/j-2/what-if"' in page
    assert 'hx-get="/web/jobs/j-0/what-if"' not in login("ann").get("/web/jobs/j-0")
    part = ben.get("/web/jobs/j-2/what-if")
    assert "<html" not in part
    assert "with 2 GPUs" in part
    assert two_nodes.do(lambda engine, now_s: engine.state.numbers) == 4


# Forecasts beside what the policy does: fragments, quotas, jobs ahead; nothing is offered as now that would wait.


def ask_forecast_places(world: World, user: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {world.tokens[user]}"}
    answer = TestClient(world.app).request(method, path, json=body, headers=headers)
    assert answer.status_code == 200, answer.json()
    found: dict[str, Any] = answer.json()
    return found


def what_if(world: World, gpus: int, **more: Any) -> dict[str, Any]:
    body = {"command": ["python", "train.py"], "workdir": "/home/ann", "name": "net", "gpus": gpus, **more}
    return ask_forecast_places(world, "ann", "POST", "/v1/what-if", body)


def hold(world: World, gpus: int, seconds: int, **more: Any) -> int:
    """A job that runs and reports that it has so many seconds to go."""
    number = world.do(lambda engine, now_s: engine.state.numbers)
    world.progress[number] = {"steps": 10.0, "step_s": 1.0}
    world.submit("ann", name="held", gpus=gpus, iterations=seconds + 10, **more)
    world.settle(4)
    return int(number)


def running(world: World, job: int) -> bool:
    return bool(world.do(lambda engine, now_s: job in engine.state.live))


@pytest.fixture
def fragments(world: World) -> World:
    """Two nodes of two GPUs, one GPU free on each; the jobs on the others have 100 s and 300 s to go."""
    world.add("n0", 2)
    world.add("n1", 2)
    jobs = [hold(world, 1, 100 + 200 * (i > 1)) for i in range(4)]
    nodes: Mapping[int, str] = world.do(
        lambda engine, now_s: {job: engine.state.jobs[job].live.ranks[0].node for job in jobs}
    )
    first = [next(job for job in jobs if nodes[job] == node) for node in ("n0", "n1")]
    for job in first:
        world.agents[nodes[job]].end(job)
    world.settle(3)
    return world


def test_a_gang_that_fits_on_no_node_does_not_start_now(fragments: World) -> None:
    found = what_if(fragments, 2)
    assert found["start"]["middle_s"] > 50
    assert found["blocked_by"]["kind"] == "placement"
    assert re.search("node|waits until", found["blocked_by"]["text"])
    one = next(row for row in found["variants"] if row["option"] == "--gpus 1")
    assert one["start"]["middle_s"] == 0
    fragments.submit("ann", name="pair", gpus=2, iterations=50)
    fragments.settle(3)
    job = fragments.do(lambda engine, now_s: engine.state.numbers) - 1
    assert not running(fragments, job)
    forecast = ask_forecast_places(fragments, "ann", "GET", f"/v1/jobs/j-{job}/explain")["forecast"]
    assert forecast["start"]["middle_s"] > 50
    assert forecast["end"]["middle_s"] > forecast["start"]["middle_s"]


@pytest.mark.parametrize("gpus", [1, 2, 3, 4])
def test_what_is_offered_as_now_starts_when_it_is_submitted(fragments: World, gpus: int) -> None:
    found = what_if(fragments, gpus)
    offers = [(gpus, found["start"]["middle_s"] == 0)]
    offers += [(row["gpus"], row["start"]["middle_s"] == 0) for row in found["variants"] if row["change"] == "gpus"]
    for size, now in offers:
        job = fragments.do(lambda engine, now_s: engine.state.numbers)
        fragments.submit("ann", name="net", gpus=size, iterations=50)
        fragments.settle(3)
        assert running(fragments, job) == now, (size, offers)
        ask_forecast_places(fragments, "ann", "DELETE", f"/v1/jobs/j-{job}")
        fragments.settle(6)


def test_a_quota_is_no_surprise(world: World) -> None:
    world.add("n0", 4)
    hold(world, 1, 200)
    world.do(lambda engine, now_s: engine.set_project("default", gpu_quota=2, weight=1.0, now_s=now_s))
    world.settle(2)
    found = what_if(world, 2)
    assert found["start"]["middle_s"] > 50
    assert re.search("quota", found["blocked_by"]["text"])
    assert what_if(world, 1)["start"]["middle_s"] == 0


def test_three_runs_of_a_script_make_the_interval_of_the_next(world: World) -> None:
    agent = world.add("n0", 1)
    for i in range(6):
        world.submit("ann", name="", gpus=1, command=["python", "slow.py"] if i % 2 else ["python", "quick.py", str(i)])
        world.settle(4)
        agent.end(i, held_s=12.0 + i)
        world.settle(3)
    found = what_if(world, 1, name="", command=["python", "quick.py", "9"])
    assert found["duration"] == "3 ended jobs of the same user, script and size"
    assert what_if(world, 1, name="", command=["python", "slow.py"])["duration"].startswith(
        "3 ended jobs of the same user, command and size"
    )
    world.submit("ann", name="", gpus=1, command=["python", "quick.py", "7"])
    world.settle(3)
    assert ask_forecast_places(world, "ann", "GET", "/v1/jobs/j-6/explain")["forecast"]["duration"].startswith(
        "3 ended jobs of the same"
    )
