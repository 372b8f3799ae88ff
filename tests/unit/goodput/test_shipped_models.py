"""The models that ship with plait, against the measurements (where they are) and the published values."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.goodput.fit import Measurements, fit, loss
from plait.goodput.shipped import ShippedNoise, shipped

#: Objective of the reference fit of each model, and the noise scale of its first, middle and last epoch.
PUBLISHED = {
    "bert": (0.12953, 423, None, 1124),
    "cifar10": (0.18366, 72, 4944, 38660),
    "deepspeech2": (0.22123, 10, 33200, 210600),
    "imagenet": (0.13636, 928, 11400, 14430),
    "ncf": (0.19590, 1.9e4, 2.1e7, 5.9e7),
    "yolov3": (0.32497, 0.65, 590, 5099),
}


def measured(model: str) -> Measurements:
    """All step times of a model; skips the test where they are not."""
    root = Path(os.environ.get("PLAIT_DATA", Path(__file__).parents[3] / ".." / "shared" / "data")) / "pollux" / model
    if not root.exists():
        pytest.skip("needs the measurements of Pollux's authors; set PLAIT_DATA to the folder that has pollux/")
    rows = []
    for name in ("placements", "scalability"):
        with (root / f"{name}.csv").open() as file:
            for row in csv.DictReader(file):
                nodes = [int(digit) for digit in row.get("placement", "")] or [0]
                at = (len(nodes), sum(nodes)) if sum(nodes) else (int(row["num_nodes"]), int(row["num_replicas"]))
                step_s, sync_s = float(row["step_time"]), float(row["sync_time"])
                rows.append((*at, float(row["local_bsz"]), step_s - sync_s, step_s))
    return Measurements(*np.array(rows).T)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_parameters_are_at_least_as_good_as_the_reference_fit(name: str):
    profile = measured(name)
    theta = np.array(shipped()[name].theta)
    ours = loss(theta, profile)
    assert ours <= PUBLISHED[name][0] + 5e-6
    assert loss(fit(profile, theta), profile) >= ours * (1 - 1e-4)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_noise_curves_pass_through_the_published_values(name: str):
    model = shipped()[name]
    curve = model.noise.by_epoch(model.epochs)
    _, first, middle, last = PUBLISHED[name]
    assert len(curve) == len(model.epoch_ends) == model.epochs
    assert curve[[0, -1]] == pytest.approx([first, last], rel=0.01)
    assert middle is None or curve[model.epochs // 2] == pytest.approx(middle, rel=0.01)
    assert (np.diff(curve) > 0).all()


def test_a_curve_of_one_epoch_stays_where_it_begins():
    assert ShippedNoise(3.0, 7.0, 0.5).by_epoch(1).tolist() == [3.0]


def test_iterations_by_hand():
    bert = shipped()["bert"]
    alpha, beta = bert.theta[:2]
    assert bert.iteration_s(1, 1) == pytest.approx(alpha + 12 * beta, rel=1e-6)  # accumulating brings nothing
    assert bert.iteration_s(1, 4) < bert.iteration_s(1, 2) < bert.iteration_s(1, 1)
    assert bert.epoch_ends.tolist() == [bert.iterations / 2, bert.iterations]


def test_more_gpus_than_there_is_work_for_are_refused():
    yolo = shipped()["yolov3"]
    assert yolo.most_gpus == 512 // 4
    with pytest.raises(InputError, match="at most 128"):
        yolo.iteration_s(33, 129)
