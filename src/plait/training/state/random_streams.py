"""Save and restore the random streams of a process: Python's, NumPy's, torch's on the CPU and on every GPU in use.

A resumed job continues each stream from the checkpoint; that is half of an exact resume (the other half is the order of
the data, see `loader`). NumPy and torch are included only if the job has imported them.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from typing import Any


def capture(generators: Sequence[Any] = ()) -> dict[str, Any]:
    """The state of all streams, and of the torch generators `generators`; about 10 kB and 30 microseconds."""
    state: dict[str, Any] = {"python": random.getstate()}
    if numpy := sys.modules.get("numpy"):
        found = numpy.random.get_state(legacy=False)
        # Plain numbers: some libraries load their checkpoints without NumPy's types.
        state["numpy"] = found | {"state": found["state"] | {"key": found["state"]["key"].tolist()}}
    if torch := _torch():
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    state["own"] = [generator.get_state() for generator in generators]
    return state


def restore(state: dict[str, Any], generators: Sequence[Any] = ()) -> None:
    """Restore the result of `capture`; `generators` in the same order as there.

    Streams of GPUs that no longer exist are dropped.
    """
    random.setstate(state["python"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")):
        inner = state["numpy"]["state"]
        key = numpy.asarray(inner["key"], dtype=numpy.uint32)
        numpy.random.set_state(state["numpy"] | {"state": inner | {"key": key}})
    if "torch" in state and (torch := _torch()):
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            for device, stream in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(stream, device)
    for generator, stream in zip(generators, state["own"], strict=False):
        generator.set_state(stream)


def reseed(seed: int) -> None:
    """Seed all streams of this process; a loader worker does so before each batch.

    So the random numbers of a batch depend on the batch only, and a resumed run draws the same without replaying work.
    """
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
    if torch := _torch():
        torch.default_generator.manual_seed(seed)  # only the CPU's: torch.manual_seed also seeds every GPU


def _torch() -> Any:
    """The torch module if the job has imported it completely, else None."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "default_generator") else None
