"""Projects and users that used less than their share go first, inside a priority class."""

import json

import numpy as np
import pytest
from test_urgency import ends, job

from plait.control.job_store import JobStore
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobTable, Phase
from plait.policies.catalog import make_policy
from plait.policies.fair_share import half_life_s, used


def test_a_user_that_used_less_goes_first_and_old_use_is_forgotten() -> None:
    jobs = [job("a1", 0, 1000, user="a"), job("a2", 10, 100, user="a"), job("b1", 20, 100, user="b")]
    assert ends("fifo-backfill", jobs) == {"a1": 1000.0, "a2": 1100.0, "b1": 1200.0}
    assert ends("fifo-backfill:fair=1h", jobs) == {"a1": 1000.0, "b1": 1100.0, "a2": 1200.0}
    later = [job("a1", 0, 1000, user="a"), job("c", 90_000, 100), job("a2", 90_001, 100, user="a"),
             job("b1", 90_002, 100, user="b")]  # fmt: skip
    assert ends("fifo-backfill:fair=30m", later)["a2"] == 90_200.0  # after 49 half-lives
    assert ends("fifo-backfill:fair=7d", later)["b1"] == 90_200.0


def test_projects_share_by_weight_before_users_do() -> None:
    def stream(weight: float) -> dict[str, float]:
        return ends("fifo-backfill:fair=1d", [
            job("v1", 0, 1000, user="a", project="vision", weight=weight),
            job("v2", 1, 100, user="b", project="vision", weight=weight),
            job("n1", 0.5, 400, user="a", project="nlp"), job("n2", 2, 100, user="a", project="nlp"),
        ])  # fmt: skip

    # 1000 against 400 GPU-seconds when both have run: with equal weights nlp has used less.
    assert stream(1.0)["n2"] < stream(1.0)["v2"]
    assert stream(4.0)["v2"] < stream(4.0)["n2"]


def test_priority_goes_before_shares() -> None:
    jobs = [job("a1", 0, 1000, user="a"), job("a2", 10, 100, user="a", priority=1), job("b1", 20, 100, user="b")]
    assert ends("fifo-backfill:fair=1h", jobs)["a2"] == 1100.0


@pytest.mark.parametrize("name", ["srsf", "tiresias-l", "muri-l", "fifo", "plait"])
def test_every_order_takes_a_half_life(name: str) -> None:
    assert half_life_s(make_policy(f"{name}:fair=7d")) == 604_800.0
    assert half_life_s(make_policy(name)) is None


@pytest.mark.parametrize("text", ["0", "7w", "soon"])
def test_no_half_life_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"fair is .*; it takes a finite number of seconds > 0 or inf"):
        make_policy(f"srsf:fair={text}")


def use_of(store: JobStore, now_s: float) -> bytes:
    """All that decisions go by."""
    jobs = JobTable(store.columns, np.flatnonzero(store.columns["phase"][: store.count] <= 1), now_s, 0.0, store)
    return b"".join(part.tobytes() for part in vars(used(jobs, 3_000.0)).values())


def test_past_use_is_bitwise_the_same_after_a_snapshot_and_whenever_it_was_asked_for() -> None:
    rng = np.random.default_rng(5)
    users, projects = rng.integers(0, 4, 120).tolist(), rng.integers(0, 3, 120).tolist()
    jobs = JobBatch.of([
        job(f"j{i}", 0, 100, user=f"u{user}", project=f"p{project}", gpu_kinds=("cpu",) if i % 9 == 0 else ())
        for i, (user, project) in enumerate(zip(users, projects, strict=True))
    ])  # fmt: skip
    asked, silent, restored = JobStore(), JobStore(), JobStore()
    for store in (asked, silent, restored):
        store.append(jobs, 0.0)
    for step in range(100):
        end_s, gpu_s = 700.0 * step + rng.random(), 1e4 * rng.random()
        for store in (asked, silent, restored):
            store.columns["first_start_s"][step : step + 2] = end_s - 500.0, end_s
            store.columns["attained_gpu_s"][step], store.columns["end_s"][step] = gpu_s, end_s
            store.columns["phase"][step] = int(Phase.FINISHED)
            store.depart(np.array([step]))
        use_of(asked, end_s)
        if step in (30, 60):
            restored.forget(10)
            kept = np.arange(step - 9, 120)
            restored = JobStore.from_json(json.loads(json.dumps(restored.frozen(kept, 10)())))
    assert use_of(asked, 7e4) == use_of(silent, 7e4) == use_of(restored, 7e4)


def test_time_on_cpu_slots_is_no_use_of_gpus() -> None:
    jobs = [
        job("a1", 0, 1000, user="a", gpu_kinds=("cpu",)), job("b1", 10, 10, user="b"), job("c1", 20, 1000, user="c"),
        job("a2", 30, 100, user="a"), job("b2", 40, 100, user="b"),
    ]  # fmt: skip
    store = JobStore()
    store.append(JobBatch.of(jobs), 0.0)
    store.columns["first_start_s"][:2] = 0.0
    store.columns["attained_gpu_s"][:2] = 1000.0
    known = used(JobTable(store.columns, np.arange(5), 1000.0, 0.0, store), 1e9)
    assert known.member_gpu_s.round().tolist() == [0.0, 1000.0, 0.0]
    store.columns["end_s"][:2] = 1000.0
    store.columns["phase"][:2] = int(Phase.FINISHED)
    store.depart(np.arange(2))
    known = used(JobTable(store.columns, np.arange(2, 5), 1000.0, 0.0, store), 1e9)
    assert known.member_gpu_s.round().tolist() == [0.0, 1000.0, 0.0]
