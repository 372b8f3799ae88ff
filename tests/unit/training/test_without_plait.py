"""A script whose interpreter has not what plait needs runs as if plait were not there; why is in a file of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plait.live.agent.processes.launch import HOOK

#: As much of torch as the hook looks for, and an optimizer step.
OPTIMIZER = """
hooks = []
def register_optimizer_step_post_hook(hook):
    hooks.append(hook)
def step():
    for hook in hooks:
        hook(None, (), {})
"""


@pytest.mark.parametrize("installed", [True, False])
def test_a_script_runs_where_plait_cannot(tmp_path: Path, installed: bool) -> None:
    """Where plait is not installed the hook brings its own copy, which needs a module that this Python has not."""
    for name in ("torch", "torch/optim"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("")
    (tmp_path / "torch" / "optim" / "optimizer.py").write_text(OPTIMIZER)
    (tmp_path / "mmap.py").write_text("raise ImportError('no mmap here')\n")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    script = "from torch.optim import optimizer\nfor i in range(3): optimizer.step()\nprint('done')\n"
    env = {
        "PATH": os.environ["PATH"], "PLAIT_RUN_DIR": str(run_dir), "PLAIT_JOB_DIR": str(run_dir),
        "PYTHONPATH": os.pathsep.join([str(HOOK), str(tmp_path)]),
    }  # fmt: skip
    python = sys.executable
    if not installed:  # an environment without packages
        (tmp_path / "pyvenv.cfg").write_text(f"home = {Path(sys._base_executable).parent}\n")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "python").symlink_to(sys._base_executable)
        python = str(tmp_path / "bin" / "python")
    done = subprocess.run([python, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    said = (run_dir / "plait.log").read_text()
    assert said.startswith("this script runs without step counts: ImportError('no mmap here'")
    assert said.count("\n") == 1
