"""Models on shared GPUs: tables of them, what memory does to speed, bursts, fair shares of gangs, and the figures."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plait.control.history import History
from plait.control.metrics import RunResult, measure
from plait.core.cluster import Cluster
from plait.core.errors import InputError, TraceError
from plait.core.jobs import JobBatch, JobClass, JobSpec
from plait.core.plan import Group, Groups, Member
from plait.core.resources import StageProfile
from plait.policies.catalog import make_policy
from plait.sharing.macro_model import Load, estimate
from plait.sharing.memory_law import CONTEXT_BYTES, MARGIN_BYTES
from plait.sim.guest_models import CURVES, GROW_S, SHRINK_S, SPILL_COST, GuestModel, GuestModels
from plait.sim.physics import MeasuredPhysics, StandardPhysics
from plait.sim.run import simulate
from plait.sim.shared_gpu import GpuSharing, fair_shares
from plait.sim.world import make_world

GB = 1_000_000_000
HALF = StageProfile.of(cpu=0.5, gpu=0.5)
HOST_S = estimate(Load(1.0, 0.5), 0.002, seconds=3600.0, counted=True).slowdown  # of a host of 1 s with guests


def cluster(gpus: int = 1, memory_bytes: float = 16 * GB) -> Cluster:
    plain = Cluster.parse(f"1x{gpus}")
    return Cluster(tuple(replace(node, gpu_memory_bytes=int(memory_bytes)) for node in plain.nodes))


def paces(
    models: dict[str, GuestModel], *jobs: tuple[str, float, tuple[int, ...], bool], on: Cluster | None = None
) -> list[float]:
    """Seconds an iteration of jobs of (model, GB, GPUs, guest), alone one second each."""
    truth = JobBatch.of(
        JobSpec(id=f"j{i}", model=model, gpu_memory_bytes=size * GB, gpus=len(gpus), profile=HALF, iterations=10.0)
        for i, (model, size, gpus, _) in enumerate(jobs)
    )
    groups = Groups.of(Group((Member(i),), gpus, guest=guest) for i, (_, _, gpus, guest) in enumerate(jobs))
    physics = StandardPhysics(sharing=GpuSharing(models=GuestModels(tuple(sorted(models.items())))))
    return physics.iteration_s(truth, groups, on or cluster(4)).tolist()


def beside_host(quantum_s: float = 0.002, gaps: int = 1) -> float:
    """An iteration of a guest beside one host, both of which use half of a GPU."""
    part = estimate(Load(1.0, 0.5, gaps, gaps), quantum_s, seconds=3600.0, counted=True).slack_share
    return 0.5 + 0.5 / (0.5 * part)


# -- memory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "part", "speed"), [("sr", 0.1, 0.75), ("resnet", 0.9, 0.4)])
def test_the_published_curves_go_through_their_points(name: str, part: float, speed: float) -> None:
    model = GuestModel(curve=CURVES[name])
    assert model.speed(part * 10 * GB, 10 * GB) == pytest.approx(speed)
    assert model.speed(10 * GB, 10 * GB) == model.speed(12 * GB, 10 * GB) == 1.0
    between = model.speed((part + 1) / 2 * 10 * GB, 10 * GB)
    assert between == pytest.approx((speed + 1) / 2)


def test_below_its_persistent_bytes_a_guest_does_not_run() -> None:
    model = GuestModel(persistent_bytes=2 * GB, curve=CURVES["resnet"])
    assert model.speed(2 * GB - 1, 10 * GB) == 0.0
    assert 0.0 < model.speed(2 * GB, 10 * GB) < model.speed(5 * GB, 10 * GB) < 0.4
    guest = ("g", 10, (0,), True)
    assert paces({"g": replace(model, persistent_bytes=9 * GB)}, ("h", 8, (0,), False), guest)[1] > 1000.0


def test_a_guest_with_less_memory_is_slower_by_its_curve() -> None:
    """A GPU of 16 GB with a host of 8: of the guest's 8 GB there are 16 - 8.4 - 0.537 - 1 = 6.06."""
    left = 16 * GB - 1.05 * 8 * GB - MARGIN_BYTES - 2 * CONTEXT_BYTES
    for name in CURVES:
        model = GuestModel(curve=CURVES[name])
        host_s, guest_s = paces({"g": model}, ("h", 8, (0,), False), ("g", 8, (0,), True))
        assert host_s == pytest.approx(HOST_S)
        assert guest_s == pytest.approx(beside_host() / model.speed(left, 8 * GB))
    assert paces({}, ("h", 8, (0,), False), ("g", 6, (0,), True))[1] == pytest.approx(beside_host())
    unlimited = Cluster.parse("1x1")
    assert paces({}, ("h", 80, (0,), False), ("g", 80, (0,), True), on=unlimited)[1] == pytest.approx(beside_host())


