"""Rows of docs/explanation/coverage.md, drawn at random and written again from the papers, in plain loops.

`random.Random(35).sample(rows, 3)` of its 111 rows drew Pollux 3, Tiresias 6 and Pollux 29; seed 36 drew Tiresias 6,
Muri 8 and Muri 3. Nothing below uses plait to compute what it compares with.
"""

import itertools
import math

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch, JobSpec
from plait.core.preemption import FREELY
from plait.goodput.batch import best_batch
from plait.goodput.jobs import GoodputJobs
from plait.goodput.models import throughput_model
from plait.grouping.bucket import Candidates
from plait.grouping.group import group
from plait.grouping.times import interleaved_iteration_s
from plait.policies.catalog import make_policy
from plait.sim.physics import StandardPhysics
from plait.sim.run import simulate
from plait.sim.world import Overheads, World
from plait_papers.pollux.runs import Case, run_case
from pollux_files import step_s, write_measurements, write_workload

# -- Pollux 3: a model of throughput that can be replaced -------------------------------------------------------------


def goodput(theta, noise, initial, nodes, gpus, local, passes, rack, slower):
    """Examples a second times efficiency, with a third pair for gangs over more than `rack` nodes (section 3.2)."""
    alpha_c, beta_c, alpha_n, beta_n, alpha_r, beta_r, gamma = theta
    grad = alpha_c + beta_c * local
    far = slower if nodes > rack else 1.0
    sync = 1e-8 if gpus == 1 else (alpha_r, far * alpha_n)[nodes > 1] + (beta_r, far * beta_n)[nodes > 1] * (gpus - 2)
    took = passes * grad + (grad**gamma + sync**gamma) ** (1 / gamma)
    scale = gpus * local * (passes + 1) / initial
    sqr, var = noise
    return gpus * local * (passes + 1) / took * (var + sqr) / (var / scale + sqr) / scale


@pytest.mark.parametrize("seed", range(40))
def test_the_batch_is_the_best_under_a_replaced_model(seed):
    rng = np.random.default_rng(seed)
    theta = [*rng.gamma(2, 0.1, 6), float(rng.uniform(1, 5))]
    noise, rack, slower = rng.gamma(2, 1, 2), int(rng.integers(1, 4)), float(rng.uniform(1, 4))
    initial, low, high = int(rng.integers(8, 64)), int(rng.integers(1, 8)), int(rng.integers(8, 64))
    most = initial * int(rng.integers(1, 40))
    row = GoodputJobs(np.array([theta]), noise[:1], noise[1:], *map(np.atleast_1d, (initial, most, low, high, True)))
    model = throughput_model(f"racks/nodes={rack}/slower={slower!r}")
    for nodes, gpus in ((1, 1), (1, 2), (1, 4), (2, 3), (2, 8), (3, 12), (5, 16)):
        best, first = 0.0, max(initial, low * gpus)
        for step in range(50):
            each = first * (most / first) ** (step / 49) / gpus
            passes = math.ceil(each / high - 1e-8) - 1
            if gpus == 1 and each > initial + 1e-8:
                passes = max(passes, 1)
            local = math.ceil(each / (passes + 1) - 1e-8)
            if low <= local <= high:
                best = max(best, goodput(theta, noise, initial, nodes, gpus, local, passes, rack, slower))
        if first <= most:
            chosen = best_batch(row, nodes, gpus, artifact=True, speed=model)
            assert float(chosen.goodput[0, 0]) == pytest.approx(best, rel=1e-6), (nodes, gpus)


# -- Tiresias 6: the order of the released code, running jobs first ---------------------------------------------------


