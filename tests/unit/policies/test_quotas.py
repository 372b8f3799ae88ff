"""Quotas of projects around any policy: in all, by kind of GPU, and what cannot be."""

from dataclasses import replace

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.jobs import JobBatch, JobClass, JobSpec, Phase
from plait.policies.catalog import make_policy
from plait.policies.quotas import Quotas, WithinQuotas
from plait.sim.run import simulate
from plait.sim.world import World, make_world


def job(name: str, project: str, gpus: int, seconds: float = 10.0, kinds: tuple[str, ...] | None = None) -> JobSpec:
    return JobSpec(id=name, project=project, gpus=gpus, iterations=seconds, iteration_s=1.0, gpu_kinds=kinds)


def starts(policy: str, cluster: str, *jobs: JobSpec) -> list[float]:
    done = simulate(JobBatch.of(jobs), Cluster.parse(cluster), make_policy(policy), make_world("ideal"), check=True)
    return done.controller.job_store.columns["first_start_s"][: len(jobs)].tolist()


def test_jobs_beyond_the_quota_of_their_project_wait_and_others_go_ahead() -> None:
    jobs = (job("a", "p", 2), job("b", "p", 2), job("c", "q", 2), job("d", "r", 2))
    assert starts("fifo:quota=p=3/*=2", "1x8", *jobs) == [0.0, 10.0, 0.0, 0.0]
    assert starts("fifo", "1x8", *jobs) == [0.0, 0.0, 0.0, 0.0]


def test_kinds_of_gpu_have_quotas_of_their_own() -> None:
    """Four jobs of two GPUs: the project may have two v100 and four a100 at a time, and six in all."""
    jobs = [job(name, "p", 2) for name in "abcd"]
    assert starts("fifo:quota=p@v100=2/p@a100=4", "1x8:v100,1x8:a100", *jobs) == [0.0, 0.0, 0.0, 10.0]
    assert starts("fifo:quota=p@v100=2/p@a100=4/p=4", "1x8:v100,1x8:a100", *jobs) == [0.0, 0.0, 10.0, 10.0]
    only = [job("a", "p", 2, kinds=("v100",)), job("b", "p", 2, kinds=("v100",)), job("c", "p", 2, kinds=("a100",))]
    assert starts("fifo-backfill:quota=p@v100=2/p@a100=4", "1x8:v100,1x8:a100", *only) == [0.0, 10.0, 0.0]


def test_no_decision_of_a_run_gives_a_project_more_than_its_quota() -> None:
    rng = np.random.default_rng(7)
    jobs = [job(f"j{i}", "pq"[i % 2], int(rng.choice([1, 2, 4])), float(rng.integers(5, 60))) for i in range(40)]
    cluster = Cluster.parse("2x8:v100,2x8:a100")
    seen = []

    def observe(controller):  # type: ignore[no-untyped-def]
        def look(event, commands) -> None:  # type: ignore[no-untyped-def]
            held = {(project, kind): 0 for project in "pq" for kind in ("v100", "a100")}
            for group in controller.running:
                for member in group.members:
                    if controller.job_store.columns["running_group"][member.job] >= 0:
                        kind = cluster.nodes[cluster.gpu_node[group.gpus[0]]].gpu_kind
                        held[jobs[member.job].project, kind] += len(group.gpus)
            seen.append(held)

        return look

    policy = make_policy("tiresias-l:quota=p@v100=4/p@a100=6/q@v100=8")
    simulate(JobBatch.of(jobs), cluster, policy, make_world("plait"), check=True, observe=observe)
    most = {key: max(held[key] for held in seen) for key in seen[0]}
    assert (most["p", "v100"], most["p", "a100"], most["q", "v100"]) == (4, 6, 8)


IDEAL = make_world("ideal")
FAILING = replace(IDEAL, node_mtbf_s=100.0, node_mttr_s=10.0)


