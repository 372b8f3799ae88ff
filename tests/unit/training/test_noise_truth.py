"""The measured gradient noise scale is within a fifth of the exact one, or as near as its own interval says;
it is the same on 1, 2 and 4 ranks, and from one number to another.

A thousand batches of 16 leave an error of more than a fifth where the noise scale is 40 batches and more.

Exact: of the gradients of single examples, see scripts/noise_truth.py. PLAIT_SLOW=1: three models, four optimizers, one
rank and two, weights frozen and moving; else one of each."""

import json
import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from attempts import PREEMPTED, ROOT, Attempt, the_forker

from plait.runtime.gates import GATES, GroupMember, make_group
from plait.runtime.page import VERSION

pytest.importorskip("torch")

SLOW = bool(os.environ.get("PLAIT_SLOW"))
CASES = [
    ("embedding", "adam", "frozen", 1),
    ("mlp", "adamw", "moving", 2),
    ("mlp", "adam", "frozen", 1),
    ("mlp", "adam", "moving", 1),
    ("embedding", "adamw", "moving", 1),
    ("embedding", "adam", "frozen", 2),
    ("transformer", "adam", "frozen", 1),
    ("transformer", "adam", "moving", 1),
    ("transformer", "adamw", "moving", 2),
    ("embedding", "adagrad", "moving", 1),
    ("mlp", "adagrad", "frozen", 1),
    ("mlp", "rmsprop", "moving", 1),
    ("embedding", "rmsprop", "frozen", 1),
]


def measured(tmp_path: Path, model: str, optimizer: str, how: str, world: int, steps: int, seed: int = 0) -> Any:
    """What the script prints."""
    words = (model, optimizer, how, str(steps), str(seed))
    ranks = the_forker().gang(tmp_path / f"j-{seed}", 1, "noise_truth.py", *words, world=world)
    ends = [attempt.end(600) for attempt in ranks]
    assert [code for code, _ in ends] == [0] * world, ends
    said = json.loads(next(line for line in ends[0][1].splitlines() if line.startswith("{")))
    print(*words, world, said)
    return said


@pytest.mark.parametrize(("model", "optimizer", "how", "world"), CASES if SLOW else CASES[:1])
def test_the_noise_scale_is_the_exact_one(model: str, optimizer: str, how: str, world: int, tmp_path: Path) -> None:
    said = measured(tmp_path, model, optimizer, how, world, 2400 if SLOW else 800)
    assert abs(said["var"][1] / said["var"][0] - 1) < 0.1
    low, high = said["interval"]
    assert abs(said["found"] / said["exact"] - 1) < 0.2 or low < said["exact"] < high
    assert SLOW or abs(said["found"] / said["exact"] - 1) < 0.2


@pytest.mark.slow
@pytest.mark.skipif(not SLOW, reason="minutes: 8 trainings; set PLAIT_SLOW=1")
@pytest.mark.parametrize("world", [1, 2])
def test_over_many_trainings_the_mean_is_the_exact_one(world: int, tmp_path: Path) -> None:
    """Where one training leaves an error of a third, eight leave one of an eighth: nothing pulls to one side."""
    all_said = [measured(tmp_path, "mlp", "adam", "moving", world, 2400, seed) for seed in range(1, 9)]
    exact_sqr, sqr, exact_var, var = (
        sum(said[what][i] for said in all_said) for what in ("sqr", "var") for i in range(2)
    )
    assert abs((var / sqr) / (exact_var / exact_sqr) - 1) < 0.2


# Squared norms of gradients on several ranks of DDP under plait: hooks in the hook that marks the network stage.


def play(script: str, world: int, folder: Path) -> None:
    for attempt in the_forker().gang(folder, 1, script, world=world):
        assert "the end\n" in attempt.ends()


def test_estimates_are_those_of_the_gradients_that_went_in(tmp_path: Path) -> None:
    play("gradient_ranks.py", 3, tmp_path / "j-1")


def test_a_plan_for_each_number_of_ranks_loses_as_the_fixed_plan_and_holds_its_shards_alone(tmp_path: Path) -> None:
    """Parameters of 8 x 32 + 32 + 32 x 4 + 4 = 420 numbers of four bytes; states of Adam are twice as many."""
    import torch

    found = []
    for name, attempts in {"planned": [(1, 0, 3), (2, 0, 3), (2, 3, 3), (4, 2, 0)], "fixed": [(1, 0, 0)]}.items():
        out = tmp_path / f"{name}.jsonl"
        for epoch, (world, stage, steps) in enumerate(attempts, start=1):
            limits = {
                "initial": 24, "most": 24, "least_local": 1, "most_local": 6 if name == "planned" else 24,
                "accumulation": True, "parameters": 420, "example_bytes": 1, "zero_stage": stage,
            }  # fmt: skip
            gang = the_forker().gang(
                tmp_path / name, epoch, "planned_resize.py", str(out), str(steps), world=world,
                PLAIT_BATCH=json.dumps(limits),
            )  # fmt: skip
            for attempt in gang:
                attempt.ends(PREEMPTED if steps else 0)
        found.append([json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()])
    planned, fixed = found
    assert sorted({tuple(row[:5]) for row in planned}) == [
        (1, 0, 1680, 3360, 3), (2, 0, 1680, 3360, 1), (2, 3, 840, 1680, 1), (4, 2, 420, 840, 0)
    ]  # fmt: skip
    losses = [row[5] for row in planned]
    assert len(losses) == len(fixed) == 20
    assert losses == pytest.approx([row[5] for row in fixed], rel=1e-4)
    assert losses[-1] < 0.8 * losses[0]
    resized, plain = (torch.load(tmp_path / f"{name}.pt") for name in ("planned", "fixed"))
    for name, weights in plain["weights"].items():
        torch.testing.assert_close(resized["weights"][name], weights, rtol=1e-4, atol=1e-5)
    assert resized["fitted"]
    assert resized["gpus"] == [(1, 0), (2, 0), (2, 3), (4, 2)]


