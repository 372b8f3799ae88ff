"""Reports of simulations and of advice in a sandbox."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from world import Browser, World

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


def test_the_style_has_the_parts_of_pages(login: Login) -> None:
    style = login("ann").get("/web/assets/page.css")
    for part in ("main {", ".strip {", ".map {", ".charts {", "iframe.report {", "@media"):
        assert part in style
