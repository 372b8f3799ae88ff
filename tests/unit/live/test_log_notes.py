"""Notes of the log: each is written with its fields and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from plait.core.errors import InputError
from plait.live.scheduler.records import notes

#: Each kind of note, and what the log has beside its type and time.
WRITTEN: list[tuple[notes.Note, dict[str, Any]]] = [
    (notes.Requested(1.0, 3, "ann", [{"gpus": 2}]), {"first": 3, "owner": "ann", "requests": [{"gpus": 2}]}),
    (notes.Requested(1.0, 3, "ann", [], "k"), {"first": 3, "owner": "ann", "requests": [], "key": "k"}),
    (notes.CancelAsked(1.0, 2), {"job": 2}),
    (notes.CancelAsked(1.0, 2, "ann"), {"job": 2, "by": "ann"}),
    (notes.RequeueAsked(1.0, 2, "ann", "k"), {"job": 2, "by": "ann", "key": "k"}),
    (
        notes.UpdateAsked(1.0, 2, "ann", {"gpus": 4}, {"gpus": None}),
        {"job": 2, "by": "ann", "fields": {"gpus": 4}, "before": {"gpus": None}},
    ),
    (notes.PolicySet(1.0, "fifo", may_lose_work=False), {"policy": "fifo", "may_lose_work": False}),
    (notes.ProjectSet(1.0, "p", gpu_quota=None, weight=2.0), {"name": "p", "gpu_quota": None, "weight": 2.0}),
    (notes.ProjectSet(1.0, "p", gone=True), {"name": "p", "gone": True}),
    (notes.NetworkSet(1.0, "single-switch"), {"text": "single-switch"}),
    (notes.SwitchServed(1.0, "leaf0", "n0", "7-1"), {"switch": "leaf0", "node": "n0", "incarnation": "7-1"}),
    (
        notes.RanksTold(1.0, 2, 1, 3, False, "switch leaf0 was lost"),
        {"job": 2, "epoch": 1, "version": 3, "granted": False, "reason": "switch leaf0 was lost"},
    ),
    (notes.RanksMoved(1.0, 2, 3), {"job": 2, "version": 3}),
    (notes.NumbersSpent(1.0, 2, 4), {"job": 2, "since": 4}),
    (
        notes.AttemptBegan(1.0, 2, 1, [0], [("n0", 0)], 0),
        {"job": 2, "epoch": 1, "gpus": [0], "ranks": [["n0", 0]], "port": 0},
    ),
    (notes.StopAsked(1.0, 2, 1, "preempted"), {"job": 2, "epoch": 1, "why": "preempted"}),
    (
        notes.StopAsked(1.0, 2, 1, "preempted", None, "for j-3 of ann", [3]),
        {"job": 2, "epoch": 1, "why": "preempted", "reason": "for j-3 of ann", "takers": [3]},
    ),
    (notes.StopAsked(1.0, 2, 1, "leaving", None), {"job": 2, "epoch": 1, "why": "leaving", "grace_s": None}),
    (
        notes.RankEnded(1.0, 2, 1, 0, 3, None, started=True),
        {"job": 2, "epoch": 1, "rank": 0, "exit_code": 3, "reason": None, "started": True},
    ),
    (
        notes.AttemptOver(1.0, 2, 1, "failed", 5.0, 3.0, 1.0, None, None, None, 2.0, "failed"),
        {
            "job": 2, "epoch": 1, "outcome": "failed", "held_s": 5.0, "steps": 3.0, "ended_s": 1.0,
            "first_step_s": None, "last_step_s": None, "batch_size": None, "lost_work_s": 2.0, "why_lost": "failed",
        },
    ),
    (notes.Restarted(1.0, 2, 1, 4.0), {"job": 2, "epoch": 1, "cost_s": 4.0}),
    (notes.ProfileRecorded(1.0, key="k", skew=0.5), {"key": "k", "skew": 0.5}),
    (notes.ProfileRecorded(1.0, job=0, beside=True), {"job": 0, "beside": True}),
    (notes.ForecastRecorded(1.0, 2, None, [1.0, 2.0, None]), {"job": 2, "start": None, "end": [1.0, 2.0, None]}),
    (notes.NodeDrained(1.0, "n0", drained=True), {"node": "n0", "drained": True}),
    (notes.NodeLeaving(1.0, "n0", leaving=False), {"node": "n0", "leaving": False}),
    (notes.NodeLeaving(1.0, "n0", leaving=True, leaving_s=0.0), {"node": "n0", "leaving": True, "leaving_s": 0.0}),
    (notes.NodeForgotten(1.0, "n0"), {"node": "n0"}),
    (notes.ServiceStarted(1.0, 2, 7.5), {"term": 2, "away_s": 7.5}),
    (notes.AgentRestarted(1.0, "n0"), {"node": "n0"}),
    (
        notes.Undelivered(1.0, 2, "mail", "failed", "it answered 500"),
        {"job": 2, "channel": "mail", "event": "failed", "why": "it answered 500"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("note", "fields"), WRITTEN, ids=lambda value: type(value).__name__)
def test_a_note_is_written_with_what_it_says_and_read_back(note: notes.Note, fields: dict[str, Any]) -> None:
    text = json.dumps(notes.note_to_json(note), allow_nan=False)
    assert text == json.dumps({"type": type(note).__name__, "at_s": 1.0, **fields})
    assert notes.note_from_json(json.loads(text)) == note


def test_every_kind_of_note_is_tried_above() -> None:
    assert {type(note).__name__ for note, _ in WRITTEN} == set(notes.KINDS)


@pytest.mark.parametrize(
    "data", [{"type": "Unheard"}, {"type": "CancelAsked", "at_s": 1.0}, {"type": "CancelAsked", "at_s": 1.0, "jobs": 3}]
)
def test_what_is_no_note_of_this_version_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="not a note of this version"):
        notes.note_from_json(data)


def test_a_log_from_before_lost_work_was_a_question_is_read() -> None:
    old = {"type": "PolicySet", "at_s": 1.0, "policy": "fifo"}
    assert notes.note_from_json(old) == notes.PolicySet(1.0, "fifo", may_lose_work=False)
