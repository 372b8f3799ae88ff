"""Messages between agents and service as they were released, and pages and control files of other versions."""

import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.live.agent.gates import Gates
from plait.live.protocol import wire
from plait.live.protocol.wire import Assignment, Observed, WireError, decode, decode_report, encode, from_json, to_json
from plait.runtime import page as pages
from plait.runtime.page import Page, PageError
from plait.runtime.stage_gate import NullGate
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


@pytest.mark.parametrize("version", [0, pages.VERSION + 1])
def test_a_page_of_another_version_is_refused_with_the_remedy(tmp_path: Path, version: int) -> None:
    path = tmp_path / "page.bin"
    Page.create(path).close()
    data = bytearray(path.read_bytes())
    struct.pack_into("<q", data, 8, version)
    path.write_bytes(data)
    with pytest.raises(PageError, match=f"a page of version {version}, and this plait reads version 1: install"):
        Page.open(path)


@pytest.mark.parametrize("made_by", [None, pages.VERSION, pages.VERSION + 1])
def test_control_of_another_version_is_a_note_and_no_gate(tmp_path: Path, made_by: int | None) -> None:
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        group = {"members": [{"job": 1, "turn": 0}, {"job": 2, "turn": 1}], "gate": "none", "version": 1}
        stated = {} if made_by is None else {"made_by": made_by}
        (tmp_path / "control.json").write_text(json.dumps({"version": 1, "epoch": 1, "group": group} | stated))
        page.control_version = 1
        control = ControlFile(Environment(run_dir=tmp_path), page)
        control.gate(NullGate())
        assert control.alone is (made_by != pages.VERSION)
    notes = (tmp_path / FILE).read_text() if (tmp_path / FILE).exists() else ""
    assert ("install the same plait" in notes) is (made_by != pages.VERSION)


def test_agents_say_of_which_version_control_is(tmp_path: Path) -> None:
    from plait.live.agent.processes.attempt import LocalAttempt
    from plait.live.layout import Layout

    run = from_json(Assignment, golden("assignment_v1")).attempts[0]
    alone = replace(run, group=replace(run.group, gate="none"))
    gates = Gates(Layout(tmp_path), "n0", lambda *_, **__: None)
    gates.tell(LocalAttempt(alone, tmp_path, "mark"))
    control = json.loads((tmp_path / "control.json").read_text())
    assert control["made_by"] == pages.VERSION


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
