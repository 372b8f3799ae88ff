"""The six measured models and how their batch may vary (Qiao et al., OSDI'21, table 1 and the released simulator)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.errors import InputError, suggest


@dataclass(frozen=True, slots=True)
class Application:
    """A model: `initial` and `most` examples of a whole batch, least and most of one GPU's pass, length in epochs.

    `fixed_batch` is the batch that Pollux always uses (0: it chooses); `most_gpus` is what it may have at most.
    """

    name: str
    initial: int
    most: int
    least_local: int
    most_local: int
    epochs: int
    fixed_batch: int = 0
    most_gpus: int = 64

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes with a measured training run: the initial one, doubled up to the largest."""
        found = [self.initial]
        while found[-1] < self.most:
            found.append(2 * found[-1])
        return tuple(found)


APPLICATIONS: Mapping[str, Application] = {
    a.name: a
    for a in (
        Application("bert", 12, 384, 4, 12, 2),
        Application("cifar10", 128, 4096, 32, 1024, 100),
        Application("deepspeech2", 20, 640, 10, 80, 80),
        Application("imagenet", 200, 12800, 20, 200, 90),
        Application("ncf", 256, 32768, 32, 32768, 10, fixed_batch=32768, most_gpus=1),
        Application("yolov3", 8, 512, 4, 8, 50),
    )
}


def application(name: str) -> Application:
    """The model of this name; raises `InputError` for one without measurements."""
    if name not in APPLICATIONS:
        raise InputError(f"unknown application {name!r}; {suggest(name, APPLICATIONS)}")
    return APPLICATIONS[name]
