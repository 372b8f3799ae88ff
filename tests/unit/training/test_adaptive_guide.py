"""The script of the guide on adaptive training runs as on its page; a job that adapts in all ways at once keeps all."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attempts import PREEMPTED, ROOT, the_forker

from plait.core.goodput import THETA, Estimate
from plait.runtime.page import Page

pytest.importorskip("torch")

PAGE = ROOT / "docs" / "how-to" / "adaptive-training.md"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    first = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[0]
    file = tmp_path / "train.py"
    file.write_text(first, encoding="utf-8")
    return file


def passes(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines() if "noise_scale" in line]


def test_the_script_of_the_guide_runs_alone(script: Path) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_") and k not in ("RANK", "WORLD_SIZE")}
    env |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert passes(done.stdout) == ["0", "1", "2", "3", "4"]


def test_the_script_of_the_guide_runs_on_two_ranks_of_a_job_and_one_prints(script: Path, tmp_path: Path) -> None:
    gang = the_forker().gang(tmp_path / "j-1", 1, script, world=2)
    assert [passes(attempt.ends()) for attempt in gang] == [["0", "1", "2", "3", "4"], []]


def test_one_then_four_then_two_ranks_train_on_and_report_what_they_learned(tmp_path: Path) -> None:
    forker, job, outputs = the_forker(), tmp_path / "j-1", ""
    for epoch, (world, steps) in enumerate([(1, 12), (4, 8), (2, 0)], start=1):
        gang = forker.gang(job, epoch, "adaptive_whole.py", str(tmp_path / "seen"), str(steps), world=world)
        for attempt in gang:
            outputs += attempt.ends(PREEMPTED if steps else 0)
    lines = [line.split() for file in tmp_path.glob("seen-*") for line in file.read_text().splitlines()]
    for turn in ("0", "1"):
        assert sorted(int(i) for line in lines if line[0] == turn for i in line[1:]) == list(range(600))
    said = [line.split() for line in outputs.splitlines() if line.startswith("pass")]
    assert [line[1] for line in said] == ["600", "600"]
    assert float(said[1][2]) < float(said[0][2])
    told = json.loads(next(line for line in outputs.splitlines() if line.startswith("told"))[5:])
    assert told["gpus"] == [1, 2, 4]
    assert told["known"]
    with Page.open(gang[0].folder / "page.bin", mapped=False) as page:
        numbers = page.goodput
        assert all(number > 0 for number in numbers[:THETA])
        assert numbers[Estimate.PROFILED_GPUS] == 4
        assert numbers[Estimate.VAR] > 0
        assert page.progress == page.total_progress == told["progress"]
        assert page.batch_size == told["batch"] >= 16
