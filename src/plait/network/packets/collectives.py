"""All-reduces without aggregation: who sends how many packets to whom, and after which others. Start at `program`.

The algorithms are those of the textbooks and of collective libraries; how they are cut into parts is our design.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from plait.core.errors import InputError

#: ring             reduce-scatter and all-gather around a ring, in two channels of half of the data each
#: tree             up and down two binary trees of half of the data each, in slices; nobody is in the middle of both
#: halving-doubling reduce-scatter by halving and all-gather by doubling, in two channels of half of the data each
COLLECTIVES = ("ring", "tree", "halving-doubling")
#: Packets of a slice of a tree: the next worker sends it on as soon as it has all of it.
SLICE = 32


@dataclass(frozen=True)
class Send:
    """So many packets for another worker.

    `part`: of the all-reduce, by which the receiver counts them; `after`: the part that the sender must have, -1: none.
    """

    to: int
    packets: int
    part: int
    after: int = -1


@dataclass
class AllReduce:
    """The sends of each worker, in lanes whose sends follow one another: `lanes[worker][lane]`."""

    lanes: list[list[list[Send]]]
    parts: int = field(default=0)

    def expected(self) -> list[list[int]]:
        """Packets of each part that come to each worker."""
        found = [[0] * self.parts for _ in self.lanes]
        for lanes in self.lanes:
            for send in (send for lane in lanes for send in lane):
                found[send.to][send.part] += send.packets
        return found


def check_collective(name: str, workers: int) -> None:
    """Raise `InputError` for an unknown collective, and for a number of workers that it cannot have."""
    if name not in COLLECTIVES:
        raise InputError(f"collective is {name!r}; it takes {', '.join(COLLECTIVES)}")
    if workers < 2:
        raise InputError(f"{workers} workers; a {name} takes 2 or more")
    if name == "halving-doubling" and workers & (workers - 1):
        raise InputError(f"{workers} workers; halving-doubling takes 2, 4, 8, 16, 32 or 64")


def program(name: str, workers: int, packets: int) -> AllReduce:
    """The all-reduce of a tensor of so many packets."""
    if name == "tree":
        return _trees(workers, packets)
    made = AllReduce([[[], []] for _ in range(workers)])
    for lane, share in enumerate((packets - packets // 2, packets // 2)):
        first = made.parts
        if name == "ring":
            _ring(made, lane, workers, share, first)
        else:
            _halving(made, lane, workers, share, first)
    return made


def _ring(made: AllReduce, lane: int, workers: int, packets: int, first: int) -> None:
    """In each round every worker sends one part of the data to the next one, once it has it from the one before."""
    rounds = 2 * (workers - 1)
    for rank in range(workers):
        for r in range(rounds):
            part = (rank - r) % workers
            size = packets * (part + 1) // workers - packets * part // workers
            made.lanes[rank][lane].append(Send((rank + 1) % workers, size, first + r, first + r - 1 if r else -1))
    made.parts = first + rounds


def _halving(made: AllReduce, lane: int, workers: int, packets: int, first: int) -> None:
    """Pairs exchange halves of what is left, then all of what they have, at distances that halve and double again."""
    far = [workers >> (k + 1) for k in range(workers.bit_length() - 1)]
    for rank in range(workers):
        low, high = 0, packets
        held = []  # what a worker keeps after each halving, and what it gave away
        for r, distance in enumerate(far):
            middle = (low + high) // 2
            keep, give = ((low, middle), (middle, high)) if not rank & distance else ((middle, high), (low, middle))
            made.lanes[rank][lane].append(
                Send(rank ^ distance, give[1] - give[0], first + r, first + r - 1 if r else -1)
            )
            held.append(keep)
            low, high = keep
        for r, distance in enumerate(reversed(far), start=len(far)):
            low, high = held[2 * len(far) - 1 - r]
            made.lanes[rank][lane].append(Send(rank ^ distance, high - low, first + r, first + r - 1))
    made.parts = first + 2 * len(far)


def _trees(workers: int, packets: int) -> AllReduce:
    """Two trees in the order of workers and against it: who is in the middle of one is at the end of the other."""
    made = AllReduce([[[] for _ in range(4)] for _ in range(workers)])
    for tree, share in enumerate((packets - packets // 2, packets // 2)):
        order = list(range(workers)) if tree == 0 else list(reversed(range(workers)))
        slices = max(1, -(-share // SLICE))
        for k in range(slices):
            size, up, down = share * (k + 1) // slices - share * k // slices, made.parts, made.parts + 1
            for at, rank in enumerate(order):
                kids = [order[kid] for kid in (2 * at + 1, 2 * at + 2) if kid < workers]
                if at:
                    made.lanes[rank][2 * tree].append(Send(order[(at - 1) // 2], size, up, up if kids else -1))
                for kid in kids:
                    made.lanes[rank][2 * tree + 1].append(Send(kid, size, down, down if at else up))
            made.parts += 2
    return made
