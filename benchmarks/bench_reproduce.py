"""CPU seconds of each figure of Muri's evaluation, and the speed-up over the times in the artifact's README.

    PLAIT_DATA=folder-with-muri python benchmarks/bench_reproduce.py [--quick]

The artifact's README gives 2, 4, 2, 2 and 1 days for figures 9 to 13 over all ten traces, on hardware it does not name
and in wall time; ours are CPU seconds over the available traces, with and without plait's own world. `--quick`
takes the first 200 jobs of each trace. The 60.0 CPU seconds of the released simulator for Muri-S on trace 3 were
measured once on a machine with two shared cores, as these are.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import common
from common import Figure

from plait.core.cluster import Cluster
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs
from plait_papers.muri.artifact.engine import run
from plait_papers.muri.artifact.trace import read
from plait_papers.muri.compare import Folder, cases_of
from plait_papers.muri.figures import FIGURES
from plait_papers.muri.runs import run_case

README_DAYS = {"9": 2, "10": 4, "11": 2, "12": 2, "13": 1}
RELEASED_CPU_S = 60.0


def main() -> None:
    """Figures one by one, then single runs."""
    data = Path(os.environ.get("PLAIT_DATA", common.ROOT.parent / "shared" / "data")) / "muri"
    if not (data / "trace3.csv").is_file():
        print(f"no Muri traces in {data}; set PLAIT_DATA to the folder that has muri/trace3.csv", file=sys.stderr)
        common.show([])
        return
    jobs = 200 if "--quick" in sys.argv else None
    run(read(data / "trace3.csv", 100), "muri-s")  # compile
    run(read(data / "trace3.csv", 100), "tiresias")
    common.show([*figures_of(data, jobs), *single_runs(data, jobs)])


def figures_of(data: Path, jobs: int | None) -> list[Figure]:
    """Each figure of the paper on the traces that are there."""
    out = []
    for key, days in README_DAYS.items():
        for own in (False, True):
            folder = Folder(data, jobs, own=own)
            cases = cases_of(FIGURES[key], folder)
            begin = time.process_time()
            for case in cases:
                run_case(case)
            taken = time.process_time() - begin
            traces = {Path(case.trace).stem for case in cases}
            note = f"{len(cases)} runs, {len(traces)} of {len(FIGURES[key].traces)} traces"
            note += "" if jobs is None else f", not comparable: {jobs} jobs of each"
            what = f"figure {key}" + (", and in plait's own world" if own else "")
            out.append(Figure(what, taken, 1, days * 86400 / taken, f"{days} days in the artifact's README", note=note))
    return out


def single_runs(data: Path, jobs: int | None) -> list[Figure]:
    """Muri-S on trace 3 as released, and on trace 1 in plait's own world with every invariant checked."""
    path = data / "trace3.csv"
    taken = common.cpu_s(lambda: run(read(path, jobs), "muri-s"))
    goal = "goal 100 x" if jobs is None else "not comparable: --quick"
    out = [Figure("Muri-S, trace 3, released rules", taken, 5, RELEASED_CPU_S / taken, "the released simulator", goal)]
    table = read_trace(data / "trace1.csv", "muri")
    batch = load_jobs(table).jobs
    batch = batch if jobs is None else batch[:jobs]

    def own(policy: str, check: bool) -> float:
        made = make_policy(policy)
        return common.cpu_s(lambda: simulate(batch, Cluster.parse("8x8"), made, make_world("plait"), check=check), 3)

    plain = own("srsf", True)
    muri = own("muri-s", True)
    out.append(Figure("Muri-S, trace 1, plait's world, checked", muri, 3, plain / muri, "SRSF, same", "goal 10 s"))
    return out


if __name__ == "__main__":
    main()
