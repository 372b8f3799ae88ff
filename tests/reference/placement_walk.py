"""The plain reference of the walk in `kernels.py`: sets, dictionaries, one gang at a time.

Only tests use it; they compare the two on random clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.core.cluster import Cluster
from plait.placement.kernels import BLOCKED, FRAGMENTED, PLACED, TOO_FEW
from plait.placement.packing import Scheme


@dataclass(frozen=True)
class Gang:
    """One job in the order: its size, its present GPUs, and its constraints.

    `kinds`: GPU kinds it may use. `cpus` and `memory_bytes`: the need of each of its GPUs. `strict`: if it does not
    fit, no gang after it runs. `seed`: for random placement.
    """

    size: int
    runs_on: tuple[int, ...] = ()
    scheme: Scheme = Scheme.CONSOLIDATED
    strict: bool = False
    kinds: frozenset[str] = frozenset()
    cpus: float = 0.0
    memory_bytes: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Answer:
    """The result for a gang: a status of `kernels.py`, and its GPUs if it was placed."""

    status: int
    gpus: tuple[int, ...] = ()


@dataclass
class Hardware:
    """Free resources: GPUs, and cores and bytes by node."""

    cluster: Cluster
    free: set[int] = field(default_factory=set)
    cpus: dict[int, float] = field(default_factory=dict)
    memory_bytes: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Nothing is used on the nodes that are up."""
        for n in range(len(self.cluster.nodes)):
            if self.cluster.up[n]:
                self.free |= set(self.gpus_of(n))
            self.cpus[n] = float(self.cluster.node_cpus[n])
            self.memory_bytes[n] = float(self.cluster.node_memory_bytes[n])

    def gpus_of(self, node: int) -> range:
        return range(int(self.cluster.first_gpu[node]), int(self.cluster.first_gpu[node + 1]))

    def node_of(self, gpu: int) -> int:
        return int(self.cluster.gpu_node[gpu])

    def nodes_of_kind(self, kind: str) -> list[int]:
        return [n for n, node in enumerate(self.cluster.nodes) if node.gpu_kind == kind]

    def free_on(self, node: int) -> list[int]:
        return [gpu for gpu in self.gpus_of(node) if gpu in self.free]

    def room(self, node: int, gang: Gang) -> int:
        """How many GPUs of a gang the node could take."""
        count = len(self.free_on(node))
        while count > 0 and not self.feeds(node, gang, count):
            count -= 1
        return count

    def feeds(self, node: int, gang: Gang, count: int) -> bool:
        """Whether the node has cores and memory for so many GPUs of a gang."""
        enough_cpus = gang.cpus == 0 or gang.cpus * count <= self.cpus[node] + 1e-6
        enough_memory = gang.memory_bytes == 0 or gang.memory_bytes * count <= self.memory_bytes[node] + 1e-6
        return enough_cpus and enough_memory

    def can_have(self, gang: Gang, gpus: Sequence[int]) -> bool:
        """Whether a gang could run on exactly these GPUs."""
        nodes = [self.node_of(gpu) for gpu in gpus]
        return all(gpu in self.free for gpu in gpus) and all(self.feeds(n, gang, nodes.count(n)) for n in set(nodes))

    def take(self, gang: Gang, gpus: Sequence[int]) -> None:
        for gpu in gpus:
            self.free.remove(gpu)
            self.cpus[self.node_of(gpu)] -= gang.cpus
            self.memory_bytes[self.node_of(gpu)] -= gang.memory_bytes

    def give_back(self, gang: Gang, gpus: Sequence[int]) -> None:
        for gpu in gpus:
            self.free.add(gpu)
            self.cpus[self.node_of(gpu)] += gang.cpus
            self.memory_bytes[self.node_of(gpu)] += gang.memory_bytes


# -- one gang --------------------------------------------------------------------------------------------


def choose(hardware: Hardware, gang: Gang) -> tuple[int, ...] | None:
    """Free GPUs for one gang, all of one kind, or None."""
    for kind in hardware.cluster.kinds:
        if kind not in gang.kinds:
            continue
        if gang.scheme is Scheme.RANDOM:
            found = _drawn(hardware, gang, kind)
        else:
            counts = _counts(hardware, gang, kind)
            found = None
            if counts is not None:
                found = [gpu for n in sorted(counts) for gpu in hardware.free_on(n)[: counts[n]]]
        if found is not None:
            return tuple(sorted(found))
    return None


