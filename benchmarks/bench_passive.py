"""Stages of the six examples of training: by their marks, by hooks beside the marks, and by hooks without marks.

    python benchmarks/bench_passive.py [NAME ...]

The disk is declared as 64 MB/s and the link as 160 Mbit/s. Marks and hooks of one line are of the same iterations;
"unmarked" is a second run, whose `attach` gives the job of a script outside plait, so that nothing is marked. Each line
prints parts of the iteration for storage, CPU, GPU and network, the largest difference from the marks, and which part
of the time threads of both runs waited for a core.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from plait.runtime.page import Page

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "training"
#: Script, its arguments and its number of processes.
RUNS = {
    "storage, 1 worker": ("storage_images.py", ["--images", "1280", "--epochs", "4"], 1),
    "storage, 0 workers": ("storage_images.py", ["--images", "1280", "--epochs", "4", "--workers", "0"], 1),
    "actor-critic": ("cpu_actor_critic.py", ["--steps", "100", "--moves", "210"], 1),
    "gpt": ("gpu_gpt.py", ["--steps", "120"], 1),
    "network": ("network_mlp.py", ["--epochs", "1", "--width", "320", "--steps", "70"], 2),
    "Transformers": ("huggingface_trainer.py", ["--steps", "150"], 1),
    "Lightning": ("lightning_module.py", ["--epochs", "10"], 1),
}
#: Runs a script with hooks beside its marks, or with `attach` as outside plait; writes what was measured.
DRIVER = """
import json, runpy, sys
from plait.training import attachment, profiler
from plait.training.job import Job
from plait.training.passive import stages_of
how, out, script = sys.argv[1:4]
sys.argv = sys.argv[3:]
sys.path.insert(0, script.rpartition("/")[0])
if how == "unmarked":
    attachment.attach = lambda *, seed=0, **stateful: Job(seed=seed)
else:
    def both(self, *, marked):
        self._transfers.start()
        self._hooks.start(self.step_s)
    profiler.Profiler._begin_window = both
complete = profiler.Profiler._complete
def write(self, busy_s):
    if not complete(self, busy_s):
        return False
    stage_s, iteration_s, samples = self.result
    window = self._hooks.window
    hooks = stages_of(window, iteration_s)
    parts = {"stages": [s / iteration_s for s in stage_s], "hooks": [s / iteration_s for s in hooks or stage_s]}
    with open(out, "w") as file:
        json.dump(parts | {"ms": 1e3 * iteration_s, "disturbed": window.disturbed}, file)
    profiler.Profiler._complete = complete
    return True
profiler.Profiler._complete = write
runpy.run_path(script, run_name="__main__")
"""


def run(name: str, how: str, folder: Path) -> list[dict[str, Any]]:
    """Measure an example in processes of its own, one result a rank."""
    script, arguments, world_size = RUNS[name]
    (folder / "devices").mkdir(exist_ok=True)
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        port = made.getsockname()[1]
    started = []
    for rank in range(world_size):
        rank_folder = folder / f"{how}-{name}" / f"rank{rank}"
        rank_folder.mkdir(parents=True)
        Page.create(rank_folder / "page.bin").close()
        paths = [str(ROOT / "src/plait/training/hook"), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {
            "PYTHONPATH": os.pathsep.join(paths),
            "PLAIT_RUN_DIR": str(rank_folder),
            "PLAIT_JOB_DIR": str(rank_folder.parent),
            "OMP_NUM_THREADS": "1",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PLAIT_DEMO_DEVICES": str(folder / "devices"),
            "PLAIT_DEMO_DISK_MB_S": "64",
            "PLAIT_DEMO_LINK_MBIT_S": "160",
        }
        data = ["--data", str(folder / "images")] if script.startswith("storage") else []
        out = rank_folder / "measured.json"
        command = [sys.executable, "-c", DRIVER, how, str(out), str(EXAMPLES / script), *arguments, *data]
        started.append((subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), out))
    for process, _ in started:
        if process.wait(timeout=300):
            raise RuntimeError(f"{name} ended with exit code {process.returncode}")
    return [json.loads(out.read_text()) for _, out in started]


COLUMNS = (
    "example", "ms", "marks", "hooks", "difference", "unmarked", "difference", "bottleneck", "waiting for a core",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    with tempfile.TemporaryDirectory() as made:
        for name in sys.argv[1:] or RUNS:
            pairs = zip(run(name, "marked", Path(made)), run(name, "unmarked", Path(made)), strict=True)
            for rank, (marked, unmarked) in enumerate(pairs):
                parts = [marked["stages"], marked["hooks"], unmarked["stages"]]
                marks, hooks, without = (" ".join(f"{part:.2f}" for part in one) for one in parts)
                off = [max(abs(a - b) for a, b in zip(one, parts[0], strict=True)) for one in parts]
                right = len({one.index(max(one)) for one in parts}) == 1
                cells = [name if rank == 0 else f"{name}, rank {rank}", f"{marked['ms']:.1f}", marks, hooks]
                cells += [f"{off[1]:.2f}", without, f"{off[2]:.2f}", "right" if right else "wrong"]
                cells += [f"{marked['disturbed']:.2f}, {unmarked['disturbed']:.2f}"]
                print(f"| {' | '.join(cells)} |", flush=True)


main()