def test_shards_of_fsdp2_give_the_estimate_of_the_whole(tmp_path: Path) -> None:
    play("sharded_ranks.py", 2, tmp_path / "j-1")


EPOCHS = 3


def start(folder: Path, epoch: int, world: int, gate: str = "", every: int = 1) -> list[Attempt]:
    """All ranks, at a gate if there is one; gradient noise is measured in every so many-th step."""
    if gate:
        group = make_group(folder.parent / "g", gate, [GroupMember(1, 0, world)], version=1)
        for rank in range(world):
            run_dir = folder / "attempts" / str(epoch) / f"rank{rank}"
            run_dir.mkdir(parents=True)
            control = {"version": 1, "epoch": epoch, "group": group.control(1, rank), "made_by": VERSION}
            (run_dir / "control.json").write_text(json.dumps(control))
    return the_forker().gang(folder, epoch, "adaptive_ranks.py", str(every), world=world)


def end(ranks: list[Attempt]) -> dict[str, Any]:
    """What they found, all alike."""
    said = []
    for attempt in ranks:
        output = attempt.ends()
        said.append(json.loads(next(line for line in output.splitlines() if line.startswith("{"))))
        assert attempt.page.steps == said[-1]["steps"]
    assert all(one["found"] == said[0]["found"] for one in said)
    return said[0]


def near_the_truth(one: dict[str, Any], number: float = 540) -> None:
    """Within four standard errors, by the variances that theory gives `number` equally weighted estimates.

    The averages forget: they weigh 600 estimates like 540 equal ones.
    """
    n, true, (sqr, var) = one["samples"], one["truth"], one["found"]
    in_sqr = true["linear"] + 2 * true["square"] * n / (64 * (n - 1))
    in_var = 2 * true["square"] / (64 * (n - 1))
    assert abs(sqr - true["sqr"]) < 4 * math.sqrt(in_sqr / number)
    assert abs(var - true["var"]) < 4 * math.sqrt(in_var / number)


@pytest.mark.parametrize(("world", "full", "gate"), [(1, 200, ""), (2, 200, "barrier"), (4, 199, "")])
def test_phi_is_the_same_on_any_number_of_ranks(world: int, full: int, gate: str, tmp_path: Path) -> None:
    """Of 1,602 samples 8 make a step; what is left is in one or two uneven steps, which give no estimate.

    At a barrier buckets are kept back until all of them are computed.
    """
    ranks = start(tmp_path / "j-1", 1, world, gate)
    one = end(ranks)
    assert all(GATES[attempt.page.gate] == (gate or "none") for attempt in ranks)
    assert (one["steps"], one["updates"]) == (EPOCHS * 201, EPOCHS * full)
    near_the_truth(one)


@pytest.mark.parametrize(("world", "full"), [(1, 200), (2, 200)])
def test_ranks_measure_the_same_steps_when_most_are_left_out(world: int, full: int, tmp_path: Path) -> None:
    """The first 24 full steps, and then every fourth; each estimate stands for those since the previous one."""
    one = end(start(tmp_path / "j-1", 1, world, every=4))
    assert one["steps"] == EPOCHS * 201
    assert one["updates"] == 24 + EPOCHS * full // 4 - 24 // 4
    near_the_truth(one, 130)


def test_estimates_go_on_where_another_number_of_ranks_has_left(tmp_path: Path) -> None:
    before = start(tmp_path / "j-1", 1, 2)
    before[0].until(250)
    for attempt in before:
        attempt.send(signal.SIGTERM)
    for attempt in before:
        assert attempt.end()[0] == PREEMPTED
    assert 250 <= before[0].page.steps < 600
    one = end(start(tmp_path / "j-1", 2, 1))
    assert (one["steps"], one["updates"]) == (EPOCHS * 201, EPOCHS * 200)
    near_the_truth(one)


def test_the_example_runs(tmp_path: Path) -> None:
    example = ROOT / "examples" / "training" / "adaptive.py"
    attempt = the_forker().start(tmp_path / "j-1", 1, example, "--epochs", "0.3")
    assert "% right (goal 95.0%)" in attempt.ends()
    assert attempt.page.progress >= 0.3 * 256
