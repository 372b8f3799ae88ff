"""Models of throughput by name, for policies that size jobs: Pollux's own, its third pair for racks, and others'.

A model is a function (theta, nodes, gpus, local, passes) -> examples/s (`plait.goodput.execution_plans.Speed`). A
package adds one as an entry point of the group `plait.throughput`.

The paper names a third pair (alpha, beta) as an extension: synchronising between racks (section 3.2). `fit_racks` fits
it to measurements over several racks, with all other parameters as they are; theta then has nine numbers, the pair at
its end. Policies know racks by the number of nodes alone, and the pair as a multiple of the one between nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points

import numpy as np
import numpy.typing as npt

from plait.core.arrays import FloatArray
from plait.core.errors import InputError, suggest
from plait.core.goodput import LEAST_S, THETA, Estimate
from plait.goodput.execution_plans import Speed
from plait.goodput.fit import NETWORK, minimised
from plait.goodput.throughput import Measurements, observations, throughput

GROUP = "plait.throughput"
PAIR = slice(int(Estimate.ALPHA_N), int(Estimate.BETA_N) + 1)


def throughput_model(text: str) -> Speed:
    """The model of a name: `pollux`, `racks/nodes=8/slower=1.5`, or one of an installed package.

    Raises `InputError` for an unknown name, or for options that a model does not take.
    """
    name, *options = text.split("/")
    if name == "pollux" and not options:
        return throughput
    if name == "racks":
        return _racks(text, dict(part.partition("=")[::2] for part in options))
    known = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in known or options:
        raise InputError(f"throughput is {text!r}; it takes a model: {suggest(name, ['pollux', 'racks', *known])}")
    found: Speed = known[name].load()
    return found


def _racks(text: str, options: Mapping[str, str]) -> Racks:
    try:
        given = {name: float(value) for name, value in options.items()}
        nodes, slower = given.pop("nodes"), given.pop("slower")
    except (KeyError, ValueError):
        nodes, slower, given = 0.0, 0.0, {}
    if given or not (nodes >= 1 and nodes == int(nodes)) or not slower >= 1:
        raise InputError(
            f"throughput is {text!r}; give the nodes of a rack and how much longer synchronising between racks takes, "
            "e.g. racks/nodes=8/slower=1.5"
        )
    return Racks(int(nodes), slower)


@dataclass(frozen=True)
class Racks:
    """Throughput where more than `nodes` nodes synchronise between racks, `slower` times as long as within one.

    A theta of nine numbers brings its own third pair, and `slower` does not count.
    """

    nodes: int
    slower: float = 1.0

    def __call__(
        self, theta: FloatArray, nodes: npt.ArrayLike, gpus: npt.ArrayLike, local: npt.ArrayLike, passes: npt.ArrayLike
    ) -> FloatArray:
        """Examples per second, all arguments broadcast against each other."""
        across = np.array(theta[..., :THETA])
        across[..., PAIR] = theta[..., THETA:] if theta.shape[-1] > THETA else across[..., PAIR] * self.slower
        within, beyond = (throughput(one, nodes, gpus, local, passes) for one in (theta[..., :THETA], across))
        rate: FloatArray = np.where(np.asarray(nodes) > self.nodes, beyond, within)
        return rate


def fit_racks(theta: FloatArray, across: Measurements) -> FloatArray:
    """Theta (9,) with the third pair fitted to measurements `across` racks; the seven of `theta` stay.

    Without measurements, and at least, racks are as far from each other as `NETWORK` times nodes. Raises
    `MissingExtra` without SciPy.
    """
    least = theta[PAIR] * NETWORK
    if not len(across):
        return np.append(theta, least)
    lower, upper = theta.copy(), theta.copy()
    lower[PAIR], upper[PAIR] = LEAST_S, np.inf
    if not np.any(across.gpus > 2):
        upper[Estimate.BETA_N] = LEAST_S
    start = theta.copy()
    start[PAIR] = least
    _, found = minimised(observations(across), start, lower, upper)
    return np.append(theta, np.maximum(found[PAIR], least))
