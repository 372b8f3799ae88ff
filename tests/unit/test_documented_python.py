"""Python blocks of the documentation run as they stand, page by page; what a page takes as given is made here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documented_code import PAGES, ROOT, blocks

TRAINING = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = [torch.randn(128, 4) for _ in range(2)]
held_out = torch.utils.data.DataLoader(torch.randn(4, 4))
evaluate = lambda model, batches: [model(batch) for batch in batches]
loss = lambda output: output.square().mean()
"""
#: What a page takes as given: code that runs before its blocks.
GIVEN = {
    "add-a-policy": (
        "from types import SimpleNamespace\nfrom plait.policies.catalog import _ordered\n"
        "from plait.core.arrays import IntArray\nfrom plait import View\n"
        "orders = SimpleNamespace(by_width=lambda view: -view.jobs.gpus)\n"
    ),
    "design": "ignore = None\n",
    "python-api": (
        "import subprocess, sys\nfrom doubling_queues import DoublingQueues as MyPolicy\n"
        "plait = [sys.executable, '-c', 'from plait.cli import main; main()']\n"
        "subprocess.run([*plait, 'trace', 'generate', 'trace.csv', '--jobs', '40', '--gpus', '64'], check=True)\n"
        "subprocess.run([*plait, 'simulate', 'trace.csv', '-p', 'srsf', '--log', 'run.log.gz'], check=True)\n"
    ),
    "resume-a-training": TRAINING
    + """
import numpy as np
from plait.training import attach
data = torch.randn(8, 4)
loader = torch.utils.data.DataLoader(data)
rng = np.random.default_rng(0)
weights = momentum = np.zeros(3)
update = lambda weights, momentum, rng: (weights + rng.normal(size=3), momentum)
""",
    "run-a-cluster": "train_a = train_b = lambda job: [step for step in job.steps(3)]\n",
    "share-gpus": TRAINING,
}
#: Pages whose blocks another test runs, or that need what no test of one process has.
ELSEWHERE = {
    "README": "tests/unit/test_readme.py",
    "adaptive-training": "tests/unit/training/test_adaptive_guide.py",
    "debug-an-incident": "tests/unit/live/test_trace_export.py",
    "aggregate-gradients": "needs two ranks: tests/live/test_ddp_aggregation.py",
    "run-a-switch": "needs a running switch: tests/unit/live/dataplane",
    "use-from-programs": "needs a running service: tests/live",
}
WITH_PYTHON = [page for page in PAGES if any(block.language == "python" for block in blocks(page))]


def test_the_lists_name_pages_with_python() -> None:
    assert {*GIVEN, *ELSEWHERE} <= {page.stem for page in WITH_PYTHON}


@pytest.mark.parametrize("page", [p for p in WITH_PYTHON if p.stem not in ELSEWHERE], ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    code = GIVEN.get(page.stem, "") + "\n".join(_checked(b.text) for b in blocks(page) if b.language == "python")
    (tmp_path / "page.py").write_text(code, encoding="utf-8")
    folders = [str(ROOT / "src"), str(ROOT / "examples")]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")} | {
        "PYTHONPATH": os.pathsep.join(folders),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, f"{page}:\n{done.stderr}"


def _checked(text: str) -> str:
    """The block; a row `expression  # 'value'` with a literal or a class as its comment also compares the two."""
    rows = []
    for row in text.splitlines():
        match = re.fullmatch(r"(\w[^#=]*\S)  # ('.*'|-?\d[\d.]*|\(.*\)|[A-Z]\w*\(.*\))", row)
        shown = match and (repr(match[2]) if match[2][0].isupper() else f"repr({match[2]})")
        rows.append(f"assert repr(({match[1]})) == {shown}, repr(({match[1]}))" if match else row)
    return "\n".join(rows) + "\n"
