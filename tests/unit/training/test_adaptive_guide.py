"""The script of the guide on adaptive training runs as it stands on the page: alone, and on two ranks of a job."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attempts import ROOT, free_port, the_forker

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
    extra = {"MASTER_PORT": str(free_port()), "world": 2}
    gang = [the_forker().start(tmp_path / "j-1", 1, script, rank=rank, **extra) for rank in range(2)]
    outputs = []
    for attempt in gang:
        code, output = attempt.end()
        assert code == 0, output
        outputs.append(passes(output))
    assert outputs == [["0", "1", "2", "3", "4"], []]
