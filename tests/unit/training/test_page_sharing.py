"""What a job and its agent say to each other about sharing a GPU: steps, limits, directives, neighbours."""

import json
import math
import os
import random
import signal
import struct
import time

import pytest

from plait.core.errors import InputError
from plait.runtime.guest_gate import Neighbours, neighbours_of
from plait.runtime.page import ENTRY_BYTES, RING_BYTES, SIZE, STEPS, VERSION, Page, steps_in
from plait.sharing.directive import Action, Directive, Reached, SpillReason, StepStats
from plait.training.environment import ControlFile, Environment
from plait.training.process import FILE

RING_AT = 576
FULL = StepStats(
    step=41, step_s=0.25, stage_s={"storage": 0.01, "cpu": 0.02, "gpu": 0.125, "network": 0.03},
    device_peak_bytes=7 << 30, device_persistent_bytes=3 << 30, device_reserved_bytes=8 << 30,
    host_spill_bytes=123_456_789, spill_reason=SpillReason.OUT_OF_MEMORY, quantum_s=0.004, work=64.0, operations=653,
    left_out=True,
)  # fmt: skip


def test_the_ring_ends_before_the_words_of_the_agent():
    assert RING_BYTES == STEPS * ENTRY_BYTES
    assert RING_AT + RING_BYTES <= 2048 < SIZE


@pytest.mark.parametrize("writer", [0, 1])
def test_a_step_arrives_whole(sides, writer):
    sides[writer].add_step(FULL)
    for side in sides:
        assert side.new_steps(-1) == [FULL]
        assert side.new_steps(40) == [FULL]
        assert side.new_steps(41) == []


def test_a_fresh_page_has_no_steps(sides):
    agent, job = sides
    assert agent.new_steps(-1) == []
    job.add_step(StepStats(0, 1.0))
    assert agent.new_steps(-1) == [StepStats(0, 1.0)]


def test_the_newest_steps_are_kept_in_order(sides):
    agent, job = sides
    for step in range(100):
        job.add_step(StepStats(step, 0.5 + step))
    assert [stats.step for stats in agent.new_steps(-1)] == list(range(100 - STEPS, 100))
    assert [stats.step_s for stats in agent.new_steps(97)] == [98.5, 99.5]


def test_phases_differ_as_their_labels_do(sides):
    agent, job = sides
    for step, phase in enumerate(("", "training", "evaluation", "training")):
        job.add_step(StepStats(step, 1.0, phase=phase))
    none, first, second, again = (stats.phase for stats in agent.new_steps(-1))
    assert none == ""
    assert first == again
    assert first
    assert second
    assert first != second


