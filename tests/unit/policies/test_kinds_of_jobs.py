"""What jobs of a kind still need: reference values, Kaplan and Meier, and what ends and jobs that go on teach."""

import numpy as np
import pytest

from plait.control.job_store import JobStore
from plait.core.jobs import JobBatch, JobSpec, JobTable
from plait.policies.kinds import ASSUMED, BINS, EDGES, PRIOR, Kinds, Lives, bins, posterior
from plait.policies.predicted import lives

KIND = np.array([[2, 3, 4, 5, 6, 0]])
OTHER = np.array([[12, 13, 14, 15, 6, 0]])


def figures(masses, at):
    above = np.append(np.cumsum(masses[::-1])[::-1], 0.0)
    area = np.append(0.0, np.cumsum(np.diff(EDGES) * (above[:-1] + above[1:]) / 2))
    left = Lives(above[None, :], area[None, :], np.zeros(1, dtype=np.int64), np.array([EDGES[at] * (1 + 1e-13)]))
    quantiles = [float(left.quantile_s(share)[0]) for share in (0.25, 0.5, 0.75)]
    return [float(left.mean_s()[0]), quantiles[1], float(left.rank_s()[0]), quantiles[0], quantiles[2]]


@pytest.mark.parametrize(
    ("ends", "alive", "at", "expected"),
    [
        ([], 0, 0, [13287.089, 1800.369, 1298.097, 467.495, 6947.799]),
        ([], 0, 81, [29994.625, 7095.211, 6813.750, 2288.309, 21392.055]),
        ([600, 660, 540], 0, 0, [1181.952, 574.761, 682.276, 430.459, 772.525]),
        ([600, 660, 540], 0, 63, [1288.220, 198.312, 287.383, 85.985, 426.417]),
        ([600, 660, 540], 2, 0, [17791.535, 903.826, 1440.574, 537.939, 12527.775]),
        ([600, 660, 540], 2, 63, [23277.914, 7430.717, 666.864, 219.850, 16607.321]),
    ],
)
def test_the_reference_values_of_the_posterior(monkeypatch, ends, alive, at, expected):
    monkeypatch.setattr("plait.policies.kinds.OF_SCRIPT", 7)  # the reference counts runs at all levels
    kinds = Kinds()
    kinds.add(np.repeat(KIND, len(ends), axis=0), np.array(ends, dtype=np.float64))
    masses, still = ASSUMED.copy(), np.zeros(BINS)
    still[bins(np.array([7200.0]))] = alive
    for level in (6, 4, 3, 2, 1, 0):  # the size is unknown
        density = kinds.density[kinds.rows.get((*KIND[0].tolist(), 1)[level], 0)]
        if density.any() or alive:
            posterior(masses.copy(), density, still, PRIOR[level], masses)
    assert masses.sum() == pytest.approx(1.0, abs=1e-9)
    assert figures(masses, at) == pytest.approx(expected, abs=6e-4)


def test_without_a_prior_it_is_the_estimate_of_kaplan_and_meier():
    rng = np.random.default_rng(5)
    ends, still = rng.integers(20, 120, 30), rng.integers(20, 120, 15)
    density, alive = (np.bincount(some, minlength=BINS).astype(float) for some in (ends, still))
    posterior(np.zeros(BINS), density, alive, 0.0, masses := np.empty(BINS))
    survival = 1.0
    for g in range(119):
        at_risk = (ends >= g).sum() + (still > g).sum()  # who goes on in a bin is at risk below it only
        survival *= 1.0 - (ends == g).sum() / at_risk if at_risk else 1.0
        assert 1.0 - masses[: g + 1].sum() == pytest.approx(survival, abs=1e-12)


def test_the_rank_is_the_smallest_over_all_ends_ahead():
    kinds = Kinds()
    kinds.add(np.repeat(KIND, 4, axis=0), np.array([60.0, 80.0, 4000.0, 5000.0]))
    left = kinds.lives(KIND, np.array([70.0]))
    values = []
    for g in (left.at[0], left.at[0] + 1):
        above, area = left.above[0], left.area[0]
        ratios = [(area[j] - area[g]) / (above[g] - above[j]) for j in range(g + 1, BINS + 1) if above[g] > above[j]]
        values.append(min(ratios))
    part = (70.0 - EDGES[left.at[0]]) / (EDGES[left.at[0] + 1] - EDGES[left.at[0]])
    assert left.rank_s()[0] == pytest.approx(values[0] + part * (values[1] - values[0]), rel=1e-12)


def test_runs_of_a_script_are_closest_and_new_scripts_count_scripts_instead_of_runs():
    kinds = Kinds()
    kinds.add(np.repeat(KIND, 48, axis=0), np.full(48, 300.0))  # a sweep
    kinds.add(OTHER, np.array([30_000.0]))
    known, new = KIND, np.array([[22, 23, 24, 25, 6, 0]])
    left = kinds.lives(np.concatenate([known, OTHER, new]), np.zeros(3))
    known_s, other_s, new_s = left.quantile_s(0.5)
    assert 200 < known_s < min(400, new_s)
    assert other_s > 5 * known_s
    of_user = kinds.density[kinds.rows[6]].sum()
    assert of_user < 6, "48 runs of one script must not look like 48 scripts"
    assert kinds.ends(np.concatenate([known, new])).tolist() == [[0, 48], [4, 49]]


