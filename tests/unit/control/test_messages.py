"""Every event and command goes to JSON and comes back the same."""

import json
import math
from dataclasses import astuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.control import messages as m
from plait.control.job_store import JobStore
from plait.core.arrays import FloatArray, IntArray
from plait.core.errors import InputError
from plait.core.goodput import Estimate
from plait.core.jobs import JobBatch, JobSpec
from plait.core.network_grants import NetworkGrant
from plait.core.plan import Gate, Group, Groups, Member, NodeReservation
from strategies import grants, nodes, spec_lists

times = st.floats(0, 1e9)
counts = st.integers(0, 5)


def ints(n: int) -> st.SearchStrategy[IntArray]:
    return st.lists(st.integers(0, 2**40), min_size=n, max_size=n).map(lambda v: np.array(v, dtype=np.int64))


def floats(n: int) -> st.SearchStrategy[FloatArray]:
    value = st.floats(0, 1e12) | st.just(math.nan)
    return st.lists(value, min_size=n, max_size=n).map(lambda v: np.array(v, dtype=np.float64))


def matrices(n: int, columns: int = 4) -> st.SearchStrategy[FloatArray]:
    row = st.lists(st.floats(0, 1e3) | st.just(math.nan), min_size=columns, max_size=columns)
    return st.lists(row, min_size=n, max_size=n).map(lambda v: np.array(v, dtype=np.float64).reshape(n, columns))


members = st.builds(
    Member,
    st.integers(0, 10**6),
    turn=st.integers(0, 3),
    batch_size=st.integers(0, 4096),
    accumulation=st.integers(1, 8),
    gpu_share=st.floats(0.01, 1.0),
    gpu_memory_bytes=st.sampled_from([0.0, 8e9]),
)
plain_members = st.builds(Member, st.integers(0, 10**6))


@st.composite
def groups(draw: st.DrawFn) -> Groups:
    kind = draw(st.sampled_from([members, plain_members]))
    rows = [
        Group(
            tuple(draw(st.lists(kind, min_size=1, max_size=3))),
            tuple(sorted(draw(st.sets(st.integers(0, 500), min_size=1, max_size=6)))),
            draw(st.sampled_from(Gate)),
            draw(st.booleans()),
        )
        for _ in range(draw(counts))
    ]
    return Groups.of(rows)


@st.composite
def any_message(draw: st.DrawFn) -> Any:
    n = draw(counts)
    at, jobs = draw(times), draw(ints(n))
    text = draw(st.text(max_size=20))
    made = {
        m.JobSubmitted: lambda: m.JobSubmitted(
            at, draw(counts), JobBatch.of(draw(spec_lists())), draw(counts), draw(st.sampled_from([(), ((0, text),)]))
        ),
        m.ProgressReported: lambda: m.ProgressReported(
            at, jobs, draw(floats(n)), draw(floats(n)), draw(floats(n)), draw(floats(n))
        ),
        m.JobProfiled: lambda: m.JobProfiled(at, jobs, draw(floats(n)), draw(matrices(n))),
        m.GoodputReported: lambda: m.GoodputReported(at, jobs, draw(matrices(n, len(Estimate)))),
        m.StopCostReported: lambda: m.StopCostReported(at, jobs, draw(ints(n)), draw(floats(n)), draw(floats(n))),
        m.JobKept: lambda: m.JobKept(at, jobs, draw(floats(n))),
        m.JobHeld: lambda: m.JobHeld(at, jobs, draw(ints(n))),
        m.UsageReported: lambda: m.UsageReported(
            at, *(draw(floats(draw(counts))) for _ in range(2)), jobs, *(draw(floats(n)) for _ in range(4))
        ),
        m.NetworkReported: lambda: m.NetworkReported(at, jobs, *(draw(floats(n)) for _ in range(3))),
        m.SwitchLost: lambda: m.SwitchLost(at, text),
        m.SwitchJoined: lambda: m.SwitchJoined(at, text),
        m.JobFinished: lambda: m.JobFinished(at, jobs, draw(floats(n))),
        m.JobFailed: lambda: m.JobFailed(at, jobs, text),
        m.JobCancelled: lambda: m.JobCancelled(at, jobs),
        m.JobUpdated: lambda: m.JobUpdated(at, jobs, JobBatch.of(draw(spec_lists()))),
        m.JobRequeued: lambda: m.JobRequeued(at, jobs),
        m.NodeJoined: lambda: m.NodeJoined(at, draw(nodes(3))),
        m.NodeLost: lambda: m.NodeLost(at, text),
        m.NodeSuspected: lambda: m.NodeSuspected(at, text, True),
        m.NodesReserved: lambda: m.NodesReserved(at, NodeReservation("r-1", ("n0",), "vision", at, at + 1.0, text)),
        m.ReservationCancelled: lambda: m.ReservationCancelled(at, "r-1", text),
        m.LaunchFailed: lambda: m.LaunchFailed(at, jobs, text),
        m.ReplanDue: lambda: m.ReplanDue(at),
        m.Stop: lambda: m.Stop(n, jobs, draw(st.booleans()), draw(st.booleans())),
        m.Grant: lambda: m.Grant(n, tuple(draw(grants()) for _ in range(n)), jobs, {n: text} if n else {}),
        m.Launch: lambda: m.Launch(n, draw(groups())),
        m.Adjust: lambda: m.Adjust(n, draw(groups())),
        m.Refuse: lambda: m.Refuse(n, jobs, tuple(draw(st.lists(st.text(), min_size=n, max_size=n)))),
        m.Wake: lambda: m.Wake(n, at),
    }
    assert set(made) == set(m.Event.__subclasses__()) | set(m.Command.__subclasses__()), "a message type without a test"
    return made[draw(st.sampled_from(list(made)))]()


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b, equal_nan=a.dtype.kind == "f"))
    if isinstance(a, (JobBatch, Groups)):
        return list(a) == list(b)
    if isinstance(a, tuple) and any(isinstance(one, NetworkGrant) for one in a):
        return list(map(astuple, a)) == list(map(astuple, b))  # with their reasons
    return bool(a == b)


@given(any_message())
def test_messages_survive_json(message: Any) -> None:
    text = json.dumps(m.to_json(message), allow_nan=False)
    back = m.from_json(json.loads(text))
    assert type(back) is type(message)
    for name in type(message).__dataclass_fields__:
        assert same(getattr(message, name), getattr(back, name)), name
    assert json.dumps(m.to_json(back), allow_nan=False) == text


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "Nonsense"},
        {"type": "ReplanDue"},
        {"type": "Stop", "event": 1, "jobs": ["x"], "checkpoint": True, "suspend": False},
        {"type": "Launch", "event": 1, "groups": [{"jobs": [1]}]},
        {"type": "JobSubmitted", "at_s": 0, "first": 0, "jobs": [{"id": "a", "gpus": 0}]},
        {"type": "JobSubmitted", "at_s": 0, "first": 0, "jobs": [{"id": "a", "colour": "red"}]},
    ],
)
def test_what_is_no_message_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        m.from_json(data)


def test_snapshots_keep_the_projects_of_jobs() -> None:
    store = JobStore()
    store.append(JobBatch.of([JobSpec(id="a", project="vision")]), 0.0)
    stored = store.to_json()
    assert stored["projects"] == ["vision"]
    assert JobStore.from_json(stored).columns["project_number"][:1].tolist() == [0]