@pytest.mark.parametrize("world", [IDEAL, FAILING], ids=["calm", "failures"])
@pytest.mark.parametrize(
    ("policy", "refused"),
    [
        ("2d-las:quota=p=2", {"b": "needs 4 GPUs; the quota of project p is 2; raise it to 4, or ask for at most 2"}),
        ("fifo:quota=p=0/*=4", {
            "a": "needs 2 GPUs; the quota of project p is 0; raise it to 2",
            "b": "needs 4 GPUs; the quota of project p is 0; raise it to 4",
        }),
        ("fifo:quota=p@v100=2/p@a100=3", {
            "b": "needs 4 a100 GPUs; the quota of project p is 3; raise it to 4, or ask for at most 3",
            "v": "needs 3 v100 GPUs; the quota of project p is 2; raise it to 3, or ask for at most 2",
        }),
        ("fifo:quota=p@v100=2", {
            "v": "needs 3 v100 GPUs; the quota of project p is 2; raise it to 3, or ask for at most 2",
        }),
        ("antman:quota=p=3", {
            "b": "needs 4 GPUs; the quota of project p is 3; raise it to 4, or ask for at most 3, or submit it with "
            "class opportunistic or auto",
        }),
    ],
)  # fmt: skip
def test_a_job_above_the_quota_of_its_project_is_refused_and_the_others_run(
    policy: str, refused: dict[str, str], world: World
) -> None:
    jobs = [
        job("a", "p", 2), job("b", "p", 4), job("c", "q", 4), job("v", "p", 3, kinds=("v100",)) if "@" in policy
        else job("v", "q", 3), replace(job("g", "p", 4), job_class=JobClass.OPPORTUNISTIC if "antman" in policy
        else JobClass.GUARANTEED, project="p" if "antman" in policy else "q"),
    ]  # fmt: skip
    cluster = Cluster.parse("1x8:v100,1x8:a100")
    controller = simulate(JobBatch.of(jobs), cluster, make_policy(policy), world, check=True).controller
    columns = controller.job_store.columns
    phases = {spec.id: Phase(columns["phase"][i]) for i, spec in enumerate(jobs)}
    assert {name for name, phase in phases.items() if phase is Phase.FAILED} == set(refused)
    assert {spec.id: columns["reason"][i] for i, spec in enumerate(jobs) if spec.id in refused} == refused
    assert [phases[spec.id] for spec in jobs if spec.id not in refused] == [Phase.FINISHED] * (5 - len(refused))
    assert controller.now_s < 10_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("p", r"policy fifo: quota 'p' is no quota; it takes PROJECT=GPUS or PROJECT@KIND=GPUS"),
        ("p=-1", "'p=-1' is no quota"),
        ("p@=1", "'p@=1' is no quota"),
        ("=4", "'=4' is no quota"),
        ("p=1/p=2", "'p=2' is given twice"),
    ],
)
def test_what_is_no_quota_is_refused(text: str, wanted: str) -> None:
    with pytest.raises(InputError, match=wanted):
        make_policy(f"fifo:quota={text}")


def test_quotas_of_unknown_projects_and_kinds_are_refused_before_the_run() -> None:
    with pytest.raises(InputError, match=r"quota visoin=4: no job is of project 'visoin'; did you mean 'vision'"):
        starts("fifo:quota=visoin=4", "1x8", job("a", "vision", 1))
    with pytest.raises(InputError, match=r"quota p@v10=4: no GPU is a 'v10'; did you mean 'v100'"):
        starts("fifo:quota=p@v10=4", "1x8:v100", job("a", "p", 1))
    with pytest.raises(InputError, match="no job has a project"):
        starts("fifo:quota=p=4", "1x8", job("a", "", 1))


def test_antman_refuses_quotas_of_unknown_projects_and_kinds_likewise() -> None:
    with pytest.raises(InputError, match=r"no job is of project 'q'; known: p"):
        starts("antman:quota=q=4", "1x8", job("a", "p", 1))
    with pytest.raises(InputError, match=r"policy antman: quota 'p=4' is given twice"):
        make_policy("antman:quota=p=4/p=4")


def test_the_policy_inside_keeps_its_name_and_what_it_uses() -> None:
    policy = make_policy("srtf:quota=p=4,deadlines=on")
    assert isinstance(policy, WithinQuotas)
    assert policy.name == "srtf:quota=p=4,deadlines=on"
    assert "deadline" in policy.uses
    assert not policy.guests
    assert Quotas.parse("p=4").limit("q") == np.inf