def test_an_entry_that_is_being_written_is_left_out(sides):
    agent, job = sides
    for step in range(3):
        job.add_step(StepStats(step, 1.0))
    job.ints[(RING_AT + ENTRY_BYTES) // 8] = 0  # as if it were killed in the middle of writing step 13 over step 1
    job.floats[(RING_AT + ENTRY_BYTES) // 8 + 1] = 99.0
    assert [stats.step for stats in agent.new_steps(-1)] == [0, 2]


def test_an_entry_that_changed_while_it_was_read_is_left_out(sides):
    agent, job = sides
    job.add_step(StepStats(1, 1.0))
    whole = agent.path.read_bytes()[RING_AT : RING_AT + RING_BYTES]
    for word in range(1, ENTRY_BYTES // 8 - 1):  # the guard was read before, this word after it was written
        torn = bytearray(whole)
        torn[ENTRY_BYTES + 8 * word : ENTRY_BYTES + 8 * word + 8] = struct.pack("<d", 77.0)
        assert steps_in(bytes(torn), whole, -1) == []
        assert steps_in(whole, bytes(torn), -1) == []
    assert steps_in(whole, whole[: ENTRY_BYTES - 8], -1) == []
    assert steps_in(whole, whole, -1) == [StepStats(1, 1.0)]


def test_nobody_ever_reads_parts_of_two_steps(sides):
    """A process writes as fast as it can; what is read has the same number in every field."""
    agent, _ = sides
    pid = os.fork()
    if pid == 0:
        with Page.open(agent.path) as job:
            for step in range(1, 1 << 30):
                job.add_step(StepStats(step, float(step), work=float(step), operations=step, device_peak_bytes=step))
    try:
        after, seen, until_s = 0, 0, time.process_time() + 0.3
        while time.process_time() < until_s:
            found = agent.new_steps(after)
            for stats in found:
                assert stats.step_s == stats.work == stats.operations == stats.device_peak_bytes == stats.step > after
                seen += 1
            after = found[-1].step if found else after
        assert seen > 100
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_what_a_job_scribbles_there_is_no_step(sides):
    """Random bytes, and numbers that cannot be: at worst a nonsense step, never an error."""
    agent, job = sides
    for word, bad in [(1, math.nan), (1, -1.0), (2, math.inf), (6, -5.0), (9, math.nan), (12, math.inf)]:
        job.add_step(StepStats(1, 1.0))
        job.floats[(RING_AT + ENTRY_BYTES) // 8 + word] = bad
        assert agent.new_steps(-1) == [], word
    job.add_step(StepStats(1, 1.0))
    job.ints[(RING_AT + ENTRY_BYTES) // 8 + 13] = 3  # no reason to spill
    assert agent.new_steps(-1) == []
    noise = random.Random(5)
    with open(agent.path, "r+b") as file:
        for _ in range(50):
            file.seek(RING_AT)
            file.write(noise.randbytes(RING_BYTES))
            file.flush()
            agent.new_steps(-1)


def test_a_page_cut_short_has_no_steps_and_default_words(sides):
    agent, job = sides
    job.add_step(FULL)
    job.set_reached(4, 5.0)
    os.truncate(agent.path, RING_AT + 8)
    assert agent.new_steps(-1) == []
    assert agent.reached(100) == Reached(4, 5)
    os.truncate(agent.path, 0)
    assert (agent.new_steps(-1), agent.reached(100), agent.share_until) == ([], None, 0.0)


@pytest.mark.parametrize(
    "directive",
    [
        Directive(),
        Directive(0.35, 5 << 30, 7, Action.PAUSE, 4),
        Directive(0.0, None, 1, Action.CHECKPOINT),
        Directive(1.0, 1, 2, Action.STOP),
    ],
)
def test_a_directive_arrives(sides, directive):
    agent, job = sides
    agent.set_directive(directive)
    assert job.directive == directive


def test_a_limit_of_nothing_is_not_no_limit(sides):
    agent, job = sides
    agent.set_directive(Directive(0.0, 0, action=Action.PAUSE))
    assert job.directive == Directive(0.0, 1, action=Action.PAUSE)


def test_words_that_cannot_be_are_as_if_unsaid(sides):
    agent, job = sides
    agent.share, agent.memory_limit_bytes, agent.action, agent.micro_batches = math.nan, math.nan, 9, -3
    assert job.directive == Directive()


def test_a_limit_that_was_reached_arrives(sides):
    agent, job = sides
    assert agent.reached(100) is None
    job.set_reached(3, 60.0)
    assert agent.reached(100) == Reached(3, 60)
    job.set_reached(4, math.inf)  # none
    assert agent.reached(100) == Reached(4, 100)
    job.limit_reached_bytes = math.nan
    assert agent.reached(100) is None


def told(tmp_path, page, entry, version, **control):
    control = {"version": version, "epoch": 1, "made_by": VERSION} | control
    (tmp_path / "control.json").write_text(json.dumps(control | ({} if entry is None else {"sharing": entry})))
    page.control_version = version


def test_neighbours_are_read_again_when_they_change(tmp_path):
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        control = ControlFile(Environment(run_dir=tmp_path), page)
        assert control.neighbours() is None
        guest = Neighbours(True, (tmp_path / "host.bin",), crowded=False)
        told(tmp_path, page, guest.control(), 1)
        assert control.neighbours() == guest
        told(tmp_path, page, Neighbours(False).control(), 2)  # promoted
        assert control.neighbours() == Neighbours()
        told(tmp_path, page, None, 3)
        assert control.neighbours() is None
        page.control_version = 4
        (tmp_path / "control.json").unlink()
        assert control.neighbours() is None


def test_an_entry_that_makes_no_sense_is_a_guest_without_a_gate_and_a_note(tmp_path):
    with Page.create(tmp_path / "page.bin", mapped=True) as page:
        control = ControlFile(Environment(run_dir=tmp_path), page)
        told(tmp_path, page, {"guest": "yes"}, 1)
        assert control.neighbours() == Neighbours(guest=True)
        told(tmp_path, page, {"guest": True}, 2, made_by=VERSION + 1)
        assert control.neighbours() is None
    said = (tmp_path / FILE).read_text()
    assert "sharing.guest in control.json is 'yes', needs true or false" in said
    assert "install the same plait" in said


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (True, "sharing in control.json is True, needs an object"),
        ({"guest": 1}, "sharing.guest in control.json is 1, needs true or false"),
        ({"crowded": 0}, "sharing.crowded in control.json is 0"),
        ({"gate": None}, "sharing.gate in control.json is None"),
        ({"hosts": "page.bin"}, "sharing.hosts in control.json is 'page.bin', needs a list of page files"),
        ({"hosts": [""]}, "sharing.hosts"),
    ],
)
def test_an_entry_that_makes_no_sense_is_named(entry, words):
    with pytest.raises(InputError, match=words):
        neighbours_of({"sharing": entry})


def test_fields_have_defaults_and_unknown_ones_are_ignored():
    assert neighbours_of({}) is None
    assert neighbours_of({"sharing": None}) is None
    assert neighbours_of({"sharing": {"later": 1}}) == Neighbours(False, (), True)
