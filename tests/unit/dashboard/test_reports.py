"""Reports of simulations in a sandbox, and the simulator judged by the service's own log."""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from test_compare import shown
from test_pages import cluster
from world import Browser, World

from plait.dashboard import work
from plait.dashboard.calculations import fidelity
from plait.dashboard.pages import reports

Login = Callable[[str], Browser]
REPORT = "<!doctype html><html><head><title>Tuesday &amp; <b></title></head><body><script>1</script></body></html>"


@pytest.fixture
def folder(world: World) -> Path:
    found = world.engine.layout.reports
    found.mkdir()
    (found / "tuesday.html").write_text(REPORT)
    return found


def test_reports_are_listed_and_shown_in_a_sandbox(world: World, login: Login, folder: Path) -> None:
    (folder / "older.html").write_text("no title here")
    os.utime(folder / "older.html", (1.0, 1.0))
    ann = login("ann")
    text = ann.get("/web/reports")
    assert text.index("Tuesday &amp; &lt;b&gt;") < text.index("older.html")
    assert str(folder) not in text
    assert str(folder) in login("root").get("/web/reports")
    assert str(folder) not in login("eve").get("/web/reports")  # a viewer, who asks while the answer to root is kept
    frame = ann.get("/web/reports/tuesday.html")
    assert 'sandbox="allow-scripts" src="/web/reports/tuesday.html/file"' in frame
    answer = ann.ask("GET", "/web/reports/tuesday.html/file")
    assert answer.text == REPORT
    policies = answer.headers.get_list("content-security-policy")
    assert len(policies) == 1
    assert policies[0].startswith("sandbox allow-scripts; default-src 'none'")
    assert "allow-same-origin" not in policies[0]
    assert answer.headers.get_list("x-frame-options") == ["SAMEORIGIN"]


def test_nothing_else_of_the_machine_is_a_report(world: World, login: Login, folder: Path) -> None:
    (folder / "notes.txt").write_text("private")
    (folder.parent / "outside.html").write_text("private")
    (folder / "link.html").symlink_to(folder.parent / "outside.html")
    (folder / "folder.html").mkdir()
    ann = login("ann")
    assert "private" not in ann.get("/web/reports")
    for name in ("notes.txt", "link.html", "folder.html", "..%2Foutside.html", "%2e%2e", "nothing.html", ".html"):
        assert ann.ask("GET", f"/web/reports/{name}/file").status_code == 404, name
        assert ann.ask("GET", f"/web/reports/{name}").status_code == 404, name
    assert re.findall(r'<td class="code">([^<]+)', ann.get("/web/reports")) == ["tuesday.html"]


def test_reports_are_for_those_who_are_logged_in(world: World, login: Login, folder: Path) -> None:
    ann = login("ann")
    for path in ("/web/reports", "/web/reports/tuesday.html", "/web/reports/tuesday.html/file"):
        assert "login" in ann.http.get(path, follow_redirects=False).headers["location"]
    assert ann.http.get("/v1/reports/tuesday.html").status_code == 401


def test_a_cluster_without_reports_says_how_to_make_one(world: World, login: Login) -> None:
    assert "None yet" in login("ann").get("/web/reports")
    assert "--report" in login("root").get("/web/reports")


def judged_here(monkeypatch: pytest.MonkeyPatch) -> None:
    async def calculate(module: str, given: object, limit_s: float, note: object) -> dict[str, object]:
        assert module.endswith(".fidelity")
        return {"result": fidelity.judged(json.loads(json.dumps(given)))}

    monkeypatch.setattr(work, "calculated", calculate)


def test_the_log_is_simulated_and_compared(world: World, login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_here(monkeypatch)
    monkeypatch.setattr(reports, "PART", 7)
    cluster(world)
    for agent in world.agents.values():
        agent.end(1)
    world.settle(3)
    eve = login("eve")
    assert "1 job finished here" in html.unescape(eve.get("/web/fidelity"))
    text = html.unescape(shown(eve, "/web/fidelity?run=1"))
    assert "Mean completion time" in text
    assert "fifo-backfill" in text
    assert "/web/jobs/j-1" in text
    assert "<svg" in eve.ask("GET", "/web/fidelity.svg").text
    login("ann").get("/web/fidelity", 403)
    login("ann").get("/web/fidelity.svg", 404)


def test_what_cannot_be_judged_says_why(world: World, login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_here(monkeypatch)
    eve = login("eve")
    assert "No job has finished yet" in eve.get("/web/fidelity")
    cluster(world)
    assert "no job has finished" in shown(eve, "/web/fidelity?run=1")


def test_long_logs_are_for_the_command_line(world: World, login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    judged_here(monkeypatch)
    monkeypatch.setattr(reports, "MOST_ENTRIES", 3)
    cluster(world)
    assert "plait fidelity" in shown(login("eve"), "/web/fidelity?run=1")


def test_the_style_has_the_parts_of_pages(login: Login) -> None:
    style = login("ann").get("/web/assets/page.css")
    for part in ("main {", ".strip {", ".map {", ".charts {", "iframe.report {", "img.picture {", "@media"):
        assert part in style