def _counts(hardware: Hardware, gang: Gang, kind: str) -> dict[int, int] | None:
    """GPUs by node."""
    room = {n: hardware.room(n, gang) for n in hardware.nodes_of_kind(kind)}
    if gang.scheme is Scheme.CONSOLIDATED:
        return _fewest(hardware, gang, kind, room)
    if gang.scheme is Scheme.CONSOLIDATED_FIRST_FIT:
        found = _whole_nodes_first(hardware, gang, kind, room)
        empty = Hardware(hardware.cluster)
        if found is None and _whole_nodes_first(empty, gang, kind, {n: empty.room(n, gang) for n in room}) is None:
            return _fewest(hardware, gang, kind, room)
        return found
    if gang.scheme is Scheme.APART:
        apart = dict.fromkeys(room, 0)
        for _ in range(min(gang.size, sum(room.values()))):
            apart[min((n for n in room if apart[n] < room[n]), key=lambda n: (apart[n], apart[n] - room[n], n))] += 1
        return {n: count for n, count in apart.items() if count} if sum(room.values()) >= gang.size else None
    alone = [n for n in room if room[n] >= gang.size]
    if gang.scheme is Scheme.FIRST_FIT and alone:
        return {min(alone): gang.size}
    if gang.scheme is Scheme.BEST_FIT and alone:
        return {min(alone, key=lambda n: (room[n], n)): gang.size}
    preference = {
        Scheme.FIRST_FIT: lambda n: n,
        Scheme.COUNTING: lambda n: n,
        Scheme.BEST_FIT: lambda n: (-room[n], n),
        Scheme.SPREAD: lambda n: (room[n], n),
    }[gang.scheme]
    return _fill(gang.size, sorted(room, key=preference), room)


def _fill(size: int, nodes: Sequence[int], room: dict[int, int]) -> dict[int, int] | None:
    """As much as there is from one node after the other; None if it is not enough."""
    counts: dict[int, int] = {}
    for n in nodes:
        part = min(size - sum(counts.values()), room[n])
        if part > 0:
            counts[n] = part
    return counts if sum(counts.values()) == size else None


def _fewest(hardware: Hardware, gang: Gang, kind: str, room: dict[int, int]) -> dict[int, int] | None:
    """As few nodes as the empty cluster would need; the last one is the tightest that takes the rest."""
    empty = Hardware(hardware.cluster)
    best = sorted((empty.room(n, gang) for n in empty.nodes_of_kind(kind)), reverse=True)
    needed = next((k for k in range(1, len(best) + 1) if sum(best[:k]) >= gang.size), None)
    if needed is None:
        return None
    roomiest = sorted((n for n in room if room[n] > 0), key=lambda n: (-room[n], n))[: needed - 1]
    counts = _fill(gang.size, roomiest, room)
    if counts is not None:
        return counts
    if len(roomiest) < needed - 1:
        return None
    counts = {n: room[n] for n in roomiest}
    rest = gang.size - sum(counts.values())
    fitting = [n for n in room if n not in counts and room[n] >= rest]
    if not fitting:
        return None
    return {**counts, min(fitting, key=lambda n: (room[n], n)): rest}


def _whole_nodes_first(hardware: Hardware, gang: Gang, kind: str, room: dict[int, int]) -> dict[int, int] | None:
    """floor(W / g) idle nodes and one with the rest, in the first rack that has them."""
    size = max(hardware.cluster.nodes[n].gpus for n in room)
    whole, rest = divmod(gang.size, size)
    if gang.size == size:
        whole, rest = 0, size
    for rack in sorted({node.rack for node in hardware.cluster.nodes}):
        here = [n for n in room if hardware.cluster.nodes[n].rack == rack]
        idle = [n for n in here if room[n] == size][:whole]
        others = [n for n in here if n not in idle and room[n] >= rest]
        if len(idle) == whole and (rest == 0 or others):
            counts = dict.fromkeys(idle, size)
            return {**counts, others[0]: rest} if rest else counts
    return None


def _drawn(hardware: Hardware, gang: Gang, kind: str) -> list[int] | None:
    """GPUs drawn without replacement: numbers per node by Lehmer's generator, then the first free ones there."""
    state = gang.seed % 2147483646 + 1
    pool = [gpu for gpu in sorted(hardware.free) if hardware.cluster.nodes[hardware.node_of(gpu)].gpu_kind == kind]
    counts: dict[int, int] = {}
    while pool and sum(counts.values()) < gang.size:
        state = state * 48271 % 2147483647
        i = state % len(pool)
        node = hardware.node_of(pool[i])
        pool[i] = pool[-1]
        pool.pop()
        if counts.get(node, 0) < hardware.room(node, gang):
            counts[node] = counts.get(node, 0) + 1
    if sum(counts.values()) < gang.size:
        return None
    return [gpu for n in sorted(counts) for gpu in hardware.free_on(n)[: counts[n]]]


# -- all gangs -------------------------------------------------------------------------------------------


