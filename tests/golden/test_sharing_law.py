"""A recorded trace of one GPU: the laws decide on it today what they decided when it was recorded, to the bit.

`trace.jsonl` has a line a decision: what was seen, and the directives. In it a guaranteed job starts beside two
opportunistic jobs, is measured, has a burst of memory, changes its label and ends. After a change of the laws that is
meant, record it again: PLAIT_RECORD=1 pytest tests/golden/test_sharing_law.py
"""

import json
import os
from pathlib import Path

from plait.sharing.coordinator import CODEC, Observation, State, decide
from plait.sim.gpu import PATTERNS, Mode, Opportunistic, Phase, Scenario, run

TRACE = Path(__file__).parent / "sharing" / "trace.jsonl"
GB = 1_000_000_000


def record() -> None:
    """Write the trace of a run of the micro model."""
    base = PATTERNS["100+100"]
    phases = (
        Phase(base, 13.0, label="training"),
        Phase(base, 14.0, memory_bytes=24 * GB, label="training"),
        Phase(base, 15.0, label="training"),
        Phase(base.scaled(1.4), 19.0, label="evaluation"),
    )
    jobs = (
        Opportunistic("light", 0.001, quanta=5, wants_bytes=6 * GB, curve=((0.0, 0.2), (1.0, 1.0))),
        Opportunistic("heavy", 0.002, weight=3.0, quanta=5, wants_bytes=3 * GB, live_bytes=2 * GB),
    )
    done = run(Scenario(phases, jobs, 20.0), Mode.GATE, 11, record=True)
    with TRACE.open("w", encoding="utf-8") as file:
        for seen, (_, directives) in zip(done.observations, done.decisions, strict=True):
            told = {name: CODEC.encode(directive) for name, directive in directives.items()}
            file.write(json.dumps({"seen": CODEC.encode(seen), "told": told}, separators=(",", ":")) + "\n")


def test_a_recorded_trace_is_decided_as_it_was() -> None:
    if os.environ.get("PLAIT_RECORD"):
        record()
    state = State()
    for number, line in enumerate(TRACE.read_text(encoding="utf-8").splitlines(), 1):
        recorded = json.loads(line)
        seen = CODEC.decode(Observation, recorded["seen"])
        state, directives = decide(state, seen.now_s, seen.stats, seen.device)
        told = {name: CODEC.encode(directive) for name, directive in directives.items()}
        assert told == recorded["told"], f"line {number}, {seen.now_s:.2f} s"
        state = CODEC.decode(State, json.loads(json.dumps(CODEC.encode(state))))
    assert state.memory.bursts >= 1
    assert state.guaranteed is None
