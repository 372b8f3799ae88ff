"""What a network is built from: one dataclass of options for each topology, declared once with help and range."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.options import option


@dataclass(frozen=True)
class SingleSwitch:
    """All nodes on one switch."""

    link_gbps: float = option("Rate of the link of a node, Gb/s each way", default=100.0, least=0.001, most=1e6)
    link_delay_us: float = option("Propagation delay of every link, microseconds", default=1.0, least=0, most=1e6)
    switch_delay_us: float = option("Delay of a packet in a switch, microseconds", default=1.0, least=0, most=1e6)
    aggregators: int = option("Aggregators of a switch; 0: it does not aggregate", default=0, least=0, most=2**31)
    reserved: int = option("Aggregators of these that no job may use", default=0, least=0, most=2**31)
    payload: int = option("Bytes in one packet and aggregator, a multiple of 4", default=248, least=4, most=65536)
    levels: int = option(
        "1: switches add up packets of workers; 2: also sums that other switches send",
        default=1,
        least=1,
        most=2,
    )
    process_gbps: float = option(
        "Payload that a switch can aggregate, Gb/s; 0: not a limit; rates do not count it yet",
        default=0.0,
        least=0,
        most=1e9,
    )


@dataclass(frozen=True)
class LeafSpine(SingleSwitch):
    """One leaf switch for each rack; every leaf is linked to every spine."""

    oversubscription: float = option(
        "Rate of the nodes of a rack over the rate of its links to the spines", default=1.0, least=0.01, most=1000
    )
    spines: int = option("Number of spine switches", default=2, least=1, most=1024)
    aggregating: str = option("Which switches have aggregators: leaf or all", default="leaf")


@dataclass(frozen=True)
class FatTree(SingleSwitch):
    """Three tiers of equal switches with k ports each, for k^3 / 4 nodes."""

    k: int = option("Ports of a switch, an even number; 0: the smallest that fits", default=0, least=0, most=128)
    aggregating: str = option("Which switches have aggregators: leaf or all", default="leaf")


@dataclass(frozen=True)
class RailOptimised(LeafSpine):
    """Network card i of every node of a rack is linked to rail switch i of the rack; spines join the racks."""

    rails: int = option("Network cards of a node; 0: as many as its GPUs", default=0, least=0, most=64)


Shape = SingleSwitch | LeafSpine | FatTree | RailOptimised

#: Name of a topology -> its options.
SHAPES: dict[str, type[SingleSwitch]] = {
    "single-switch": SingleSwitch,
    "leaf-spine": LeafSpine,
    "fat-tree": FatTree,
    "rail": RailOptimised,
}
