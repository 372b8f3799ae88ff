"""Who gets in, how forms prove where they come from, and what every answer says to the browser."""

from collections.abc import Callable

import pytest
from starlette.testclient import TestClient
from world import Browser, World

from plait.dashboard.api_client import CODE_S, MOST, SESSION_S, Refused, Session, Sessions
from plait.dashboard.web import page_of

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
