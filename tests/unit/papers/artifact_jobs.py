"""Small traces for the artifact's world, and the stage profiles of its traces (spec C.1)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from plait_papers.muri.artifact.trace import ArtifactTrace

SIZES = (1, 2, 4, 8, 16, 32)
PROFILES_MS = {  # iteration/d/g/n at each size
    "shufflenet_v2_x1_0": "798/706/59/0 850/747/58/18 886/703/62/17 957/769/57/10 1006/776/57/21 1019/799/56/24",
    "resnet18": "779/711/110/0 881/687/110/95 921/723/113/73 1010/784/117/77 1055/736/108/93 1059/712/111/93",
    "vgg16": "107/117/68/0 191/114/72/40 201/82/72/67 214/82/75/66 332/83/68/110 336/87/67/131",
    "vgg19": "109/114/80/0 205/115/83/41 212/84/85/73 226/82/88/60 302/102/78/123 356/89/79/141",
    "bert": "178/0.5/160/0 195/0.5/163/18 190/0.5/163/18 192/0.5/167/59 244/0.5/166/86 260/0.5/166/133",
    "gpt2": "426/0.6/410/0 464/0.7/416/40 433/0.6/413/20 437/0.6/419/49 491/0.6/415/137 514/0.7/414/216",
    "a2c": "517/514/14/0 525/504/14/0.5 533/502/10/0.3 555/502/14/0.4 567/514/14/1.2 585/507/14/2.0",
    "dqn": "490/446/8/0 495/441/8/0.6 505/440/8/0.4 509/435/8/0.5 525/438/8/1.2 546/437/8/1.6",
}


def profile_ms(model: str, gpus: int) -> tuple[float, ...]:
    """(iteration, d, g, n) of a model on so many GPUs."""
    return tuple(float(x) for x in PROFILES_MS[model].split()[SIZES.index(gpus)].split("/"))


def job(
    gpus: int = 8, iterations: float = 100, submit_s: float = 0, model: str = "bert", **other: Any
) -> dict[str, Any]:
    """One job, an iteration a second unless told otherwise; bert starts in 10 s at every size."""
    return {"gpus": gpus, "iterations": iterations, "submit_s": submit_s, "model": model, "iteration_s": 1.0} | other


def trace_of(*jobs: dict[str, Any]) -> ArtifactTrace:
    """A trace of jobs in submission order; stages are all GPU, durations as the iterations say."""

    def column(name: str, default: Any = None) -> np.ndarray:
        return np.array([float(j.get(name, j["iteration_s"] if default is None else default)) for j in jobs])

    return ArtifactTrace(
        row=np.arange(len(jobs)),
        model=tuple(j["model"] for j in jobs),
        gpus=np.array([j["gpus"] for j in jobs]),
        submit_s=column("submit_s"),
        duration_s=np.array([j.get("duration_s", j["iterations"] * j["iteration_s"]) for j in jobs], dtype=float),
        iterations=column("iterations"),
        iteration_s=column("iteration_s"),
        data_s=column("data_s", 0),
        gpu_s=column("gpu_s"),
        network_s=column("network_s", 0),
        priority=np.array([j.get("priority", 0) for j in jobs]),
    )


def of_profiles(names: Sequence[str], gpus: int) -> ArtifactTrace:
    """Jobs of these models at this size, all submitted at 0."""
    rows = [(name, profile_ms(name, gpus)) for name in names]
    return trace_of(
        *(
            job(gpus, model=m, iteration_s=it * 1.015 / 1000, data_s=d / 1000, gpu_s=g / 1000, network_s=n / 1000)
            for m, (it, d, g, n) in rows
        )
    )
