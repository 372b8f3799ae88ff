"""`plait network bench`: buckets of gradients through a software switch on this machine, or gloo's all-reduce."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.table import Table

from plait.cli.connection import print_json
from plait.cli.render.console import console
from plait.core.errors import InputError, MissingExtra
from plait.core.options import option
from plait.live.agent.processes.launch import free_port
from plait.network.protocol.addressing import Index
from plait.network.protocol.options import preset
from plait.runtime.network.grant import SOFTWARE_SWITCH, NetworkGrant, write_grant
from plait.testing.dataplane import Dataplane

#: Seconds that the ranks may take in all.
LIMIT_S = 600.0
#: Parts of a bucket, as the reports of ranks name them, in words.
PARTS = {
    "agreement_s": "agreement before it",
    "quantise_s": "fixed point, packing",
    "transfer_s": "sending, receiving, waiting",
    "decode_s": "unpacking, mean",
    "success_s": "agreement after it, next to the script",
    "gloo_s": "gloo, of buckets that failed",
}


@dataclass(frozen=True)
class BenchRequest:
    """The options of `plait network bench`."""

    workers: int = option("Ranks, a process each", default=2, least=2, most=64, short="w")
    mib: float = option("Gradients of a bucket, MiB", default=16.0, least=0.001, most=1024)
    rounds: int = option("Buckets that are measured each way, in turn", default=20, least=1, most=10_000)
    protocol: str = option("System: switchml, atp, a2tp, esa or inalloc", default="switchml", short="p")
    payload: int = option("Payload of a packet, bytes", default=SOFTWARE_SWITCH["payload_bytes"], least=16, most=8192)
    window: int = option(
        "Most packets that a rank may have under way", default=SOFTWARE_SWITCH["window"], least=1, most=65_536
    )
    aggregators: int = option("Aggregators of the switch", default=4096, least=2, most=1 << 24, short="a")
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False


def bench(request: BenchRequest) -> None:
    """Measure and print."""
    found = measure(request)
    if request.as_json:
        print_json(found)
    else:
        show(found)


def measure(request: BenchRequest) -> dict[str, Any]:
    """Run a switch, a server and the ranks; returns medians of seconds for a bucket, and where they went.

    Raises `InputError` if buckets do not go through the switch, `MissingExtra` without torch.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "torch", "plait network bench")
    options = {**SOFTWARE_SWITCH, "protocol": request.protocol, "quantise": "exponent"}
    options |= {"payload_bytes": request.payload, "window": request.window}
    dedicated = preset(**options).mode is Index.DEDICATED
    with tempfile.TemporaryDirectory(prefix="plait-bench-") as name:
        folder = Path(name)
        with Dataplane.start("server", folder, payload=request.payload, window=request.window) as server:
            address = f"127.0.0.1:{server.address[1]}"
            with Dataplane.start(
                "switch", folder, name="bench", payload=request.payload, aggregators=request.aggregators, server=address
            ) as tor:
                grant = NetworkGrant(
                    version=1, granted=True, job=1, token=secrets.token_hex(8), n_workers=request.workers,
                    switch=(str(tor.address[0]), int(tor.address[1])), switch_name="bench", options=options,
                    size=request.aggregators, slots=request.aggregators,
                )  # fmt: skip
                for one in [tor] if dedicated else [server, tor]:
                    one.control.register(1, "bench", request.workers, options, grant.token)
                    one.control.region(1, 0, request.aggregators, 0)
                    one.control.measure()
                write_grant(folder / "network.json", grant)
                ranks = _ranks(request, folder / "network.json")
                statistics = [one.control.statistics() for one in (tor, server)]
    return _result(request, ranks, statistics)


