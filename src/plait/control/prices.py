"""Prices of a GPU-hour, by GPU kind, as given on the command line."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from plait.core.arrays import FloatArray
from plait.core.cluster import Cluster
from plait.core.errors import InputError, suggest

#: Stands for every kind without a price of its own.
ANY = "*"


@dataclass(frozen=True)
class Prices:
    """Money per GPU-hour by GPU kind; `ANY` is every other kind. `currency` is only a label, printed unchanged.

    >>> prices = Prices.parse(["a100=2.5", "0.8"], "EUR")
    >>> prices.of("a100"), prices.of("v100"), str(prices)
    (2.5, 0.8, 'a100=2.5, *=0.8 EUR')
    """

    per_gpu_h: Mapping[str, float]
    currency: str = ""

    @classmethod
    def parse(cls, texts: Iterable[str], currency: str = "") -> Prices:
        """Each `KIND=PRICE`, or one number for every kind; raises `InputError` for anything else."""
        found: dict[str, float] = {}
        for text in texts:
            kind, equals, price = text.strip().rpartition("=")
            try:
                value = float(price)
            except ValueError:
                value = math.nan
            if not (math.isfinite(value) and value >= 0) or (equals and not kind):
                raise InputError(f"price {text!r}: write money per GPU-hour, e.g. 2.5 or a100=2.5")
            if (kind or ANY) in found:
                raise InputError(f"price {text!r}: {kind or 'every kind'} has a price already; give each kind once")
            found[kind or ANY] = value
        return cls(found, currency.strip())

    @classmethod
    def given(cls, texts: Iterable[str] | None, currency: str) -> Prices | None:
        """The prices of `--price` and `--currency`, None without any; raises `InputError` for anything else."""
        if texts:
            return cls.parse([part for text in texts for part in text.split(",")], currency)
        if currency:
            raise InputError("--currency is the label of prices; give --price, e.g. --price 2.5")
        return None

    def of(self, kind: str) -> float:
        """The price of a GPU of this kind for an hour; raises `InputError` if none was given."""
        price = self.per_gpu_h.get(kind, self.per_gpu_h.get(ANY))
        if price is None:
            raise InputError(f"no price for GPU kind {kind!r}; give {kind}=PRICE, or a price for every kind")
        return price

    def unused(self, kinds: Iterable[str]) -> list[str]:
        """Kinds that have a price of their own, and are not among `kinds`.

        >>> Prices.parse(["a100=2.5", "0.8"]).unused(["v100"])
        ['a100']
        """
        known = {ANY, *kinds}
        return [kind for kind in self.per_gpu_h if kind not in known]

    def missing(self, kinds: Iterable[str]) -> list[str]:
        """The ones of `kinds` that have no price.

        >>> Prices.parse(["a100=2.5"]).missing(["v100", "a100"])
        ['v100']
        """
        return [] if ANY in self.per_gpu_h else [kind for kind in dict.fromkeys(kinds) if kind not in self.per_gpu_h]

    def refuse_unknown(self, kinds: Iterable[str]) -> None:
        """Raise `InputError` for a price of a kind that is not among `kinds`, or for one of these without a price."""
        known = tuple(kinds)
        for kind in self.unused(known):
            raise InputError(f"price {kind}={self.per_gpu_h[kind]:g}: no GPU is a {kind!r}; {suggest(kind, known)}")
        for kind in known:
            self.of(kind)

    def of_gpus(self, cluster: Cluster) -> FloatArray:
        """Money per hour of each GPU of `cluster`, shape (GPUs,)."""
        by_kind = np.array([self.of(kind) for kind in cluster.kinds], dtype=np.float64)
        result: FloatArray = by_kind[cluster.node_kind[cluster.gpu_node]]
        return result

    def __str__(self) -> str:
        text = ", ".join(f"{kind}={price:g}" for kind, price in self.per_gpu_h.items())
        return f"{text} {self.currency}".strip()
