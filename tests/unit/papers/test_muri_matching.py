"""The artifact's matching: as heavy as two libraries say, the same every time, the same without the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import networkx
import numpy as np
import pytest
import rustworkx

from plait_papers.muri.artifact.matching import tied_matching


def symmetric(weights: np.ndarray) -> np.ndarray:
    upper = np.triu(weights, 1)
    return np.ascontiguousarray(upper + upper.T, dtype=np.float64)


def random_weights(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "uniform":
        return symmetric(rng.random((n, n)))
    if kind == "ties":
        return symmetric(rng.integers(0, 4, (n, n)))
    if kind == "classes":
        members = rng.integers(0, 8, n)
        return symmetric((0.1 + rng.random((8, 8)))[np.ix_(members, members)])
    return symmetric(rng.integers(1, 60, (n, n)) * (rng.random((n, n)) < 0.2))  # sparse, so often disconnected


KINDS = ("uniform", "ties", "classes", "sparse")


def weight_of(weights: np.ndarray, mates: np.ndarray) -> float:
    return sum(float(weights[u, v]) for u, v in enumerate(mates) if v > u)


def heaviest(weights: np.ndarray) -> tuple[float, float]:
    """Total weight by networkx and, in millionths, by rustworkx."""
    pairs = [(u, v) for u, v in zip(*np.nonzero(np.triu(weights)), strict=True)]
    graph = networkx.Graph()
    graph.add_weighted_edges_from((u, v, float(weights[u, v])) for u, v in pairs)
    other = rustworkx.PyGraph()
    other.add_nodes_from(range(len(weights)))
    other.add_edges_from([(int(u), int(v), round(1e6 * float(weights[u, v]))) for u, v in pairs])
    return (
        sum(float(weights[u, v]) for u, v in networkx.max_weight_matching(graph)),
        sum(float(weights[u, v]) for u, v in rustworkx.max_weight_matching(other, weight_fn=int)),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_total_weight_equals_two_libraries(kind: str) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    for n in [*range(1, 12), 17, 24, 31, 40]:
        for _ in range(6):
            weights = random_weights(kind, n, rng)
            ours = weight_of(weights, tied_matching(weights))
            assert heaviest(weights) == pytest.approx((ours, ours), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_mates_are_mutual_and_joined_by_an_edge(kind: str) -> None:
    rng = np.random.default_rng(7)
    for n in (0, 1, 2, 3, 9, 40, 90):
        weights = random_weights(kind, n, rng)
        mates = tied_matching(weights)
        assert len(mates) == n
        for u, v in enumerate(mates):
            assert v == -1 or (mates[v] == u and weights[u, v] > 0)


def test_equal_weights_take_the_pairs_in_order() -> None:
    assert tied_matching(symmetric(np.ones((4, 4)))).tolist() == [1, 0, 3, 2]
    assert tied_matching(symmetric(np.ones((3, 3)))).tolist() == [1, 0, -1]


def test_zero_and_negative_weights_and_the_diagonal_are_no_edges() -> None:
    weights = np.full((4, 4), -1.0)
    weights[0, 1] = weights[1, 0] = 0.0
    np.fill_diagonal(weights, 9.0)
    assert tied_matching(weights).tolist() == [-1] * 4


def test_last_bits_may_differ_by_direction() -> None:
    rng = np.random.default_rng(3)
    weights = random_weights("classes", 40, rng)
    shaken = np.where(rng.random(weights.shape) < 0.5, np.nextafter(weights, 2.0), weights)
    mates = tied_matching(shaken)
    assert all(v == -1 or mates[v] == u for u, v in enumerate(mates))
    assert weight_of(weights, mates) == pytest.approx(weight_of(weights, tied_matching(weights)))


def test_repeatable() -> None:
    weights = random_weights("classes", 60, np.random.default_rng(4))
    first = tied_matching(weights)
    assert all((tied_matching(weights.copy()) == first).all() for _ in range(5))


PLAIN = """
import json, sys, numpy as np
from plait_papers.muri.artifact.matching import tied_matching
assert not hasattr(tied_matching, "py_func")
print(json.dumps([tied_matching(np.array(w)).tolist() for w in json.load(sys.stdin)]))
"""


def test_plain_python_gives_the_same_mates() -> None:
    rng = np.random.default_rng(5)
    graphs = [random_weights(kind, int(rng.integers(2, 26)), rng) for kind in KINDS for _ in range(12)]
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN],
        input=json.dumps([graph.tolist() for graph in graphs]),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(plain.stdout) == [tied_matching(graph).tolist() for graph in graphs]
