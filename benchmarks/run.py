"""Run all benchmarks in turn, each in its own process: `make bench`.

python benchmarks/run.py [--quick]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import common
from common import Figure

HERE = Path(__file__).parent
SCRIPTS = {
    "The command line": ["bench_cli.py"],
    "Against the naive reference": ["bench_naive.py"],
    "Compiled against plain Python": ["bench_jit.py"],
    "A policy of one's own": ["bench_policy.py"],
    "The engine": ["bench_engine.py"],
    "Exact matching": ["bench_matching.py"],
    "Advice": ["bench_advise.py"],
    "Grouping": ["bench_grouping.py"],
    "Allocation": ["bench_allocation.py"],
    "Policies that choose sizes": ["bench_sizing.py"],
    "Muri's evaluation": ["bench_reproduce.py"],
    "Goodput of adaptive jobs": ["bench_goodput.py"],
    "Simulated adaptive jobs": ["bench_adaptive.py"],
    "Networks": ["bench_network.py", "bench_memory_laws.py"],
    "Packets of gradients": ["bench_packets.py", "bench_dataplane.py"],
    "Training": ["bench_training.py"],
    "Gradient noise": ["bench_gradient_noise.py"],
    "The live service": ["bench_service.py", "bench_dashboard.py"],
    "Many nodes": ["bench_cluster.py"],
    "Gates between jobs": ["bench_gates.py"],
    "Merged jobs": ["bench_merged.py"],
}


def main() -> None:
    """Run and print, section by section. A script that fails is named, the others run, and the exit code is 1."""
    print(common.machine(), flush=True)
    begin = time.monotonic()
    options = [a for a in sys.argv[1:] if a == "--quick"]
    failed = []
    for title, scripts in SCRIPTS.items():
        print(f"\n{title}")
        for script in scripts:
            command = [sys.executable, str(HERE / script), "--json", *options]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode:
                failed.append(script)
                print(f"{script} failed with exit code {done.returncode}; its error stands above", flush=True)
                continue
            common.print_table([Figure(**figure) for figure in json.loads(done.stdout)])
            sys.stdout.flush()
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