def ends_running_first(jobs, gpus, bounds):
    """Seconds at which (submitted, GPUs, seconds) end: a list a queue; after each plan running jobs move to its front.

    Arrivals and jobs that have attained the bound of their queue join the end of a list.
    """
    queues, ran, running, ends, now = [[] for _ in range(len(bounds) + 1)], [0] * len(jobs), [], {}, 0
    while len(ends) < len(jobs):
        for j, (submitted, width, seconds) in enumerate(jobs):
            level = sum(ran[j] * width >= bound for bound in bounds)
            if submitted <= now and ran[j] < seconds and j not in queues[level]:
                for queue in queues:
                    if j in queue:
                        queue.remove(j)
                queues[level].append(j)
            elif ran[j] >= seconds and j not in ends:
                ends[j] = now
                next(queue for queue in queues if j in queue).remove(j)
        left, running = gpus, []
        for j in itertools.chain(*queues):
            if jobs[j][1] <= left:
                left -= jobs[j][1]
                running.append(j)
        queues = [sorted(queue, key=lambda j: j not in running) for queue in queues]
        for j in running:  # a second at a time
            ran[j] += 1
        now += 1
    return [ends[j] for j in range(len(jobs))]


@pytest.mark.parametrize("seed", range(12))
def test_ends_in_the_order_of_the_released_code(seed):
    rng = np.random.default_rng(seed)
    jobs = [(int(rng.integers(0, 90)), int(rng.choice([1, 1, 2, 3, 4])), int(rng.integers(1, 90))) for _ in range(12)]
    jobs.sort(key=lambda job: job[0])
    specs = [JobSpec(id=f"j{i}", submit_s=s, gpus=w, iterations=t, iteration_s=1.0) for i, (s, w, t) in enumerate(jobs)]
    world = World("plain", "", StandardPhysics(), Overheads.constant(0, 0, 0, 0))
    policy = make_policy("tiresias-l:thresholds=36/120,within=running_first")
    done = simulate(JobBatch.of(specs), Cluster.parse("1x4"), policy, world, rule=FREELY)
    found = done.controller.job_store.columns["end_s"][: len(jobs)]
    assert found.tolist() == pytest.approx(ends_running_first(jobs, 4, (36, 120)), abs=1e-3)


# -- Pollux 29: the study of load in the artifact's world, under Tiresias ---------------------------------------------

ITERATIONS, MODELS = 8000, {"cifar10": (128, 4096, 1024, 100), "bert": (12, 384, 12, 2)}  # M0, M_max, m_max, epochs


