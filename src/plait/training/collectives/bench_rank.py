"""A rank of `plait network bench`: buckets through the switch and by gloo in turn, `python -m ...bench_rank JSON`.

JSON: {"rank", "size", "port", "grant", "bytes", "rounds"}. It prints one line of JSON with the seconds of each round.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

from plait.core.errors import InputError
from plait.runtime.network.grant import VARIABLE
from plait.training.collectives.ina_hook import ina

#: Rounds before the first one that counts.
WARM_UP = 2
#: Seconds of a report that say where the time went.
PARTS = ("agreement_s", "quantise_s", "transfer_s", "decode_s", "success_s", "gloo_s")


def main(given: dict[str, Any]) -> dict[str, Any]:
    """Measure; returns what is printed. Raises `InputError` if buckets did not go through the switch."""
    torch.set_num_threads(1)
    rank, size = given["rank"], given["size"]
    store = f"tcp://127.0.0.1:{given['port']}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    state = ina(environ={**os.environ, VARIABLE: given["grant"]})
    gradients = torch.randn(given["bytes"] // 4, generator=torch.Generator().manual_seed(rank))
    mine = torch.empty_like(gradients)
    rounds: list[dict[str, float]] = []
    difference = 0.0
    for at in range(WARM_UP + given["rounds"]):
        before = state.report()
        mine.copy_(gradients)
        network_s, network_cpu_s = _timed(lambda: state.reduce(mine).wait())
        parts = {name: getattr(state.report(), name) - getattr(before, name) for name in PARTS}
        if at == 0:
            reference = gradients.clone()
            dist.all_reduce(reference)
            difference = float((mine - reference / size).abs().max())
        mine.copy_(gradients)
        gloo_s, gloo_cpu_s = _timed(lambda: dist.all_reduce(mine))
        if at >= WARM_UP:
            found = {"network_s": network_s, "network_cpu_s": network_cpu_s, "gloo_s": gloo_s, "gloo_cpu_s": gloo_cpu_s}
            rounds.append(found | {f"part_{name}": value for name, value in parts.items()})
    report = state.report()
    if not report.aggregated:
        raise InputError(f"no bucket went through the switch: {dict(report.fallback)}")
    counts = {name: getattr(report, name) for name in ("aggregated", "sent", "resent", "results", "timeouts")}
    result = {"rounds": rounds, "difference": difference, "counts": counts, "fallback": dict(report.fallback)}
    state.close()
    dist.destroy_process_group()
    return result


def _timed(work: Any) -> tuple[float, float]:
    """Seconds, and seconds of processor of the whole process, of some work that all ranks begin together."""
    dist.barrier()
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begin_s, time.process_time() - begin_cpu_s


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
