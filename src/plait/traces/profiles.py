"""The catalogue of measured stage profiles: what a model's iteration costs at each number of GPUs."""

from __future__ import annotations

import csv
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from plait.core.errors import InputError, suggest
from plait.traces.formats.muri import storage_share

BATCH = {
    "shufflenet_v2_x1_0": 128,
    "resnet18": 128,
    "vgg16": 16,
    "vgg19": 16,
    "bert": 4,
    "gpt2": 4,
    "a2c": 64,
    "dqn": 128,
}
"""Examples (a2c: environments) per GPU that the profiles were measured with."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Seconds per iteration of a model alone on `gpus` GPUs; stages overlap, so they need not add up to
    `iteration_s`.
    """

    model: str
    gpus: int
    iteration_s: float
    storage_s: float
    cpu_s: float
    gpu_s: float
    network_s: float


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Profiles by (model, GPUs), and a version that changes with any number in them."""

    profiles: dict[tuple[str, int], ModelProfile]
    version: str

    @property
    def models(self) -> tuple[str, ...]:
        """The models, in the order of the catalogue."""
        return tuple(dict.fromkeys(model for model, _ in self.profiles))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of GPUs some model was measured at, ascending."""
        return tuple(sorted({gpus for _, gpus in self.profiles}))

    def profile(self, model: str, gpus: int) -> ModelProfile:
        """The profile of a model at a size, or an error that lists the known ones. Never interpolates."""
        found = self.profiles.get((model, gpus))
        if found is None:
            if model not in self.models:
                raise InputError(f"no profile of model {model!r}; {suggest(model, self.models)}")
            sizes = ", ".join(str(g) for m, g in self.profiles if m == model)
            raise InputError(f"no profile of {model} on {gpus} GPUs; it was measured on {sizes}")
        return found


@cache
def catalogue(split: str = "by_model") -> Catalogue:
    """The shipped catalogue of eight models on 1 to 32 GPUs (Muri, SIGCOMM'22; see
    `data/profiles.README.md`).

    split: where data time goes, as in the Muri reader: `by_model` (default), `storage` or `cpu`.

    >>> catalogue().profile("vgg16", 8).network_s
    0.066
    """
    text = files("plait.traces").joinpath("data/profiles.csv").read_text(encoding="utf-8")
    profiles = {}
    for row in csv.DictReader(text.splitlines()):
        model, gpus = row["model"], int(row["gpus"])
        share = storage_share(model, split)
        data_s = float(row["data_ms"]) / 1000
        profiles[model, gpus] = ModelProfile(
            model,
            gpus,
            iteration_s=float(row["iteration_ms"]) / 1000,
            storage_s=data_s * share,
            cpu_s=data_s * (1 - share),
            gpu_s=float(row["gpu_ms"]) / 1000,
            network_s=float(row["network_ms"]) / 1000,
        )
    digest = hashlib.sha256(f"{split}\n{text}".encode()).hexdigest()
    return Catalogue(profiles, f"muri-8-{digest[:8]}")