def test_memory_goes_first_to_the_guest_for_whom_a_byte_is_worth_most() -> None:
    """Two guests of 10 GB on 16: the one that cannot do without has all of it, the other the rest."""
    models = {
        "much": GuestModel(curve=((0.9, 0.1),)),
        "little": GuestModel(curve=((0.1, 0.9),), persistent_bytes=1 * GB),
    }
    much_s, little_s = paces(models, ("much", 10, (0,), True), ("little", 10, (0,), True))
    assert much_s == pytest.approx(1.5)  # half of the GPU, and all of its memory
    left = 16 * GB - MARGIN_BYTES - 2 * CONTEXT_BYTES - 10 * GB
    assert little_s == pytest.approx(1.5 / models["little"].speed(left, 10 * GB))


def test_a_burst_costs_the_host_one_slow_step_and_its_guests_the_shrink() -> None:
    model = GuestModel(burst_every_s=600.0, burst_bytes=2.0 * GB)
    host_s, guest_s = paces(
        {"h": model, "g": GuestModel(curve=CURVES["sr"])}, ("h", 8, (0,), False), ("g", 6, (0,), True)
    )
    missing = 2 * GB - (16 * GB - MARGIN_BYTES - 2 * CONTEXT_BYTES - 14 * GB)
    assert host_s == pytest.approx(HOST_S * (1 + SPILL_COST * missing / (10 * GB) / 600))
    held_s = 50.0  # 50 steps of a second
    low = GuestModel(curve=CURVES["sr"]).speed(6 * GB - missing, 6 * GB)
    done = (600 - held_s + held_s * low - SHRINK_S - GROW_S) / 600
    assert guest_s == pytest.approx(beside_host() / done)
    small = replace(model, burst_bytes=0.1 * GB)  # fits into the headroom
    assert paces({"h": small}, ("h", 8, (0,), False), ("g", 6, (0,), True))[0] == pytest.approx(HOST_S)
    assert paces({"h": model}, ("h", 8, (0,), False)) == [1.0]  # nobody to share with


# -- time ----------------------------------------------------------------------------------------------------


def test_quanta_are_those_of_the_guests_and_gaps_those_of_the_host() -> None:
    models = {"long": GuestModel(quantum_s=0.05), "many": GuestModel(gaps=40)}
    assert paces(models, ("h", 1, (0,), False), ("long", 1, (0,), True))[1] == pytest.approx(beside_host(0.05))
    assert paces(models, ("many", 1, (0,), False), ("g", 1, (0,), True))[1] == pytest.approx(beside_host(0.002, 40))
    assert beside_host() < beside_host(0.002, 40)
    assert beside_host() < beside_host(0.05)


def test_noise_is_that_of_the_hosts_model() -> None:
    host, guest = ("h", 1, (0,), False), ("g", 1, (0,), True)
    shares = [
        paces({"h": GuestModel(noise=noise), "g": GuestModel(noise=0.5)}, host, guest)[1] for noise in (0.05, 0.2)
    ]
    assert shares[0] == pytest.approx(beside_host())
    part = estimate(Load(1.0, 0.5, noise=0.2), 0.002, seconds=3600.0, counted=True).slack_share
    assert shares[1] == pytest.approx(0.5 + 0.5 / (0.5 * part))
    assert shares[1] > shares[0]


def test_what_a_slow_gang_leaves_on_its_other_gpus_goes_to_the_guests_there() -> None:
    """A gang on a GPU with a busy host and on an idle one, where another guest gets the rest of that."""
    gang_s, other_s = paces({}, ("g", 1, (0, 1), True), ("g", 1, (1,), True), ("h", 1, (0,), False))[:2]
    part = 1 / (beside_host() - 0.5) / 2  # of GPU 0, which is less than a half
    assert gang_s == pytest.approx(0.5 + 0.5 / part)
    assert other_s == pytest.approx(0.5 + 0.5 / (1 - part))


@pytest.mark.parametrize("seed", range(20))
def test_fair_shares_fill_gpus_and_raise_nobody_at_the_cost_of_less(seed: int) -> None:
    chance = random.Random(seed)
    gpus = chance.randint(2, 6)
    gangs = [sorted(chance.sample(range(gpus), chance.randint(1, gpus))) for _ in range(chance.randint(1, 6))]
    usable = np.array([chance.uniform(0.05, 1.0) for _ in range(gpus)])
    owner = np.array([g for g, mine in enumerate(gangs) for _ in mine])
    at = np.array([gpu for mine in gangs for gpu in mine])
    share = fair_shares(np.ones(len(gangs), dtype=bool), owner, at, usable)
    load = np.bincount(at, share[owner], minlength=gpus)
    assert (load <= usable + 1e-9).all()
    for g, mine in enumerate(gangs):  # on one of its GPUs there is nothing left, and nobody there has more
        assert any(load[gpu] >= usable[gpu] - 1e-9 and share[g] >= share[owner[at == gpu]].max() - 1e-9 for gpu in mine)


