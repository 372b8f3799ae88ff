"""The pages for a lab and from Slurm: their commands run in order on a cluster of slots, and each succeeds."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from documented_code import ROOT, SHELL, blocks
from plait.live.client.client import FINAL, Client

pytestmark = pytest.mark.engines

PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")


UP = "plait up --nodes 2 --gpus-per-node 4 --cpu-slots 2"
THREE = "plait submit --array 0-2 -g 1 -- python train.py"
SCRIPT = """#!/bin/bash
#SBATCH --gres=gpu:1 --time=1:00 --output=out.%j
srun python train.py "$@"
"""


@pytest.mark.parametrize(
    ("page", "before", "states"),
    [
        ("for-a-lab", [], {"finished": 7}),
        # The job that waits until 18:00 is cancelled, so the evaluation fails, and the report runs.
        ("from-slurm", [UP, THREE], {"finished": 6, "cancelled": 1, "failed": 1}),
    ],
)
def test_the_commands_of_the_page_run(tmp_path: Path, page: str, before: list[str], states: dict[str, int]) -> None:
    for name in ("train", "evaluate", "prepare", "report"):
        (tmp_path / f"{name}.py").write_text("import sys, time; time.sleep(0.5); print(sys.argv)")
    (tmp_path / "job.sh").write_text(SCRIPT)
    environ = {**os.environ, "PLAIT_HOME": str(tmp_path / "home")}

    def run(words: list[str]) -> None:
        words = [*words, "--fake"] if words[1] == "up" else words
        done = subprocess.run(
            [*PLAIT, *words[1:]], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stdout}{done.stderr}"

    try:
        for command in before:
            run(shlex.split(command))
        found = [block for block in blocks(ROOT / f"docs/how-to/{page}.md") if block.language in SHELL]
        assert len(found) >= 2
        for block in found:
            for words in block.commands():
                run(words)
            with Client.at(str(tmp_path / "home")) as service:
                until = time.monotonic() + 120
                while any(row.state not in FINAL for row in service.jobs(limit=100)) and block is not found[0]:
                    assert time.monotonic() < until
                    time.sleep(0.2)
                ended = Counter(row.state for row in service.jobs(limit=100))
    finally:
        run(["plait", "down", "--stop-jobs"])
    assert ended == states
