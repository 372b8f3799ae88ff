"""The page of a rank: what one side writes the other reads, and nothing that a job does to it hurts the agent."""

import math
import os
import signal
import struct

import pytest

from plait.runtime.gates import NullGate, make_group, open_gate
from plait.runtime.page import SIZE, JobState, Page, PageError, PageProfile
from plait.sharing.directive import StepStats

#: A fit, statistics, GPUs, seconds of a restart.
FIT = (0.1, 0.01, 0.5, 0.05, 0.2, 0.02, 1.5, 1.0, 4.0, 8.0, 30.0)

NUMBERS = [name for name, field in vars(Page).items() if type(field).__name__ in ("Float", "Int") and name[0] != "_"]
ROWS = [name for name, field in vars(Page).items() if type(field).__name__ == "PerResource" and name[0] != "_"]


def test_every_field_has_a_place_of_its_own(sides):
    job = sides[1]
    values = {name: float(3 + i) for i, name in enumerate(NUMBERS)}
    rows = {name: tuple(100.0 * (i + 1) + r for r in range(4)) for i, name in enumerate(ROWS)}
    for i, (name, value) in enumerate({**values, **rows}.items()):
        setattr(sides[i % 2], name, int(value) if isinstance(getattr(job, name), int) else value)
    job.set_profile((1.0, 2.0, 3.0, 4.0), 9.0, 20)
    job.set_goodput(FIT)
    for side in sides:
        assert {name: float(getattr(side, name)) for name in NUMBERS} == values
        assert {name: getattr(side, name) for name in ROWS} == rows
        assert side.profile == PageProfile((1.0, 2.0, 3.0, 4.0), 9.0, 20)
        assert side.goodput == FIT


def test_documented_offsets(sides):
    agent, job = sides
    job.steps, job.state, agent.stop, job.busy_s = 7.5, JobState.RUNNING, 2, (1, 2, 3, 4)
    data = agent.path.read_bytes()
    assert len(data) == SIZE
    assert data[:6] == b"PLAIT1"
    assert struct.unpack_from("<d", data, 64) == (7.5,)
    assert struct.unpack_from("<q", data, 96) == (1,)
    assert struct.unpack_from("<4d", data, 160) == (1, 2, 3, 4)
    assert struct.unpack_from("<q", data, 2048) == (2,)
    job.refused_bytes, agent.share_until = 5.0, 6.0
    job.add_step(StepStats(13, 0.5))
    data = agent.path.read_bytes()
    assert struct.unpack_from("<d", data, 568) == (5.0,)
    assert struct.unpack_from("<qd", data, 576 + 120) == (14, 0.5)
    assert struct.unpack_from("<d", data, 2112) == (6.0,)


def test_a_fresh_page(sides):
    agent, _ = sides
    assert (agent.steps, agent.stop, agent.share, agent.profile) == (0.0, 0, 1.0, None)
    assert math.isnan(agent.skew)
    assert agent.number("skew") is None


def test_seconds_add_up(sides):
    agent, job = sides
    for _ in range(4):
        job.add("busy_s", 2, 0.25)
    job.add("waited_s", 0, 2.0)
    assert agent.seconds("busy_s") == (0, 0, 1.0, 0)
    assert agent.seconds("waited_s") == (2.0, 0, 0, 0)
    job.busy_s = (math.nan, -1.0, math.inf, 3.0)
    assert agent.seconds("busy_s") == (0, 0, 0, 3.0)


def test_a_profile_half_written_is_none(sides):
    agent, job = sides
    job.set_profile((1.0, 1.0, 1.0, 1.0), 4.0, 20)
    job._profile_guard += 1  # as if it were killed in the middle of writing the next one
    job._profile_iteration_s = 99.0
    assert agent.profile is None
    job.set_profile((2.0, 1.0, 1.0, 1.0), 5.0, 30)
    assert agent.profile == PageProfile((2.0, 1.0, 1.0, 1.0), 5.0, 30)
    job.set_profile((math.nan, 1.0, 1.0, 1.0), 5.0, 30)
    assert agent.profile is None