# -- tables and options --------------------------------------------------------------------------------------


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "models.csv"
    path.write_text(text)
    return path


def test_a_table_of_models_is_read(tmp_path: Path) -> None:
    models = GuestModels.read(
        table(
            tmp_path,
            "model,quantum_ms,gaps,memory_gb,persistent_gb,curve,burst_every_s,burst_gb,noise\n"
            "sr,4,3,10,1,sr,600,2,0.1\n*,,,,,0.2=0.5/0.6=0.9,,,\n",
        )
    )
    known = dict(models.rows)
    assert known["sr"] == GuestModel(0.004, 3, 0.1, 10 * GB, 1 * GB, ((0.1, 0.75),), 600.0, 2 * GB)
    assert known["*"] == GuestModel(curve=((0.2, 0.5), (0.6, 0.9)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,gaps\nx,1\n", "unknown column"),
        ("gaps\n1\n", "column 'model': missing column"),
        ("model,speed\nx,1\n", "column 'speed': unknown column"),
        ("model,gaps\nx,many\n", r"models.csv:2: column 'gaps': cannot be read \(got 'many'\); write a number"),
        ("model,curve\nx,steep\n", "write sr, resnet or 0.2=0.5/0.6=0.9"),
        ("model,curve\nx,0.9=0.4/0.5=0.6\n", "model x: a curve has growing parts"),
        ("model,memory_gb,persistent_gb\nx,2,4\n", "memory of 2 GB is less than the 4 GB that are persistent"),
        ("model,quantum_ms\nx,0\n", "model x: quantum_s must be > 0"),
        ("model,noise\nx,-0.1\n", "model x: noise must be a number >= 0, got -0.1"),
        ("model,burst_every_s\nx,0\n", "burst_every_s must be > 0"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        GuestModels.read(table(tmp_path, text))


def test_a_job_that_asks_for_less_than_its_model_keeps_is_refused_by_name() -> None:
    with pytest.raises(
        InputError, match="job 'j1' asks for 1 GB of GPU memory, less than the 2 GB that model 'g' keeps"
    ):
        paces({"g": GuestModel(persistent_bytes=2 * GB)}, ("h", 8, (0,), False), ("g", 1, (0,), True))


# -- whole runs ----------------------------------------------------------------------------------------------


def run(policy: str, models: GuestModels | None, *jobs: JobSpec) -> RunResult:
    histories: list[History] = []

    def observe(controller: object) -> History:
        histories.append(History(controller))  # type: ignore[arg-type]
        return histories[-1]

    world = make_world("ideal")
    if models is not None:
        world = replace(world, physics=MeasuredPhysics(sharing=GpuSharing(models=models)))
    done = simulate(JobBatch.of(jobs), cluster(), make_policy(policy), world, observe=observe, check=True)
    return measure(done.controller, histories[0])


def one(name: str, size: float, klass: JobClass, seconds: float = 1000.0) -> JobSpec:
    return JobSpec(
        id=name, model=name, gpu_memory_bytes=size * GB, profile=HALF, iterations=seconds, job_class=klass
    )  # fmt: skip


def test_a_guest_starts_with_less_memory_if_the_policy_may_and_its_spill_is_a_figure() -> None:
    jobs = (one("host", 8, JobClass.GUARANTEED), one("guest", 8, JobClass.OPPORTUNISTIC, 100.0))
    models = GuestModels((("*", GuestModel(curve=CURVES["sr"], persistent_bytes=1 * GB)),))
    waits = run("antman", models, *jobs)
    assert waits.summary["guest_gpu_h"] == pytest.approx(100 / 3600)  # alone, after the host
    assert waits.summary["spill_gb_h"] == 0.0
    shares = run("antman:least_memory=0.5", models, *jobs)
    left = 16 * GB - 1.05 * 8 * GB - MARGIN_BYTES - 2 * CONTEXT_BYTES
    slow_s = 100 * beside_host() / dict(models.rows)["*"].speed(left, 8 * GB)
    assert shares.jobs["end_s"][1] == pytest.approx(slow_s, rel=1e-3)
    assert shares.jobs["end_s"][0] < 1010
    assert shares.summary["spill_gb_h"] == pytest.approx((8 - left / GB) * slow_s / 3600, rel=1e-3)
    assert shares.summary["opportunistic_kills"] == 0


def test_runs_that_nobody_gave_a_table_report_no_spill_and_conversions_are_counted() -> None:
    jobs = (one("host", 2, JobClass.GUARANTEED), one("auto", 2, JobClass.AUTO, 100.0))
    found = run("antman", None, *jobs).summary
    assert "spill_gb_h" not in found
    assert (found["conversions"], found["promotions_in_place"]) == (1, 0)
    assert math.isfinite(found["throttled_h"])
