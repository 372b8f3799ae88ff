"""AntMan's experiment in plait's world: its traces, AntMan in order, and what stands beside the published ratios.

With `PLAIT_SLOW=1` the claims of `docs/explanation/antman.md` on whole traces.
"""

import math
import os
from dataclasses import replace

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.resources import StageProfile
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.assign import catalogue
from plait_papers.antman.command import Comparison, distance, nearest, points, rows_of
from plait_papers.antman.muri_artifact import artifact_cases
from plait_papers.antman.runs import Case, Done, jobs_in, run_case
from plait_papers.antman.variants import ANTMAN, COMPARED, GANDIVA, PARTS, PREEMPTING, YARN, bases, chosen
from plait_papers.antman.workload import GPUS, NINTH, Workload, jobs_of, nine_models, trace_of

slow = pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="takes minutes; set PLAIT_SLOW=1")

# -- traces ----------------------------------------------------------------------------------------------------------


def test_the_ninth_model_stands_beside_the_eight_measured_ones_and_changes_none() -> None:
    nine, eight = nine_models(), catalogue()
    assert nine.models == (*eight.models, NINTH)
    assert nine.sizes == eight.sizes
    assert {k: p for k, p in nine.profiles.items() if k[0] != NINTH} == eight.profiles
    one, many = nine.profile(NINTH, 1), nine.profile(NINTH, 32)
    assert (one.iteration_s, one.gpu_s, one.network_s) == (0.788, 0.788, 0.0)  # 0.3111 + 20 x 0.02384 s
    assert many.gpu_s == one.gpu_s
    assert many.gpu_s < many.iteration_s < many.gpu_s + many.network_s  # the two overlap


def test_a_workload_is_its_jobs() -> None:
    shape = Workload(jobs=300, load=1.2, longest_h=2.0, gangs=8)
    table = trace_of(shape)
    assert table.gpu_s / (GPUS * table.span_s) == pytest.approx(1.2, rel=1e-6)
    assert table["duration_s"].max() <= 2 * 3600 + 1
    assert set(table["gpus"].tolist()) == {1, 2, 4, 8}
    assert set(table["model"].tolist()) == set(nine_models().models)
    assert set(table["project"].tolist()) == {"tenant-1", "tenant-2"}
    assert 0.4 < np.mean(table["job_class"] == "opportunistic") < 0.6
    again = trace_of(shape)
    assert all((table[name] == again[name]).all() for name in ("submit_s", "gpus", "model", "project", "job_class"))
    assert (trace_of(replace(shape, seed=1))["model"] != table["model"]).any()


def test_shapes_change_what_they_name_and_nothing_else() -> None:
    base = Workload(jobs=100)
    at_once, by_tenant = trace_of(replace(base, load=math.inf)), trace_of(replace(base, split="by tenant"))
    drawn = trace_of(base)
    assert (at_once["submit_s"] == 0).all()
    assert (at_once["model"] == drawn["model"]).all()
    assert ((by_tenant["project"] == "tenant-2") == (by_tenant["job_class"] == "opportunistic")).all()
    more = trace_of(replace(base, opportunistic=0.9))["job_class"] == "opportunistic"
    assert more[drawn["job_class"] == "opportunistic"].all()
    full = set(trace_of(replace(base, mix="full GPU"))["model"].tolist())
    assert full == {"bert", "gpt2", NINTH}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"jobs": 0}, "above 0"),
        ({"load": 0.0}, "above 0"),
        ({"mix": "eigth"}, "unknown mix"),
        ({"split": "x"}, "split"),
    ],
)
def test_what_is_no_workload(more: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Workload(**more)  # type: ignore[arg-type]


def test_whose_jobs_run() -> None:
    case = Case("fifo", Workload(jobs=60))
    drawn, alone = jobs_in(case), jobs_in(replace(case, classes="guaranteed alone"))
    high = drawn.column("job_class") == int(JobClass.GUARANTEED)
    assert 0 < high.sum() < 60
    assert alone.id.tolist() == drawn.id[high].tolist()
    assert not jobs_in(replace(case, classes="all guaranteed")).column("job_class").any()


# -- AntMan in order --------------------------------------------------------------------------------------------------


def _guest(name: str, submit_s: float, gpus: int, seconds: float) -> JobSpec:
    profile = StageProfile.of(cpu=0.0, gpu=1.0)
    return JobSpec(
        id=name, submit_s=submit_s, gpus=gpus, iterations=seconds, profile=profile, job_class=JobClass.OPPORTUNISTIC
    )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "ends"),
    [
        ("antman", {"first": 100.0, "wide": 200.0, "small": 53.0, "last": 300.0}),
        ("plait_papers.antman.in_order:in_order", {"first": 100.0, "wide": 200.0, "small": 250.0, "last": 350.0}),
    ],
)
def test_in_order_nobody_overtakes(policy: str, ends: dict[str, float]) -> None:
    jobs = (_guest("first", 0, 1, 100), _guest("wide", 1, 2, 100), _guest("small", 3, 1, 50), _guest("last", 5, 2, 100))
    run = simulate(JobBatch.of(jobs), Cluster.parse("1x2"), make_policy(policy), make_world("ideal"), check=True)
    found = dict(
        zip(("first", "wide", "small", "last"), run.controller.job_store.columns["end_s"].tolist(), strict=False)
    )
    assert found == pytest.approx(ends)


