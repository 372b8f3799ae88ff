"""Bytes of gradients by the name of a model."""

import csv
from importlib import resources

import numpy as np
import pytest

from plait.network.gradients import BY_MODEL, LEAST_BYTES, MOST_BYTES, gradient_bytes, model_key


@pytest.mark.parametrize(
    ("model", "megabytes"),
    [
        ("AlexNet", 244.4),
        ("VGG16", 553.6),
        ("vgg-19", 574.8),
        ("ResNet-50", 102.4),
        ("resnet_101", 178.0),
        ("ResNet152", 240.8),
        ("BERT-base", 440.0),
        ("bert-large", 1360.0),
    ],
)
def test_known_models_have_four_bytes_for_each_parameter(model: str, megabytes: float) -> None:
    assert gradient_bytes(model, seed=7) == round(megabytes * 1e6) == gradient_bytes(model, seed=8)


def test_all_models_of_the_shipped_table_are_known_and_agree_where_it_lists_all_tensors() -> None:
    with (resources.files("plait.traces") / "data" / "tensors.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {model_key(row["model"]) for row in rows} <= set(BY_MODEL)
    for row in rows:
        if row["source"] == "parameters":
            assert BY_MODEL[model_key(row["model"])] == pytest.approx(float(row["total_mib"]) * 2**20, rel=0.01)


def test_unknown_models_get_bytes_by_name_and_seed_uniform_in_the_logarithm() -> None:
    draws = np.array([gradient_bytes(f"model-{i}", seed=3) for i in range(2000)])
    assert ((draws >= LEAST_BYTES) & (draws < MOST_BYTES) & (draws % 4 == 0)).all()
    share = np.log(draws / LEAST_BYTES) / np.log(MOST_BYTES / LEAST_BYTES)
    assert np.histogram(share, bins=4, range=(0, 1))[0] == pytest.approx([500] * 4, abs=80)
    assert draws.tolist() == [gradient_bytes(f"Model_{i}", seed=3) for i in range(2000)]
    assert gradient_bytes("model-1", seed=3) != gradient_bytes("model-1", seed=4)
    assert gradient_bytes(None, seed=5) == gradient_bytes("", seed=5) != gradient_bytes(None, seed=6)
