"""Workloads of Pollux's world on measurements made from formulas."""

import pytest

from plait_papers.pollux.workload import load
from pollux_files import write_measurements, write_workload


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_measurements(tmp_path_factory.mktemp("measured"))


@pytest.fixture
def workload(data, tmp_path):
    def make(*rows):
        return load(write_workload(tmp_path / "w.csv", *rows), data)

    return make