def test_in_order_gives_reasons() -> None:
    said: list[str] = []
    jobs = (_guest("first", 0, 1, 100), _guest("wide", 1, 2, 100), _guest("small", 3, 1, 50))

    def observe(controller):  # type: ignore[no-untyped-def]
        return lambda event, commands: said.append(controller.plan.reasons.get(2, ""))

    policy = make_policy("plait_papers.antman.in_order:in_order:quota=*=1")
    simulate(JobBatch.of(jobs), Cluster.parse("1x2"), policy, make_world("ideal"), observe=observe)
    assert any("waits behind an opportunistic job" in reason for reason in said)


# -- the comparison ---------------------------------------------------------------------------------------------------


def _done(jct_s: float, makespan_s: float) -> Done:
    return Done({"avg_jct_s": jct_s, "makespan_s": makespan_s}, 1, 0.0)


def test_ratios_are_of_means_and_stand_beside_the_published_ones() -> None:
    asked = [p for p in points((), (0, 1), 20, 1.0) if p.section == "published"]
    jct_s = {"antman": (100.0, 50.0), "yarn-cs": (200.0, 300.0)}
    done = {
        case: _done(jct_s.get(p.variant.name, (1.0, 1.0))[n], 10.0) for p in asked for n, case in enumerate(p.cases)
    }
    rows = {row.variant: row for row in rows_of(asked, done) if row.at == asked[0].at}
    assert list(rows) == [variant.name for variant in COMPARED]
    jct = rows["yarn-cs"].jct
    assert (jct.ours, jct.low, jct.high, jct.published) == (500 / 150, 2.0, 6.0, 2.05)
    assert rows["gandiva"].makespan.published == 1.67
    assert rows["yarn-cs, preempting"].killed_published == 0.46
    assert rows["antman, guaranteed jobs alone"].jct is None  # other jobs: no ratio


def test_every_part_is_over_a_row_of_its_table() -> None:
    names = {variant.name for variant in PARTS}
    assert {variant.over for variant in PARTS} <= names
    assert len(names) == len(PARTS)
    for variant in (*COMPARED, *PARTS):
        make_policy(variant.policy)


def test_the_nearest_shapes_come_first() -> None:
    asked = [p for p in points(("shapes",), (0,), 20, 1.0) if p.section == "shapes"]
    wanted = "philly_heavy, load 1, up to 1 h, 75% opportunistic"
    published = {
        "antman": (1.0, 1.0),
        "yarn-cs": (2.05, 1.76),
        "gandiva": (1.84, 1.67),
        "yarn-cs, preempting": (1.0, 1.0),
    }
    done = {
        case: _done(*(published[p.variant.name] if p.at == wanted else (1.0, 1.0))) for p in asked for case in p.cases
    }
    rows: list[Comparison] = list(rows_of(asked, done))
    factor, at, some = nearest(rows)[0]
    assert (factor, at, len(some)) == (pytest.approx(1.0), wanted, 4)
    assert nearest(rows)[1][0] == pytest.approx(2.05)
    assert distance([]) == math.inf


def test_names_of_studies_and_folders() -> None:
    assert chosen("none") == ()
    assert chosen(None)[-1] == "shapes"
    with pytest.raises(InputError, match="did you mean 'load'"):
        chosen("lod")
    assert artifact_cases(None) == {}


def test_figures_by_class() -> None:
    case = ANTMAN.case(Workload(jobs=12))
    done = run_case(case)
    assert {"avg_jct_guaranteed_s", "avg_jct_opportunistic_s", "stretch_guaranteed"} <= set(done.figures)


# -- whole traces -----------------------------------------------------------------------------------------------------


@slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("load", [1.0, 1.5])
def test_what_the_page_claims(load: float, seed: int) -> None:
    """Guaranteed jobs as with preemption, nobody killed, opportunistic jobs far sooner, at the loads of the page."""
    workload = replace(list(bases(500, load).values())[1], seed=seed)
    runs = {v.name: run_case(v.case(workload)).figures for v in (ANTMAN, YARN, PREEMPTING, GANDIVA)}
    ours, preempting = runs["antman"], runs["yarn-cs, preempting"]
    assert ours["opportunistic_kills"] == ours["lost_work_gpu_h"] == 0
    assert preempting["opportunistic_killed_share"] > 0.02
    assert ours["avg_jct_guaranteed_s"] <= 1.02 * preempting["avg_jct_guaranteed_s"]
    assert ours["avg_jct_opportunistic_s"] < 0.8 * preempting["avg_jct_opportunistic_s"]
    assert ours["avg_jct_s"] < runs["yarn-cs"]["avg_jct_s"]
    assert len(jobs_of(workload)) == 500