def test_a_goodput_half_written_or_impossible_is_none(sides):
    agent, job = sides
    assert agent.goodput is None
    job.set_goodput(FIT)
    job._goodput_guard += 1  # as if it were killed in the middle of writing the next one
    assert agent.goodput is None
    unfitted = (math.nan,) * 8 + (1.0, 1.0, math.nan)
    job.set_goodput(unfitted)
    assert struct.pack("<11d", *agent.goodput) == struct.pack("<11d", *unfitted)
    for place, number in [(0, math.nan), (1, -1.0), (6, 0.5), (6, 11.0), (7, math.inf), (8, -1.0), (10, -2.0)]:
        job.set_goodput(FIT[:place] + (number,) + FIT[place + 1 :])
        assert agent.goodput is None, place
    with pytest.raises(ValueError, match="zip"):
        job.set_goodput(FIT[:-1])
    job.set_goodput(FIT)
    assert agent.goodput == FIT


def test_what_a_killed_job_wrote_is_there(sides):
    agent, job = sides
    pid = os.fork()
    if pid == 0:
        job.steps, job.pid = 41.0, os.getpid()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (agent.steps, agent.pid) == (41.0, pid)


def test_a_page_cut_short_reads_as_nothing(sides):
    agent, _ = sides
    os.truncate(agent.path, 0)
    assert (agent.steps, agent.busy_s, agent.profile) == (0.0, (0.0,) * 4, None)
    agent.stop = 1
    with pytest.raises(PageError, match="not a page"):
        Page.open(agent.path)


def test_what_is_no_page_is_refused(tmp_path):
    with pytest.raises(PageError, match="no page"):
        Page.open(tmp_path / "none")
    (tmp_path / "odd").write_bytes(b"\0" * SIZE)
    with pytest.raises(PageError, match="not a page"):
        Page.open(tmp_path / "odd")
    (tmp_path / "later").write_bytes(b"PLAIT1\0\0" + struct.pack("<q", 4) + b"\0" * SIZE)
    with pytest.raises(PageError, match="of version 4, and this plait reads version 1"):
        Page.open(tmp_path / "later")


def test_a_new_page_takes_the_place_of_the_old(tmp_path):
    with Page.create(tmp_path / "page.bin") as old:
        old.steps = 5.0
        with Page.create(tmp_path / "page.bin", mapped=True) as new:
            assert (new.steps, old.steps) == (0.0, 5.0)
    assert [p.name for p in tmp_path.iterdir()] == ["page.bin"]


def test_the_page_tells_which_gate_is_in_effect(sides, group):
    agent, job = sides
    made = group("barrier", 2, version=4)
    gate = open_gate({"group": made.control(2)}, job)
    assert (agent.gate, agent.gate_version) == (2, 4)
    gate.close()
    make_group(made.folder, "tokens", made.members, version=5)
    assert open_gate({"group": made.control(2)}, job).kind == "none"
    assert (agent.gate, agent.gate_version) == (0, 4)


@pytest.mark.parametrize(
    "entry",
    [
        {"gate": "tokens"},
        {"gate": "tickets", "dir": "g", "version": 1, "members": [{"job": 1, "turn": 0}]},
        {"gate": "tokens", "dir": "g", "version": 1, "members": [{"job": 1, "turn": 4}]},
        {"gate": "tokens", "dir": "nowhere", "version": 1, "members": [{"job": 1, "turn": 0}]},
        {"gate": "tokens", "dir": "g", "version": 1, "members": [{"job": 1, "turn": 0}], "rank": 1},
        {"gate": "tokens", "dir": "g", "version": "x", "members": 3},
    ],
)
def test_an_entry_that_cannot_be_used_gives_the_null_gate_and_the_reason(entry):
    gate = open_gate({"group": entry})
    assert isinstance(gate, NullGate)
    assert gate.reason


def test_no_group_is_no_gate_and_no_complaint():
    for control in ({}, {"group": None}, {"group": {"gate": "none"}}):
        gate = open_gate(control)
        assert (gate.kind, gate.reason) == ("none", "")


def test_the_null_gate_counts():
    gate = NullGate()
    for _ in range(3):
        gate.enter(1)
        gate.leave(1)
    gate.leave(2)
    assert gate.stats.stages == [0, 3, 0, 0]