def _ranks(request: BenchRequest, grant: Path) -> list[dict[str, Any]]:
    """Run the ranks; returns what each printed."""
    given = {"size": request.workers, "port": free_port(), "grant": str(grant), "rounds": request.rounds}
    given["bytes"] = max(4, int(request.mib * (1 << 20)) // 4 * 4)
    processes = []
    for rank in range(request.workers):
        command = [sys.executable, "-m", "plait.training.collectives.bench_rank", json.dumps({**given, "rank": rank})]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen(command, env=environment, **piped))  # type: ignore[call-overload]
    try:
        found = []
        for process in processes:
            out, errors = process.communicate(timeout=LIMIT_S)
            if process.returncode:
                raise InputError(f"a rank ended with code {process.returncode}: {errors.strip()[-500:]}")
            found.append(json.loads(out.strip().splitlines()[-1]))
        return found
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _result(request: BenchRequest, ranks: list[dict[str, Any]], statistics: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over rounds of all ranks; the rate of a rank is its bytes over the seconds of the slowest rank."""
    size = max(4, int(request.mib * (1 << 20)) // 4 * 4)
    rounds = [list(one) for one in zip(*(rank["rounds"] for rank in ranks), strict=True)]
    found: dict[str, Any] = {
        "workers": request.workers, "bytes": size, "rounds": request.rounds, "protocol": request.protocol,
        "payload_bytes": request.payload, "window": request.window, "aggregators": request.aggregators,
    }  # fmt: skip
    for way in ("network", "gloo"):
        slowest = [max(one[f"{way}_s"] for one in at) for at in rounds]
        cpu_s = median(one[f"{way}_cpu_s"] for at in rounds for one in at)
        found[way] = {
            "seconds": median(slowest), "least_s": min(slowest), "most_s": max(slowest),
            "gbps": 8e-9 * size / median(slowest), "best_gbps": 8e-9 * size / min(slowest), "cpu_s": cpu_s,
        }  # fmt: skip
    parts = {name: median(one[f"part_{name}"] for at in rounds for one in at) for name in PARTS}
    found["network"]["parts"] = parts
    buckets = max(rank["counts"]["aggregated"] for rank in ranks)
    for name, one in zip(("switch", "server"), statistics, strict=True):
        stages = one["stages_s"] or {}
        found[f"{name}_cpu_s"] = {stage: seconds / buckets for stage, seconds in stages.items()}
    found["largest_difference"] = max(rank["difference"] for rank in ranks)
    found["resent"] = sum(rank["counts"]["resent"] for rank in ranks) / sum(rank["counts"]["sent"] for rank in ranks)
    found["timeouts"] = sum(rank["counts"]["timeouts"] for rank in ranks)
    found["fallback"] = ranks[0]["fallback"]
    return found


def show(found: dict[str, Any]) -> None:
    """Print two tables: both ways, and where the time of a bucket went."""
    console().print(
        f"{found['workers']} ranks, buckets of {found['bytes'] / (1 << 20):g} MiB, {found['protocol']}, payload "
        f"{found['payload_bytes']} B, window {found['window']}: medians of {found['rounds']} rounds"
    )
    table = Table("way", "ms", "least ms", "most ms", "Gb/s a rank", "best", "CPU ms a rank")
    for way in ("network", "gloo"):
        one = found[way]
        times = [f"{1e3 * one[name]:.1f}" for name in ("seconds", "least_s", "most_s")]
        table.add_row(way, *times, f"{one['gbps']:.2f}", f"{one['best_gbps']:.2f}", f"{1e3 * one['cpu_s']:.1f}")
    console().print(table)
    table = Table("part of a bucket", "ms")
    for name, text in PARTS.items():
        table.add_row(text, f"{1e3 * found['network']['parts'][name]:.2f}")
    for kind in ("switch", "server"):
        for stage, seconds in found[f"{kind}_cpu_s"].items():
            if seconds >= 5e-6:
                table.add_row(f"{kind}, CPU: {stage}", f"{1e3 * seconds:.2f}")
    console().print(table)
    fallback = ", ".join(f"{count} {why}" for why, count in found["fallback"].items()) or "none"
    console().print(
        f"sent again {100 * found['resent']:.2f} %, timeouts {found['timeouts']}, buckets by gloo: {fallback}; largest "
        f"difference to gloo {found['largest_difference']:.2g}"
    )