def test_jobs_together_have_the_distributions_that_each_has_with_its_own_chain_of_posteriors():
    rng = np.random.default_rng(3)
    known = rng.integers(2, 5, (60, 6)) + 10 * np.arange(6)
    known[rng.random(60) < 0.2, 2] = 0  # jobs without a model
    done_s = np.where(rng.random(60) < 0.4, rng.lognormal(6, 2, 60), 0.0)
    kinds = Kinds()
    kinds.add(known[::3], rng.lognormal(7, 2, 20))
    found = kinds.lives(known, done_s)
    for i, chain in enumerate(known.tolist()):
        masses = ASSUMED.copy()
        for level, kind in reversed(list(enumerate([*chain, 1]))):
            of = np.ones(60, bool) if level == 6 else known[:, level] == kind
            still = np.zeros(BINS)
            for j in np.flatnonzero(of & (done_s > 0)):
                runs = kinds.counts[kinds.rows.get(int(known[j, 1]), 0)]
                still[bins(done_s[j : j + 1])] += 1.0 if level < 2 else 1.0 / (1.0 + runs)
            if kind and (kind in kinds.rows or still.any()):
                row = kinds.density[kinds.rows.get(kind, 0)]
                posterior(masses.copy(), row, still, PRIOR[level], masses)
        assert found.above[found.chain[i], :-1] == pytest.approx(np.cumsum(masses[::-1])[::-1], abs=1e-12)


def test_jobs_that_go_on_teach_that_their_kind_takes_longer():
    kinds = Kinds()
    kinds.add(np.repeat(KIND, 3, axis=0), np.full(3, 60.0))
    fresh = kinds.lives(KIND, np.zeros(1)).mean_s()[0]
    beside = kinds.lives(np.repeat(KIND, 5, axis=0), np.array([0.0, 9000, 9000, 9000, 9000])).mean_s()[0]
    assert beside > 2 * fresh


def test_what_is_left_grows_with_what_was_done_where_durations_have_long_tails():
    kinds = Kinds()
    kinds.add(np.repeat(KIND, 3, axis=0), np.array([30.0, 50.0, 40_000.0]))
    ranks = [float(kinds.lives(KIND, np.array([done])).rank_s()[0]) for done in (0.0, 200.0, 2000.0)]
    assert ranks == sorted(ranks)


def test_a_store_keeps_what_ended_when_it_forgets_jobs_and_through_a_snapshot():
    specs = [
        JobSpec(id=f"j{i}", iterations=100.0 + i, iteration_s=2.0, user=f"u{i % 2}", like=(f"a.py {i % 3}", "a.py"))
        for i in range(9)
    ]
    store = JobStore()
    store.append(JobBatch.of(specs), 0.0)
    store.columns["iterations_done"][:9] = [100.0 + i for i in range(9)]
    for i in (3, 1, 0, 5, 2):
        store.columns["phase"][i] = 2
        store.depart(np.array([i]))
    kinds, seconds = store.ended(0)
    assert seconds.tolist() == [206.0, 202.0, 200.0, 210.0, 204.0]
    assert len({tuple(kind) for kind in kinds.tolist()}) == 5
    assert kinds[0, 1] == kinds[1, 1] != kinds[2, 1], "a script is of a user"
    store.forget(2)
    keep = np.sort(np.concatenate([store.last_departed(2), [4, 6, 7, 8]]))
    restored = JobStore.from_json(store.frozen(keep, 2)())
    copied = store.select(keep, store.last_departed(2))
    for one in (store, restored, copied):
        for first in (0, 2, 4):
            assert one.ended(first)[0].tolist() == kinds[first:].tolist()
            assert one.ended(first)[1].tolist() == seconds[first:].tolist()
    again = restored.columns["kinds"][4], copied.columns["kinds"][np.searchsorted(keep, 4)]
    assert all(row.tolist() == store.columns["kinds"][4].tolist() for row in again)


def test_where_nothing_is_known_of_jobs_only_their_size_tells_them_apart():
    store = JobStore()
    store.append(
        JobBatch.of([JobSpec(id=f"j{i}", gpus=1 + i % 2, user=f"u{i}", iteration_s=1.0) for i in range(9)]), 0.0
    )
    ends = np.arange(7)
    store.columns["iterations_done"][ends] = [60.0, 9000.0, 70.0, 8000.0, 50.0, 7000.0, 65.0]
    for i in ends:
        store.columns["phase"][i] = 2
        store.depart(np.array([i]))
    jobs = JobTable(store.columns, np.array([7, 8]), 0.0, 0.0, store)
    two, one = lives(jobs, alike=True).quantile_s(0.5)
    assert one < 200
    assert two > 3000
    other_users = lives(jobs).quantile_s(0.5)
    assert other_users[0] == other_users[1]
