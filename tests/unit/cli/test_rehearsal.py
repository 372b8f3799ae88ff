"""`plait rehearse` tells a script that resumes from one that does not, and names what the checkpoint lacks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from plait.cli.rehearsal import LossNoise, Trace, Verdict, counters_of, draw_stops, first_difference, rehearse, untried
from plait.core.errors import InputError

PLAIT = [sys.executable, "-c", "from plait.cli import main; main()"]

BEGIN = """
import random, signal, time
from plait.training import attach
random.seed(1)
state = {"w": 0.0}
job = attach(state=state)
"""
EXACT = """
for step in job.steps(24):
    state["w"] += random.random() - 0.5
open("model.txt", "w").write(repr(state))
"""
BEST_IN_A_LOCAL = """
best = 1e9
for step in job.steps(24):
    state["w"] += random.random() - 0.5 + (0.1 if best < 0.2 else 0.0)
    best = min(best, abs(state["w"] - 0.3))
"""
EARLY_STOPPING = """
best, wait = 1e9, 0
for step in job.steps(60):
    state["w"] += 1
    value = abs(state["w"] - 12)
    best, wait = (value, 0) if value < best else (best, wait + 1)
    if wait == 12:
        break
"""
STREAM_OF_ITS_OWN = """
dice = random.Random(3)
for step in job.steps(24):
    state["w"] += dice.random()
"""
ONLY_LOGGED = """
losses = []
for step in job.steps(24):
    state["w"] += random.random()
    losses.append(state["w"])
"""
NOT_DETERMINISTIC = """
dice = random.SystemRandom()
for step in job.steps(24):
    state["w"] += dice.random()
"""
EPOCHS = """
total = 0.0
for epoch in job.epochs(20):
    state["w"] += total
    total += 1.0
