"""Tensor sizes that ship with plait, computed from the public definitions of the models; what skew makes of them."""

import csv
import os
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.jobs import JobBatch
from plait.goodput.shipped import shipped
from plait.placement.packing import unknown_models
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.world import make_world
from plait.traces.assign import catalogue
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs, model_skew

MIB = 2.0**20
Tensors = list[int]


def conv(k: int, into: int, out: int, groups: int = 1) -> Tensors:
    """A convolution without bias, then batch normalisation."""
    return [k * k * into // groups * out, out, out]


def linear(into: int, out: int) -> Tensors:
    return [into * out, out]


def resnet18(classes: int = 1000, stem: int = 7) -> Tensors:
    """He et al. 2016; torchvision's `resnet18`, and for 10 classes with a stem of 3 the one for CIFAR."""
    found, into = conv(stem, 3, 64), 64
    for out in (64, 128, 256, 512):
        found += conv(3, into, out) + conv(3, out, out) + (conv(1, into, out) if into != out else [])
        found += conv(3, out, out) + conv(3, out, out)
        into = out
    return found + linear(512, classes)


def resnet50() -> Tensors:
    """He et al. 2016; torchvision's `resnet50`."""
    found, into = conv(7, 3, 64), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            found += conv(1, into, width) + conv(3, width, width) + conv(1, width, 4 * width)
            found += conv(1, into, 4 * width) if block == 0 else []
            into = 4 * width
    return found + linear(2048, 1000)


def shufflenet() -> Tensors:
    """Ma et al. 2018; torchvision's `shufflenet_v2_x1_0`."""
    found, into = conv(3, 3, 24), 24
    for out, blocks in ((116, 4), (232, 8), (464, 4)):
        half = out // 2
        found += conv(3, into, into, into) + conv(1, into, half)
        found += conv(1, into, half) + conv(3, half, half, half) + conv(1, half, half)
        for _ in range(blocks - 1):
            found += conv(1, half, half) + conv(3, half, half, half) + conv(1, half, half)
        into = out
    return found + conv(1, 464, 1024) + linear(1024, 1000)


def vgg(*widths: int) -> Tensors:
    """Simonyan and Zisserman 2015; torchvision's `vgg16` and `vgg19`."""
    found, into = [], 3
    for out in widths:
        found += linear(9 * into, out)
        into = out
    return found + linear(512 * 49, 4096) + linear(4096, 4096) + linear(4096, 1000)


def bert() -> Tensors:
    """Devlin et al. 2019; transformers' `BertForMaskedLM(BertConfig())`, which is BERT-base, uncased."""
    found = [30522 * 768, 512 * 768, 2 * 768, 768, 768]
    for _ in range(12):
        found += linear(768, 768) * 4 + [768, 768] + linear(768, 3072) + linear(3072, 768) + [768, 768]
    return found + linear(768, 768) + [768, 768] + [30522]


def gpt2() -> Tensors:
    """Radford et al. 2019; transformers' `GPT2LMHeadModel(GPT2Config())`, the small one."""
    found = [50257 * 768, 1024 * 768]
    for _ in range(12):
        found += [768, 768, *linear(768, 2304), *linear(768, 768), 768, 768, *linear(768, 3072), *linear(3072, 768)]
    return [*found, 768, 768]


def nature(*heads: int) -> Tensors:
    """Mnih et al. 2015, on Atari Breakout with its four actions."""
    body = linear(4 * 64, 32) + linear(32 * 16, 64) + linear(64 * 9, 64) + linear(64 * 49, 512)
    return body + [n for out in heads for n in linear(512, out)]


def ncf() -> Tensors:
    """He et al. 2017, NeuMF on MovieLens-1M (6,040 users, 3,706 items): 32 factors, three layers."""
    users, items = 6040, 3706
    found = [users * 32, items * 32, users * 128, items * 128]
    return found + linear(256, 128) + linear(128, 64) + linear(64, 32) + linear(64, 1)


def yolov3(classes: int = 20) -> Tensors:
    """Redmon and Farhadi 2018: Darknet-53 and three heads, on the 20 classes of VOC."""
    found, into = conv(3, 3, 32), 32
    for blocks in (1, 2, 8, 8, 4):
        found += conv(3, into, 2 * into)
        into *= 2
        found += (conv(1, into, into // 2) + conv(3, into // 2, into)) * blocks
    for width, start in ((512, 1024), (256, 768), (128, 384)):
        found += conv(1, start, width) + conv(3, width, 2 * width)
        found += (conv(1, 2 * width, width) + conv(3, width, 2 * width)) * 2
        found += linear(2 * width, 3 * (classes + 5))
        found += conv(1, width, width // 2) if width > 128 else []
    return found


def deepspeech2() -> Tensors:
    """Amodei et al. 2016, as `deepspeech.pytorch` sets it up: five bidirectional GRUs of 800, 29 characters."""
    found = [*linear(41 * 11, 32), 32, 32, *linear(32 * 21 * 11, 32), 32, 32]
    for layer in range(5):
        into = 1312 if layer == 0 else 800
        found += [800, 800] if layer else []
        found += [into * 2400, 800 * 2400, 2400, 2400] * 2
    return [*found, 800, 800, 29 * 800]


FROM_PARAMETERS: dict[str, tuple[Callable[[], Tensors], int]] = {
    "resnet18": (resnet18, 11_689_512),
    "shufflenet_v2_x1_0": (shufflenet, 2_278_604),
    "bert": (bert, 109_514_298),
    "gpt2": (gpt2, 124_439_808),
    "a2c": (lambda: nature(4, 1), 1_686_693),
    "dqn": (lambda: nature(4), 1_686_180),
    "cifar10": (lambda: resnet18(10, 3), 11_173_962),
    "imagenet": (resnet50, 25_557_032),
    "ncf": (ncf, 1_602_657),
    "yolov3": (yolov3, 61_626_049),
    "deepspeech2": (deepspeech2, 41_187_968),
}


def table() -> dict[str, dict[str, str]]:
    with (resources.files("plait.traces") / "data" / "tensors.csv").open(encoding="utf-8") as file:
        return {row["model"]: row for row in csv.DictReader(file)}


@pytest.mark.parametrize("model", FROM_PARAMETERS)
def test_sizes_follow_from_the_definition_of_the_model(model: str) -> None:
    make, known = FROM_PARAMETERS[model]
    tensors, row = make(), table()[model]
    assert sum(tensors) == known
    assert row["source"] == "parameters"
    assert float(row["max_share"]) == pytest.approx(max(tensors) / sum(tensors), abs=5e-5)
    assert float(row["total_mib"]) == pytest.approx(4 * sum(tensors) / MIB, abs=0.05)
    assert float(row["largest_mib"]) == pytest.approx(4 * max(tensors) / MIB, abs=0.05)


def test_published_lists_agree_with_the_definitions() -> None:
    """They leave out tensors below 1 MB, so their shares are a little larger."""
    assert sum(yolov3(80)) == 61_949_149
    for name, widths in {
        "vgg16": (64, 64, 128, 128, 256, 256, 256, *[512] * 6),
        "vgg19": (64, 64, 128, 128, *[256] * 4, *[512] * 8),
    }.items():
        tensors = vgg(*widths)
        assert model_skew()[name] == pytest.approx(max(tensors) / sum(tensors), rel=0.01)


def test_every_model_that_ships_has_a_skew() -> None:
    known = model_skew()
    assert set(catalogue().models) <= set(known)
    assert set(shipped()) <= set(known)
    assert len(FROM_PARAMETERS) + 9 == len(known)


def mixed(n: int = 120) -> JobBatch:
    """Jobs of Muri's models on more than one node each, now and then."""
    rng, names = np.random.default_rng(5), sorted(catalogue().models)
    chosen = [names[i] for i in rng.integers(0, len(names), n)]
    return JobBatch(
        {
            "id": [f"j{i}" for i in range(n)],
            "submit_s": np.sort(rng.uniform(0, 20 * n, n)),
            "gpus": rng.choice([1, 2, 3, 4, 6], n),
            "iterations": np.ceil(rng.exponential(80, n)),
            "iteration_s": np.ones(n),
            "model": chosen,
            "skew": np.array([model_skew()[name] for name in chosen]),
        }
    )


def ends(jobs: JobBatch, policy: str, cluster: str = "3x4") -> list[float]:
    job_store = simulate(jobs, Cluster.parse(cluster), make_policy(policy), make_world("ideal")).controller.job_store
    return job_store.columns["end_s"][: job_store.count].tolist()  # type: ignore[no-any-return]


def test_skew_is_between_together_and_anywhere() -> None:
    jobs = mixed()
    together = ends(jobs, "tiresias-l:placement=consolidated")
    assert ends(jobs, "tiresias-l") != together
    assert ends(jobs, "tiresias-l:packlimit=0") == together
    assert ends(jobs, "tiresias-l:packlimit=1") == ends(jobs, "tiresias-l:placement=spread")
    assert ends(jobs, "tiresias-l:packlimit=0.4") != ends(jobs, "tiresias-l:packlimit=0.46")  # shufflenet's fc


def test_skew_differs_from_consolidated_on_a_trace_of_muri() -> None:
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
    path = root / "muri" / "trace3.csv"
    if not path.exists():
        pytest.skip("needs the published trace muri/trace3.csv; set PLAIT_DATA to the folder that has it")
    jobs = load_jobs(read_trace(path)).jobs[np.arange(300)]
    assert not np.isnan(jobs.column("skew")).any()
    for policy in ("fifo", "tiresias-l"):
        found = [ends(jobs, f"{policy}:placement={place}", "8x8") for place in ("skew", "consolidated")]
        assert found[0] != found[1]


def test_unknown_models_are_named_once() -> None:
    names = ["vgg16", "mine", "mine", "", "other", "alone"]
    skew = np.array([0.7, np.nan, np.nan, np.nan, np.nan, np.nan])
    said = unknown_models(names, skew, np.array([2, 2, 4, 8, 2, 1]))
    head = "tensor sizes of mine, other and of 1 job without a model are unknown"
    assert said == f"{head}: placement=skew keeps these jobs together"
    assert unknown_models(names[:1], skew[:1], np.array([2])) == ""
    assert unknown_models(["mine"], skew[1:2], np.array([2])).startswith("tensor sizes of mine are unknown")
