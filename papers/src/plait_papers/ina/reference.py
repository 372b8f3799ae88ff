"""Figures to compare with: results of an independent packet simulator, and headlines of papers.

Reference set-up: one switch; each worker and server on a link of 100 Gb/s; 8 workers a job; 248 of 306 bytes payload; 1
us of propagation a hop, of a switch and of a server; jitter of 0 to 0.2 us; window of 245 packets; gap threshold 3;
timeout 200 us; 2 MiB for each worker; all start together; priorities of ESA static and distinct. One seed unless
stated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: Aggregators of the columns of the tables.
AGGREGATORS = (256, 512, 1024, 2048, 4096, 8192, 16384, 65536)

#: Goodput of a job, Gb/s, mean of 8 jobs.
GOODPUT: Mapping[str, tuple[float, ...]] = {
    "switchml": (9.8, 19.6, 39.0, 77.1, 79.8, 79.8, 79.8, 79.8),
    "atp": (10.3, 11.6, 14.4, 18.1, 25.3, 35.0, 44.1, 60.5),
    "esa": (13.5, 17.1, 21.7, 30.0, 40.3, 48.6, 57.7, 63.0),
}
#: Packets that found no aggregator, of all of workers, %.
FALLBACK: Mapping[str, tuple[float, ...]] = {
    "atp": (83, 71, 54, 36, 23, 13, 7.1, 2.0),
    "esa": (67, 50, 34, 21, 12, 7.1, 4.1, 1.1),
}
#: Sums that the switch completes, share, ATP.
AGGREGATED = (0.17, 0.28, 0.45, 0.64, 0.77, 0.87, 0.93, 0.98)
#: (protocol, aggregators) -> goodput, Gb/s: mean and standard deviation over seeds 1 to 5.
SPREAD: Mapping[tuple[str, int], tuple[float, float]] = {
    ("atp", 1024): (14.1, 0.2),
    ("atp", 4096): (25.1, 0.6),
    ("atp", 65536): (61.3, 0.6),
    ("esa", 1024): (21.6, 0.4),
    ("esa", 4096): (39.1, 0.7),
    ("esa", 65536): (63.3, 0.3),
}
#: Window -> goodput over the server without collisions, Gb/s, 4 MiB.
WINDOWS: Mapping[int, float] = {32: 8.71, 64: 17.4, 128: 34.6, 245: 65.8, 300: 79.7}
#: One job, one aggregator: goodput, Gb/s.
SERVER_ONLY = 9.43
#: 8 jobs, 2048 aggregators, 4 MiB: time of all exchanges, ms.
MAKESPANS: Mapping[str, float] = {"atp": 2.04, "esa": 1.50}
#: Holding time without load, us.
HOLDING = (5.1, 5.3)

#: Relative tolerance of goodput, by protocol; of shares absolute.
TOLERANCE: Mapping[str, float] = {"switchml": 0.01, "atp": 0.05, "esa": 0.05}
FALLBACK_TOLERANCE, AGGREGATED_TOLERANCE = 3.0, 0.03


@dataclass(frozen=True, slots=True)
class Headline:
    """A paper's result, and why a figure here is not the same."""

    system: str
    paper: str
    caveat: str


#: Headline by the name of its row.
HEADLINES: Mapping[str, Headline] = {
    "switchml": Headline(
        "SwitchML", "training up to 5.5 times as fast",
        "paper: training on GPUs against software of its time; here: iterations of 8 jobs that compute as long as the "
        "line needs, against servers that add up all packets",
    ),
    "atp": Headline(
        "ATP", "training throughput +38 % to +66 % in a shared cluster",
        "paper: a testbed with several models and baselines; here: the same 8 jobs against servers alone; 20,000 "
        "aggregators as released",
    ),
    "esa": Headline(
        "ESA", "mean JCT better by up to 1.35 times",
        "paper: ns-3, other models, priorities that change; here: communication alone, static priorities, one exchange",
    ),
    "inalloc misses": Headline(
        "INAlloc", "deadline misses -75 %",
        "paper: traces of real jobs, days of them; here: exchanges of 8 jobs with deadlines drawn from 1.1 to 6 times "
        "the time that the line needs",
    ),
    "inalloc jct": Headline(
        "INAlloc", "JCT -27 %", "as above; regions by deadlines take memory from jobs whose deadlines are late",
    ),
    "grid": Headline(
        "GRID", "communication time -38.4 % to -60.1 %",
        "paper: 3 switches and 9 servers, and a simulation; here: the fullest link against fixed leaf switches, "
        "20 random placements of 12 jobs on 32 nodes, oversubscription 4, no packets",
    ),
    "netpack": Headline(
        "NetPack", "mean JCT 45 % better than earlier placement",
        "paper: a testbed and traces of its own; here: 150 jobs like Philly's over 8 racks, oversubscription 4, no "
        "packets and no aggregation, against the default placement of tiresias-l",
    ),
}  # fmt: skip