"""
HANDLES_SIGTERM = """
for step in job.steps(24):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    state["w"] += 1
"""


def verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, **options: int) -> Verdict:
    folder, scratch = tmp_path / "here", tmp_path / "scratch"
    folder.mkdir()
    scratch.mkdir()
    (folder / "train.py").write_text(BEGIN + loop)
    monkeypatch.chdir(folder)
    return rehearse([sys.executable, "train.py"], scratch, **{"steps": 100, **options})


def test_an_exact_script_resumes_and_its_files_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "model.txt").write_text("of last week")
    (tmp_path / "here").rename(tmp_path / "kept")
    result = verdict(tmp_path, monkeypatch, EXACT)
    assert (result.resumes, result.steps, result.finished, result.notes) == (True, 24, True, [])
    assert not (tmp_path / "here" / "model.txt").exists()
    assert [Path(path).name for path in result.put_back] == ["model.txt"]

    (tmp_path / "kept" / "train.py").write_text(BEGIN + EXACT)
    monkeypatch.chdir(tmp_path / "kept")
    (tmp_path / "again").mkdir()
    assert rehearse([sys.executable, "train.py"], tmp_path / "again", steps=100, stops=3).resumes
    assert (tmp_path / "kept" / "model.txt").read_text() == "of last week"


@pytest.mark.parametrize(
    ("loop", "named"), [(BEST_IN_A_LOCAL, "best ("), (STREAM_OF_ITS_OWN, "dice ("), (EPOCHS, "state")]
)
def test_what_no_checkpoint_has_is_named(
    loop: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verdict(tmp_path, monkeypatch, loop)
    assert not result.resumes
    assert result.difference.step > result.stops[0]
    assert named in " ".join([*result.causes, result.problem])
    assert result.noise_from is None


def test_early_stopping_in_locals_takes_another_number_of_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verdict(tmp_path, monkeypatch, EARLY_STOPPING)
    assert (result.difference.kind, result.difference.step) == ("length", result.steps + 1)
    assert "best (" in result.causes[0]
    assert "wait (" in result.causes[0]


def test_a_bounded_rehearsal_notes_what_has_no_effect_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = verdict(tmp_path, monkeypatch, ONLY_LOGGED, steps=12)
    assert (result.resumes, result.steps, result.finished) == (True, 12, False)
    assert "losses (list of" in result.notes[0]


def test_noise_of_undisturbed_runs_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = verdict(tmp_path, monkeypatch, NOT_DETERMINISTIC)
    assert (result.resumes, result.noise_from) == (True, 1)


def test_a_script_that_ignores_sigterm_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = verdict(tmp_path, monkeypatch, HANDLES_SIGTERM)
    assert not result.resumes
    assert "is not obeyed" in result.problem


def test_a_script_without_a_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no training step was seen"):
        verdict(tmp_path, monkeypatch, "")
    (tmp_path / "here" / "train.py").write_text("raise ValueError('no data')")
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="fails without any stop: ValueError: no data"):
        rehearse([sys.executable, "train.py"], tmp_path / "b", steps=8)


def test_the_command_exits_with_1_and_prints_json(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(BEGIN + BEST_IN_A_LOCAL)
    command = [*PLAIT, "rehearse", "--json", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["resumes"] is False
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_run_keeps_the_environment_and_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.5")
    monkeypatch.setenv("PYTHONPATH", "/of/the/user")
    script = "import os; print(os.environ['LR'], os.getcwd(), os.environ['PYTHONPATH'].split(':')[-1])"
    command = [*PLAIT, "run", "--", sys.executable, "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.split() == ["0.5", str(tmp_path), "/of/the/user"], done.stderr


HIDDEN_STATE = """
import torch
from plait.training import attach
torch.manual_seed(1)
rnn, head = torch.nn.GRU(4, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam([*rnn.parameters(), *head.parameters()], 1e-2)
loader = torch.utils.data.DataLoader(torch.randn(48, 4), 8, shuffle=True)
job = attach(rnn=rnn, head=head, optimizer=optimizer)
loader = job.wrap_loader(loader)
for epoch in job.epochs(3):
    h = torch.zeros(1, 8, 4)
    for i, x in enumerate(loader):
        out, h = rnn(x[None], h.detach())
        loss = head(out[0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
torch.save(head.state_dict(), "model.pt")
"""


@pytest.mark.slow
def test_hidden_state_of_a_recurrent_network_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setitem(globals(), "BEGIN", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    result = verdict(tmp_path, monkeypatch, HIDDEN_STATE)
    assert (result.difference.kind, result.difference.step) == ("losses", result.stops[0] + 1)
    assert any("h (Tensor" in cause for cause in result.causes)
    assert (result.stops[0] - 1) % 6 != 5, "a stop is in mid-epoch"
    assert [Path(path).name for path in result.put_back] == ["model.pt"]


def test_the_loader_that_lost_its_place_is_found() -> None:
    def trace(numbers: list[int]) -> Trace:
        return Trace({n: {"batches": [["loader", number, 8, ""]]} for n, number in enumerate(numbers, 1)})

    found = first_difference(trace([1, 2, 3, 4]), trace([1, 2, 1, 2]), LossNoise())
    assert (found.step, found.kind, found.got) == (3, "batches", "batch 1 of 8 of 'loader'")


def test_streams_that_nobody_seeded_are_no_noise_of_the_training() -> None:
    def trace(streams: str) -> Trace:
        return Trace({1: {"before": {}, "streams": streams, "losses": [0.5]}})

    noise = LossNoise.between(trace("a"), trace("b"))
    assert noise.first is None
    assert first_difference(trace("a"), trace("c"), noise) is None
    assert first_difference(trace("a"), trace("c"), LossNoise()) is not None


def test_stops_are_drawn_in_the_middle_of_epochs() -> None:
    trace = Trace({n: {"batches": [["loader", (n - 1) % 4 + 1, 4, ""]]} for n in range(1, 13)})
    for seed in range(20):
        drawn = draw_stops(trace, 2, seed)
        assert all(stop % 4 for stop in drawn)
        assert drawn == draw_stops(trace, 2, seed)
    assert len({tuple(draw_stops(trace, 2, seed)) for seed in range(20)}) > 1


def test_stops_show_counters_of_every_period() -> None:
    trace = Trace({n: {} for n in range(1, 101)}, ends=["finished"])
    drawn = {stop for seed in range(20) for stop in draw_stops(trace, 1, seed)}
    assert len(drawn) > 3
    assert all(stop % period for stop in drawn for period in range(2, stop))
    assert untried(trace, [53]) == [
        "counters with a period of 53 steps, which end where the stops are: another --seed, --stops 2"
    ]
    assert untried(trace, [53, 60]) == []
    assert "2, 3, 4, 6 ..." in untried(trace, [12])[0]

    batches = [["loader", 1, 10, ""]]
    summed = Trace({n: {"batches": batches * (2 if n % 3 == 0 else 4)} for n in range(1, 61)})
    for seed in range(20):  # 4, 8, 10, 14, 18, 20 batches and so on
        (stop,) = draw_stops(summed, 1, seed)
        assert sum(len(summed.steps[n]["batches"]) for n in range(1, stop + 1)) % 4
    assert untried(summed, [31])[0] == "what happens after step 60: --steps"


EVERY_FOURTH = """
count = 0
for step in job.steps(40):
    state["w"] += random.random()
    count += 1
    if count % 4 == 0:
        state["w"] *= 0.5
"""


@pytest.mark.parametrize("seed", [0, 1])
def test_a_counter_that_begins_again_is_found_whatever_step_is_drawn(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = verdict(tmp_path, monkeypatch, EVERY_FOURTH, seed=seed)
    assert not result.resumes
    assert "count (" in result.causes[0]


ONE_RANK_FAILS = """
import os, sys
for step in job.steps(24):
    if os.environ["RANK"] == "1" and step == 3:
        raise RuntimeError("the second GPU is gone")
    state["w"] += 1
if os.environ["RANK"] == "0":
    time.sleep(100000)
"""


def test_the_rank_that_fails_ends_the_rehearsal_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="rank 1 ended with exit code 1: RuntimeError: the second GPU is gone"):
        verdict(tmp_path, monkeypatch, ONE_RANK_FAILS, ranks=2)


def test_counters_are_those_of_enumerate() -> None:
    script = "for i, x in enumerate(loader): pass\nfor k, v in items: pass\nfor n, b in tqdm(enumerate(a)): pass"
    assert counters_of(script) == {"i", "n"}
    assert counters_of("not python (") == set()
