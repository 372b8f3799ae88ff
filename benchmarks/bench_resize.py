"""Seconds without progress when a training gets another number of slots: with overlap, and by a stop and a new start.

    python benchmarks/bench_resize.py [--quick] [--busy N]

The adaptive example on a cluster with two CPU slots, which shrinks to one rank and grows to two again, as another job
comes and goes; real processes, checkpoints and process groups. Seconds without progress count from the last step
before a resize to the first one after it. `--busy N`: beside N processes that compute all the time. Wall seconds, which
vary with the load of the machine: both ways are measured in the same run, one after the other. Takes two minutes on two
idle cores.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import common
from common import Figure

from plait.testing.cluster import Cluster

QUICK = "--quick" in sys.argv
RESIZES = 2 if QUICK else 6
#: What a resize consists of, in order: each part ends with this.
PARTS = ("exit", "ended", "script", "attach", "step")
NAMES = ("last step to exit of the script", "end of the processes", "until the script begins", "script until attach",
         "checkpoint and first step")  # fmt: skip
#: Steps of an attempt before the next resize.
STEPS = 100
POLICIES = common.ROOT / "tests" / "contract"


class Resizes:
    """A cluster with a training that shrinks and grows; `parts` are seconds of each resize."""

    def __init__(self, folder: Path, overlap_s: float) -> None:
        """`overlap_s`: as `plait up --overlap`."""
        self.folder, self.marks = folder, folder / "marks"
        options = {"policy": "resizing:Resizing", "overlap": overlap_s, "round": 0.5}
        self.cluster = Cluster(folder / "home", nodes=1, slots=2, options=options)

    def run(self) -> list[dict[str, float]]:
        """All resizes; of each the seconds of its parts."""
        script, example = Path(__file__).with_name("resize_job.py"), common.ROOT / "examples/training/adaptive.py"
        job = {
            "command": [sys.executable, str(script), str(example), str(self.marks)], "workdir": str(self.folder),
            "gpus": 1, "max_gpus": 2, "batch": {"initial": 32, "most": 1024, "least_local": 8, "most_local": 256},
        }  # fmt: skip
        found = []
        with self.cluster, self.cluster.client() as client:
            client.submit([job])
            self._until_steps(1)
            other = ""
            for attempt in range(2, RESIZES + 2):
                if other:
                    client.cancel(other)
                    other = ""
                else:
                    other = client.submit([{"command": ["sleep", "10000"], "workdir": str(self.folder)}])[0].id
                self._until_steps(attempt)
                found.append(self._parts(attempt))
        return found

    def _rows(self) -> list[tuple[float, int, str]]:
        if not self.marks.exists():
            return []
        words = [line.split() for line in self.marks.read_text().splitlines()]
        return [(float(row[0]), int(row[1]), row[3]) for row in words if len(row) == 4]

    def _until_steps(self, attempt: int) -> None:
        while sum(row[1:] == (attempt, "step") for row in self._rows()) < STEPS:
            self.cluster.maintain()
            time.sleep(0.2)

    def _parts(self, attempt: int) -> dict[str, float]:
        rows = self._rows()
        before = last_s = max(at_s for at_s, of, what in rows if (of, what) == (attempt - 1, "step"))
        out = {}
        for name, part in zip(NAMES, PARTS, strict=True):
            if part == "ended":
                ends = self.folder.glob(f"home/jobs/j-0/attempts/{attempt - 1}/*/exit.json")
                at_s = max(json.loads(path.read_text())["ended_boot_s"] for path in ends)
            else:
                of = attempt - (part == "exit")
                at_s = (min if part == "step" else max)(t for t, a, what in rows if (a, what) == (of, part))
            out[name], last_s = at_s - last_s, at_s
        return out | {"without progress": last_s - before}


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute all the time."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def figures(loops: int) -> list[Figure]:
    """Both ways, and their parts."""
    found = {}
    with busy(loops):
        for way, overlap_s in (("with overlap", 600.0), ("stop, then start", 0.0)):
            with tempfile.TemporaryDirectory() as folder:
                found[way] = Resizes(Path(folder), overlap_s).run()
    out = []
    for way, resizes in found.items():
        for part in ("without progress", *NAMES):
            mine, other = (statistics.median(one[part] for one in found[w]) for w in (way, "stop, then start"))
            compared = way == "with overlap"
            out.append(
                Figure(
                    f"{way}: {part}", mine, len(resizes), other / mine if compared else float("nan"),
                    "stop, then start" if compared else "",
                    "at most 5 s" if compared and part == "without progress" and not loops else "",
                    f"worst {max(one[part] for one in resizes):.2f}", unit="s",
                )
            )  # fmt: skip
    return out


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(POLICIES), *filter(None, [os.environ.get("PYTHONPATH")])])
    common.show(figures(int(sys.argv[sys.argv.index("--busy") + 1]) if "--busy" in sys.argv else 0))