class Plain:
    """A job of (submitted, model, GPUs, batch), on the measurements that `pollux_files` makes."""

    def __init__(self, row):
        self.submitted, self.name, self.gpus, batch = row
        self.initial, most, most_local, self.epochs = MODELS[self.name]
        self.epoch = self.done = self.delay = self.ran = self.level = 0
        self.at, self.end, each = [], math.inf, math.ceil(batch / self.gpus)
        self.passes = max(math.ceil(each / most_local) - 1, int(self.gpus == 1 and batch > self.initial))
        self.local = min(math.ceil(each / (self.passes + 1)), most // (self.gpus * (self.passes + 1)))

    def rate(self):
        """Iterations at M0 a second; of the file of each batch size, var is one more than of the one before."""
        took, sync = step_s([self.at.count(node) for node in dict.fromkeys(self.at)], self.local)
        scale = self.gpus * self.local * (self.passes + 1) / self.initial
        var = 1 + self.epoch + np.interp(scale, 2.0 ** np.arange(6), np.arange(6))
        return (var + 1) / (var / scale + 1) / (took + self.passes * (took - sync))

    def advance(self, clock):
        burnt = min(self.delay, 60)
        self.delay, left = self.delay - burnt, 60 - burnt
        while self.at and left > 0 and self.end == math.inf:
            until, rate = ITERATIONS * (self.epoch + 1), self.rate()
            if self.done + rate * left < until:
                self.done, left = self.done + rate * left, 0
            else:
                left -= round((until - self.done) / rate)
                self.epoch, self.done = self.epoch + 1, until
                self.end = clock + 60 - left if self.epoch == self.epochs else math.inf


def under_tiresias(rows, nodes):
    """All jobs, run in steps of 60 s: two queues at 16 GPU-hours, running jobs keep their GPUs."""
    jobs, line, running, clock = list(map(Plain, rows)), [], [], 0
    while any(job.end == math.inf for job in jobs):
        for job in jobs:
            job.advance(clock)
        clock += 60
        line = [job for job in line if job.end == math.inf]
        line += [job for job in jobs if job.submitted <= clock and job.end == math.inf and job not in line]
        for job in [job for job in jobs if job in running and job in line]:
            job.ran += 60
            if job.ran * job.gpus >= 57600 and not job.level:
                job.level = 1
                line.append(line.pop(line.index(job)))
        left, running = 4 * nodes, []
        for job in sorted(line, key=lambda job: job.level):
            if job.gpus <= left:
                left -= job.gpus
                running.append(job)
        for job in jobs:
            job.at = job.at if job in running else []
        free = [4 - sum(job.at.count(node) for job in jobs) for node in range(nodes)]
        for job in running:
            job.delay = job.delay if job.at else 30
            while len(job.at) < job.gpus:
                node = free.index(max(free))
                taken = min(free[node], job.gpus - len(job.at))
                job.at += [node] * taken
                free[node] -= taken
    return jobs


@pytest.mark.parametrize("times", [0.5, 1.0, 1.5, 2.0])
def test_completion_times_at_other_loads(times, tmp_path):
    rng = np.random.default_rng(29)
    rows = []
    for i in range(10):
        name = str(rng.choice(["cifar10", "cifar10", "bert"]))
        gpus = int(rng.choice([1, 2, 4, 6]))
        rows.append((137 * i, name, gpus, min(MODELS[name][1], MODELS[name][0] * gpus)))
    data = write_measurements(tmp_path / "data", *MODELS, iterations=ITERATIONS)
    case = Case(str(write_workload(tmp_path / "w.csv", *rows)), str(data), "tiresias:nodes=2", times=times)
    copies = [row for i, row in enumerate(rows) for _ in range(math.floor((i + 1) * times) - math.floor(i * times))]
    plain = under_tiresias(copies, 2)
    assert run_case(case).jct_s == [job.end - job.submitted for job in plain]
    assert {job.level for job in plain} == {0, 1}


# -- Muri 3 and 8: the best order by enumeration, groups of several jobs exactly --------------------------------------


def lock_step(stages):
    """Seconds of an iteration under the best order: each job a stage ahead of another, the slowest decides a slot."""
    return min(
        sum(max(row[(turn + slot) % 4] for turn, row in zip(turns, stages, strict=True)) for slot in range(4))
        for turns in itertools.permutations(range(4), len(stages))
    )


def splits(jobs, count):
    """All ways to put `jobs` into `count` groups of at most four."""
    if not jobs:
        yield from [[]] * (count == 0)
        return
    for more in range(min(4, len(jobs))):
        for others in itertools.combinations(jobs[1:], more):
            rest = [job for job in jobs[1:] if job not in others]
            yield from ([(jobs[0], *others), *way] for way in splits(rest, count - 1) if count)


@pytest.mark.parametrize("seed", range(12))
def test_orders_and_exact_groups(seed):
    rng = np.random.default_rng(seed)
    stages = rng.gamma(0.7, 1.0, (int(rng.integers(3, 8)), 4))
    for size in range(1, 5):
        some = stages[rng.integers(0, len(stages), size)]
        assert interleaved_iteration_s(some) == pytest.approx(lock_step(some.tolist()), rel=1e-12)
    found = group(Candidates(stages, stages.sum(axis=1), np.ones(len(stages))), method="exact", guard=None)
    used = {}

    def efficiency(rows):
        if rows not in used:
            took = max(lock_step(stages[list(rows)].tolist()), stages[list(rows)].sum(axis=1).max())
            used[rows] = stages[list(rows)].sum() / (4 * took)
        return used[rows]

    count = len(found.groups)
    assert count == -(-len(stages) // 4)
    best = max(sum(map(efficiency, way)) for way in splits(list(range(len(stages))), count))
    assert sum(map(efficiency, found.groups)) == pytest.approx(best, rel=2e-4)