def walk(gangs: Sequence[Gang], cluster: Cluster) -> list[Answer]:
    """Place gangs in this order.

    1. Count: in order, a gang is in while enough GPUs are left; a strict one that is not ends the line.
    2. Running gangs that are in keep their GPUs.
    3. In order, gangs that are in and have none yet get GPUs; if only lower-ranked running gangs are in the
       way, these give theirs up, the lowest first, and are placed again when the line reaches them.
    4. In order, gangs that are not in get the rest, by preference where they run now.

    Of a node that is down only the GPUs that running gangs hold are available.
    """
    hardware = Hardware(cluster)
    hardware.free |= {gpu for gang in gangs for gpu in gang.runs_on}
    answers = [Answer(TOO_FEW) for _ in gangs]
    admitted, end = _count(gangs, len(hardware.free))
    keeps: set[int] = set()
    for p in sorted(admitted):
        if _stays(hardware, gangs[p]):
            hardware.take(gangs[p], gangs[p].runs_on)
            keeps.add(p)
    for tier in ("admitted", "left over"):
        for p, gang in enumerate(gangs):
            if p >= end or answers[p].status == PLACED or (tier == "admitted" and p not in admitted):
                continue
            if p in keeps:
                keeps.remove(p)
                answers[p] = Answer(PLACED, gang.runs_on)
                continue
            gpus = gang.runs_on if _stays(hardware, gang) else choose(hardware, gang)
            if gpus is None and tier == "admitted":
                gpus = _make_room(hardware, gangs, p, keeps)
            if gpus is not None:
                hardware.take(gang, gpus)
                answers[p] = Answer(PLACED, tuple(gpus))
                continue
            answers[p] = Answer(FRAGMENTED if len(hardware.free) >= gang.size else TOO_FEW)
            if gang.strict:
                end = p
        for q in [q for q in keeps if q > end]:
            hardware.give_back(gangs[q], gangs[q].runs_on)
            keeps.remove(q)
    return [a if p <= end or a.status == PLACED else Answer(BLOCKED) for p, a in enumerate(answers)]


def _count(gangs: Sequence[Gang], budget: int) -> tuple[set[int], int]:
    admitted: set[int] = set()
    for p, gang in enumerate(gangs):
        if gang.size <= budget:
            budget -= gang.size
            admitted.add(p)
        elif gang.strict:
            return admitted, p
    return admitted, len(gangs)


def _stays(hardware: Hardware, gang: Gang) -> bool:
    return len(gang.runs_on) == gang.size and hardware.can_have(gang, gang.runs_on)


def _make_room(hardware: Hardware, gangs: Sequence[Gang], p: int, keeps: set[int]) -> tuple[int, ...] | None:
    nodes = _worth_emptying(hardware, gangs, p, keeps)
    for q in sorted((q for q in keeps if q > p), reverse=True):
        if nodes.isdisjoint(hardware.node_of(gpu) for gpu in gangs[q].runs_on):
            continue
        hardware.give_back(gangs[q], gangs[q].runs_on)
        keeps.remove(q)
        found = choose(hardware, gangs[p])
        if found is not None:
            return found
    return None


def _worth_emptying(hardware: Hardware, gangs: Sequence[Gang], p: int, keeps: set[int]) -> set[int]:
    """Nodes whose lower-ranked gangs may have to go: as few as can do, if only GPUs decide; else all."""
    gang, cluster = gangs[p], hardware.cluster
    kinds = [kind for kind in cluster.kinds if kind in gang.kinds]
    plain = all(cluster.up) and not any(g.cpus or g.memory_bytes for g in gangs)
    if not plain or gang.scheme is not Scheme.CONSOLIDATED:
        return {n for kind in kinds for n in hardware.nodes_of_kind(kind)}
    could = {n: len(hardware.free_on(n)) for n in range(len(cluster.nodes))}
    for q in keeps:
        if q > p:
            for gpu in gangs[q].runs_on:
                could[hardware.node_of(gpu)] += 1
    for kind in kinds:
        chosen: list[int] = []
        left = gang.size
        most = sorted((cluster.nodes[n].gpus for n in hardware.nodes_of_kind(kind)), reverse=True)
        needed = next((k for k in range(1, len(most) + 1) if sum(most[:k]) >= gang.size), len(most))
        while left > 0 and len(chosen) < needed:
            candidates = [n for n in hardware.nodes_of_kind(kind) if n not in chosen and could[n] > 0]
            if not candidates:
                break
            best = min(candidates, key=lambda n: (-min(could[n], left), -len(hardware.free_on(n)), n))
            chosen.append(best)
            left -= could[best]
        if left <= 0:
            return set(chosen)
    return set()
