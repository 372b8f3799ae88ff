"""Run all benchmarks in turn, each in its own process, and compare with the last committed ratios: `make bench`.

    python benchmarks/run.py [--quick] [--accept] [SCRIPT ...]

Prints the figures of each script, writes them into the tables of benchmarks/README.md, and writes the ratios with
commit, date and machine into benchmarks/ratios.json. Fails if a ratio fell by more than `LIMIT` in two runs of its
script, and keeps the last figures of that script; `--accept` writes all the same. Only ratios of CPU seconds count:
wall time depends on what else the machine does. `SCRIPT`, such as `bench_engine.py`, runs only that.

`--quick` takes a tenth of the sizes and compares with the ratios of earlier quick runs. It names what is slower and
does not fail for it, because runs of milliseconds on a machine of another kind differ by more than the limit; it
writes ratios with `--accept` only, and no tables.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import common
import figures as pages
from common import Figure

HERE = Path(__file__).parent
README = HERE / "README.md"
RATIOS = HERE / "ratios.json"
#: A ratio that is this many times smaller than the last committed one is a slower row.
LIMIT = 1.3
SCRIPTS = {
    "The command line": ["bench_cli.py"],
    "Against the naive reference": ["bench_naive.py"],
    "Compiled against plain Python": ["bench_jit.py"],
    "A user's own policy": ["bench_policy.py"],
    "The engine": ["bench_engine.py"],
    "Exact matching": ["bench_matching.py"],
    "Advice": ["bench_advise.py"],
    "Grouping": ["bench_grouping.py"],
    "Allocation": ["bench_allocation.py"],
    "Decisions of policies that choose sizes": ["bench_sizing.py"],
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


def measured(script: str, options: list[str]) -> list[Figure] | None:
    """The figures of a script in a process of its own; None if it failed, with its error on standard error."""
    command = [sys.executable, str(HERE / script), "--json", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"{script} failed with exit code {done.returncode}; its error stands above", flush=True)
        return None
    return [Figure(**figure) for figure in json.loads(done.stdout)]


def ratios(rows: list[Figure]) -> dict[str, float]:
    """Ratios of CPU seconds by what is measured and against what."""
    kept = (row for row in rows if "CPU" in row.unit and math.isfinite(row.ratio))
    return {f"{row.what} | {row.against}": float(f"{row.ratio:.4g}") for row in kept}


def slower(now: Mapping[str, float], last: Mapping[str, float]) -> dict[str, float]:
    """Rows whose ratio fell by more than `LIMIT`, and how many times; rows that only one run has do not count."""
    fell = {row: last[row] / ratio for row, ratio in now.items() if row in last and ratio > 0}
    return {row: times for row, times in fell.items() if times > LIMIT}


def recorded(size: str) -> dict[str, dict[str, Any]]:
    """The last accepted run of each script in that size: commit, date, machine and ratios."""
    return dict(json.loads(RATIOS.read_text(encoding="utf-8")).get(size, {})) if RATIOS.exists() else {}


def commit() -> str:
    """The commit that is measured, and whether files were changed since."""
    words = ("git", "-C", str(HERE.parent))
    try:
        name = subprocess.run([*words, "rev-parse", "--short=10", "HEAD"], check=True, capture_output=True, text=True)
        changed = subprocess.run([*words, "status", "--porcelain", "src"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def run_of() -> dict[str, str]:
    """What a run is identified by."""
    return {"commit": commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": common.machine()}


def record(found: Mapping[str, list[Figure]], size: str, identity: Mapping[str, str]) -> None:
    """Write the ratios of a run and, for full sizes, the tables; `identity` has its commit, date and machine."""
    new = {script: {**identity, "ratios": ratios(rows)} for script, rows in found.items() if rows}
    kept = {name: recorded(name) for name in ("full", "quick")}
    kept[size] |= new
    RATIOS.write_text(json.dumps(kept, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
    if size == "full":
        outputs = {
            f"python benchmarks/{script} --markdown": "\n".join(common.markdown(rows))
            for script, rows in found.items()
            if rows
        }
        head = ["| script | commit | date | machine |", "|---|---|---|---|"]
        for script in (script for scripts in SCRIPTS.values() for script in scripts if script in kept["full"]):
            run = kept["full"][script]
            head.append(f"| `{script}` | {run['commit']} | {run['date']} | {run['machine']} |")
        outputs["make bench"] = "\n".join(head)
        README.write_text(pages.renewed(README.read_text(encoding="utf-8"), outputs), encoding="utf-8")


def main() -> int:
    """Run, print, compare and write; 1 if a script failed or, in full size, a row is slower."""
    options = [word for word in sys.argv[1:] if word == "--quick"]
    size = "quick" if options else "full"
    only = [word for word in sys.argv[1:] if not word.startswith("--")]
    unknown = [name for name in only if not any(name in scripts for scripts in SCRIPTS.values())]
    if unknown:
        sys.exit(f"{unknown[0]} is not a script of this benchmark, such as bench_engine.py")
    identity, last = run_of(), recorded(size)
    print(", ".join(identity.values()), flush=True)
    begin = time.monotonic()
    failed: list[str] = []
    slow: list[str] = []
    for title, scripts in SCRIPTS.items():
        chosen = [script for script in scripts if not only or script in only]
        if chosen:
            print(f"\n{title}")
        for script in chosen:
            rows = measured(script, options)
            if rows is None:
                failed.append(script)
                continue
            common.print_table(rows)
            sys.stdout.flush()
            before = last.get(script, {}).get("ratios", {})
            worse = slower(ratios(rows), before)
            if worse:  # once more: one run on a busy machine is no evidence
                again = slower(ratios(measured(script, options) or []), before)
                worse = {row: min(worse[row], again[row]) for row in worse if row in again}
            slow += [f"{script}: {row}: {times:.2f} times slower than the last ratio" for row, times in worse.items()]
            if "--accept" in sys.argv or (size == "full" and not worse):
                record({script: rows}, size, identity)
    print(f"\n{time.monotonic() - begin:.0f} s in all", *slow, sep="\n")
    if slow and "--accept" not in sys.argv:
        print("figures of slower scripts are not written; to write them all the same, add --accept", file=sys.stderr)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed) or (size == "full" and bool(slow) and "--accept" not in sys.argv))


if __name__ == "__main__":
    sys.exit(main())
