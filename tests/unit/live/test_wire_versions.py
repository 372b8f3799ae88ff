"""Messages between agents and service as they were released, and pages of one version apart."""

from __future__ import annotations

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.live.agent.gates import Gates
from plait.live.protocol import wire
from plait.live.protocol.wire import (
    Assignment,
    Observed,
    WireError,
    decode,
    decode_report,
    encode,
    from_json,
    to_json,
)
from plait.runtime import page as pages
from plait.runtime.page import Page, PageError, check_versions
from plait.sharing import Directive
from plait.training.environment import ControlFile, Environment
from plait.training.process import FILE

GOLDEN = Path(__file__).parents[2] / "golden" / "wire"
KINDS: list[tuple[str, Any]] = [("observed", Observed), ("assignment", Assignment)]
#: Fields without a default.
KEYS = ("node", "agent", "term", "version")


def golden(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


@pytest.mark.parametrize(("name", "kind"), KINDS)
def test_a_message_of_a_released_version_is_read_and_written_as_ever(name: str, kind: Any) -> None:
    data = golden(f"{name}_v1")
    message = from_json(kind, data)
    assert json.loads(encode(message)) == json.loads(json.dumps(to_json(message))) == data
    assert decode(kind, json.dumps(data).encode()) == decode(kind, encode(message)) == message
    unset = from_json(kind, {key: data[key] for key in KEYS if key in data})  # else a field could be dropped unseen
    assert {key for key in data if getattr(message, key) == getattr(unset, key)} == {"v", *KEYS} & set(data)


@pytest.mark.parametrize(("name", "kind"), KINDS)
@pytest.mark.parametrize("version", [0, wire.VERSION + 1, "2", None])
def test_other_versions_are_refused_with_the_remedy(name: str, kind: Any, version: Any) -> None:
    data = {**golden(f"{name}_v1"), "v": version}
    for read in (from_json, lambda kind, data: decode(kind, json.dumps(data).encode())):
        with pytest.raises(WireError, match=r"this plait speaks version 1: install the same plait on all machines"):
            read(kind, data)


def test_what_no_process_can_report_is_cleaned_where_it_is_decoded() -> None:
    process = {"job": 1, "epoch": 1, "rank": 0, "state": "ended"}
    odd = {**process, "steps": math.nan, "step_s": -1, "exit_code": 10**30, "reason": "a\0b", "profile": None}
    body = {"node": {"id": "n0", "gpus": 1}, "agent": "a", "attempts": [odd, {**process, "rank": 1, "steps": "many"}]}
    first, second = decode_report(json.dumps(body).encode()).attempts
    assert (first.steps, first.step_s, first.exit_code, first.reason) == (0.0, None, 255, "a b")
    assert (second.rank, second.state, second.exit_code) == (1, "ended", 255)
    for text in ("", "{", "[1]", "{}", "null", "[" * 100_000, json.dumps({**body, "agent": 3})):
        with pytest.raises(WireError):
            decode_report(text.encode())


def test_a_page_of_the_version_before_is_read_and_written(tmp_path: Path) -> None:
    path = tmp_path / "page.bin"
    path.write_bytes((GOLDEN / "page_v2.bin").read_bytes())
    with Page.open(path, mapped=False) as agent, Page.open(path) as job:
        assert (agent.steps, job.stop) == (120.0, pages.STOP_GRACEFULLY)
        job.steps, agent.stop = 121.0, pages.STOP_NOW
        assert (agent.steps, job.stop) == (121.0, pages.STOP_NOW)
        # Words that it does not have say nothing.
        assert (agent.library_version, agent.reached(1 << 30), agent.new_steps(-1)) == (0, None, [])
        assert (job.directive, job.share_until) == (Directive(), 0.0)


def test_the_version_before_can_read_our_page(tmp_path: Path) -> None:
    """It looks for the two versions behind the magic, and all that it knows is where it was."""
    Page.create(tmp_path / "page.bin").close()
    data = (tmp_path / "page.bin").read_bytes()
    assert struct.unpack_from("<qq", data, 8) == (pages.VERSION - 1, pages.VERSION)
    before = bytearray((GOLDEN / "page_v2.bin").read_bytes())
    before[8:24] = data[8:24]
    before[64:72] = before[2048:2056] = bytes(8)  # what was told through it
    assert bytes(before) == data


@pytest.mark.parametrize(("made_by", "oldest"), [(pages.VERSION + 2, pages.VERSION + 1), (pages.VERSION - 2, 1)])
def test_pages_further_apart_are_refused_in_words(tmp_path: Path, made_by: int, oldest: int) -> None:
    path = tmp_path / "page.bin"
    data = bytearray((GOLDEN / "page_v2.bin").read_bytes())
    struct.pack_into("<qq", data, 8, oldest, made_by)
    path.write_bytes(data)
    with pytest.raises(PageError, match="within one version of each other"):
        Page.open(path)
    assert check_versions(made_by, oldest)


def test_a_page_of_version_1_is_refused(tmp_path: Path) -> None:
    (tmp_path / "page.bin").write_bytes((GOLDEN / "page_v1.bin").read_bytes())
    with pytest.raises(PageError, match="of protocol version 1, to be read from version 1 on; this plait speaks"):
        Page.open(tmp_path / "page.bin")


def test_a_page_of_the_version_after_ours_is_read(tmp_path: Path) -> None:
    path = tmp_path / "page.bin"
    data = bytearray((GOLDEN / "page_v2.bin").read_bytes())
    struct.pack_into("<qq", data, 8, pages.VERSION, pages.VERSION + 1)
    path.write_bytes(data)
    with Page.open(path) as job:
        assert job.steps == 120.0


@pytest.mark.parametrize(
    ("versions", "alone"),
    [
        ({}, True),  # of version 1
        ({"made_by": pages.VERSION - 1, "oldest": pages.VERSION - 2}, False),
        ({"made_by": pages.VERSION, "oldest": pages.OLDEST}, False),
        ({"made_by": pages.VERSION + 1, "oldest": pages.VERSION}, False),
        ({"made_by": pages.VERSION + 2, "oldest": pages.VERSION + 1}, True),
    ],
)
def test_control_of_a_near_version_is_obeyed(tmp_path: Path, versions: dict[str, int], alone: bool) -> None:
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        group = {"members": [{"job": 1, "turn": 0}, {"job": 2, "turn": 1}], "gate": "none", "version": 1}
        (tmp_path / "control.json").write_text(json.dumps({"version": 1, "epoch": 1, "group": group} | versions))
        page.control_version = 1
        control = ControlFile(Environment(run_dir=tmp_path), page)
        control.gate(pages_gate())
        assert control.alone is alone
    said = (tmp_path / FILE).read_text() if (tmp_path / FILE).exists() else ""
    assert ("within one version" in said) is alone


def pages_gate() -> Any:
    from plait.runtime.stage_gate import NullGate

    return NullGate()


def test_agents_say_of_which_version_control_is(tmp_path: Path) -> None:
    from plait.live.agent.processes.attempt import LocalAttempt
    from plait.live.layout import Layout

    run = from_json(Assignment, golden("assignment_v1")).attempts[0]
    alone = replace(run, group=replace(run.group, gate="none"))
    gates = Gates(Layout(tmp_path), "n0", lambda *_, **__: None)
    gates.tell(LocalAttempt(alone, tmp_path, "mark"))
    control = json.loads((tmp_path / "control.json").read_text())
    assert (control["made_by"], control["oldest"]) == (pages.VERSION, pages.OLDEST)


def test_a_control_file_that_was_written_by_an_agent_that_died_is_announced_by_the_next(tmp_path: Path) -> None:
    from plait.live.agent.pages import PageReader
    from plait.live.agent.processes.attempt import LocalAttempt
    from plait.live.layout import Layout

    run = from_json(Assignment, golden("assignment_v1")).attempts[0]
    alone = replace(run, group=replace(run.group, gate="none"))
    pages.Page.create(tmp_path / "page.bin").close()
    gates = Gates(Layout(tmp_path), "n0", lambda *_, **__: None)
    gates.tell(LocalAttempt(alone, tmp_path, "mark"))  # killed before it has written to the page
    after = LocalAttempt(alone, tmp_path, "mark", page=PageReader(tmp_path / "page.bin"))
    gates.tell(after)
    with pages.Page.open(tmp_path / "page.bin") as page:
        assert page.control_version == json.loads((tmp_path / "control.json").read_text())["version"] == 1
    for odd in ("x", -1, 1 << 70, True):  # a job can write there
        text = json.loads((tmp_path / "control.json").read_text()) | {"version": odd}
        (tmp_path / "control.json").write_text(json.dumps(text))
        after.group_version = None
        gates.tell(after)
    after.page.close()
