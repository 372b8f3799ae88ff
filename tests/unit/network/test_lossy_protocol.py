"""The invariants of in-network aggregation, on thousands of runs with loss, repetition, reordering and reallocation.

Each seed draws jobs, systems, memory and faults. Every result is the exact sum over all workers, nothing stays held,
every run ends; and the naive simulator sees the same packets. PLAIT_SLOW=1: 100,000 seeds.
"""

from dataclasses import replace

import numpy as np
import pytest
from lossy_loop import COLUMNS, FINE, make_net, make_plan, run
from naive_loop import NaiveNet

from plait.network.protocol import header, server, switch, worker
from plait.network.protocol.addressing import Index, cycle_slots
from plait.network.protocol.options import Options, preset, set_cycle, set_region, set_up, set_windows
from reference.naive_network import NaiveServer, NaiveSwitch, NaiveWorker, SwitchJob, TwoWindows
from sampling import sample

SYSTEMS = ("switchml", "atp", "a2tp", "esa", "inalloc")
ELEMENTS, TENSORS, WINDOW = 2, 3, 8


class World:
    """What a seed draws: systems of one to three jobs, and the network between them."""

    def __init__(self, seed: int, systems: tuple[str, ...] = SYSTEMS, faults: bool = True, priorities: int = 5):
        rng = np.random.default_rng(seed)
        self.jobs = int(rng.integers(1, 4))
        self.options = [self.draw_options(rng, systems) for _ in range(self.jobs)]
        self.n_workers = rng.integers(1, 5, self.jobs).tolist()
        self.shared = int(rng.choice([0, 1, 2, 3, 5, 8, 16]))
        # Each dedicated job has two areas, between which it moves; the others share what is left, from 0 on.
        self.count = self.shared
        tensors = rng.integers(0, 20, (self.jobs, TENSORS))
        tensors[:, 0] += 1
        regions = np.zeros((self.jobs, TENSORS, 2), dtype=np.int64)
        self.cycles = {}
        for job, options in enumerate(self.options):
            if options.mode == Index.DEDICATED:
                size = 2 * options.window
                moves = int(rng.integers(0, 2))
                regions[job] = [(self.count + k * moves % 2 * size, size) for k in range(TENSORS)]
                self.count += 2 * size
            elif options.mode in (Index.HYBRID_REGION, Index.HYBRID_MODULO) and self.shared:
                first = rng.integers(0, self.shared, TENSORS)
                regions[job] = [(f, rng.integers(0, self.shared - f + 1)) for f in first]
            else:
                regions[job] = (0, self.shared)
            if options.mode == Index.SHARED_CYCLE:
                self.cycles[job] = cycle_slots(job, options.window, self.shared)
        ranks = [(job, rank) for job in range(self.jobs) for rank in range(self.n_workers[job])]
        rate = int(rng.choice([0, 20, 100, 250])) if faults else 0
        dials = [
            seed % 65_536, int(rate * rng.random()), int(rate * rng.random()), int(rng.choice([0, 100])),
            int(rng.choice([1, 2, 8, 40])) if faults else 1, int(rng.integers(1, 4)), int(rng.integers(5, 30)),
            1000 * int(rng.integers(40, 400)), 400_000, int(rng.integers(0, 4)),
            1000 * int(rng.choice([0, 0, 60])),
        ]  # fmt: skip
        job, rank = np.array(ranks, dtype=np.int64).T.copy()
        prios = 1 + rng.integers(0, priorities, (self.jobs, TENSORS))
        numbers = np.array(dials, dtype=np.int64)
        self.plan = make_plan(rng, job, rank, tensors, regions, numbers, ELEMENTS, prios, int(rng.choice([0, 3])))

    def draw_options(self, rng: np.random.Generator, systems: tuple[str, ...]) -> Options:
        system = str(rng.choice(systems))
        window = int(rng.integers(1, WINDOW + 1))
        rto_s = float(rng.integers(8, 80)) * 1e-6
        more: dict[str, object] = {"window": window, "rto_s": rto_s, "first_rto_s": 2 * rto_s}
        more |= {"gap_threshold": int(rng.integers(1, 4)), "backoff_every": int(rng.choice([10, 100]))}
        if system == "switchml":
            return preset(system, **more)
        if system == "inalloc":
            more["index"] = str(rng.choice(["hybrid_region", "hybrid_modulo"]))
        elif rng.random() < 0.4:
            more |= {"index": "shared_cycle", "slot_change": str(rng.choice(["on", "off"]))}
        if system == "a2tp":
            more["bypass"] = str(rng.choice(["flush", "pass"]))
        elif rng.random() < 0.3:
            more |= {"cc": "aimd", "initial_window": int(rng.integers(1, window + 1))}
        if system == "esa":
            more["ageing"] = str(rng.choice(["on", "off"]))
        return preset(system, **more)

    def build(self) -> tuple[switch.Switch, server.Server, worker.Workers]:
        sw = switch.make_switch(self.count, self.jobs, ELEMENTS)
        servers = server.make_server(self.jobs, WINDOW + 3, ELEMENTS, self.shared)
        workers = worker.make_workers(len(self.plan.job), WINDOW, WINDOW, WINDOW)
        for job, options in enumerate(self.options):
            switch.register(sw, job, server.all_bits(self.n_workers[job]), self.n_workers[job], options.rules)
            slots = self.cycles.get(job) if options.slot_change == "on" else None
            server.register(servers, job, self.n_workers[job], slots)
            set_windows(servers, job, options)
        for w, (job, rank) in enumerate(zip(self.plan.job, self.plan.rank, strict=True)):
            set_up(workers, w, self.options[job], job, rank, self.n_workers[job])
            set_region(workers, w, *self.plan.regions[job, 0].tolist(), 0)
            if job in self.cycles:
                set_cycle(workers, w, self.cycles[job], 0)
        return sw, servers, workers

    def run(self, rows: int = 0) -> tuple[int, int, np.ndarray, worker.Workers, switch.Switch]:
        sw, servers, workers = self.build()
        net = make_net(4096, ELEMENTS)
        log = np.zeros((rows, COLUMNS), dtype=np.int64)
        wrong, ticks = run(sw, servers, workers, self.plan, net, log)
        return wrong, ticks, log[: net.info[3]], workers, sw

    def naive(self) -> NaiveNet:
        sw = NaiveSwitch(self.count)
        _, servers, _ = self.build()
        naive_servers, workers = [], []
        for job, options in enumerate(self.options):
            everybody = frozenset(range(self.n_workers[job]))
            rules = options.rules
            sw.jobs[job] = SwitchJob(
                everybody, bool(rules & switch.DEDICATED), bool(rules & switch.PREEMPT),
                bool(rules & switch.BYPASS_PASSES), bool(rules & switch.AGEING),
            )  # fmt: skip
            order, row = [], servers.jobs[job]
            if row["slot_change"]:
                order = [(k * int(row["stride"]) + int(row["shift"])) % self.shared for k in range(self.shared)]
            taken = set(self.cycles.get(job, np.zeros(0, np.int32)).tolist())
            first = options.first_window
            windows = TwoWindows(options.window, first, first) if options.cc == "a2tp" else None
            naive_servers.append(NaiveServer(everybody, servers.entries.shape[1], order, taken, windows=windows))
        for job, rank in zip(self.plan.job.tolist(), self.plan.rank.tolist(), strict=True):
            o = self.options[job]
            workers.append(NaiveWorker(
                job, rank, o.window, round(o.rto_s * 1e9), round(o.first_rto_s * 1e9), o.gap_threshold,
                o.backoff_every, o.mode == Index.DEDICATED, o.cc, o.initial_window, mode=int(o.mode),
                increase=max(1, o.aimd_increase_bytes // (o.payload_bytes + o.header_bytes)),
                slots=self.cycles.get(job, np.zeros(0, np.int32)).tolist(),
            ))  # fmt: skip
        return NaiveNet(self.plan, sw, naive_servers, workers)


def drawn(seed: int, **how: object) -> World:
    """A world whose systems fit its memory: lists of slots need as many aggregators."""
    while True:
        try:
            return World(seed, **how)
        except Exception as error:
            if "cycle" not in str(error):
                raise
            seed += 1_000_000_007


@pytest.mark.parametrize("part", range(10))
def test_sums_are_exact_nothing_leaks_and_every_run_ends(part: int) -> None:
    failed = {}
    for seed in range(part, sample(1_000, 100_000), 10):
        wrong, tick, *_ = drawn(seed).run()
        if wrong != FINE:
            failed[seed] = wrong, tick
    assert failed == {}


def _agrees(world: World) -> int:
    wrong, tick, log, *_ = world.run(60_000)
    assert wrong == FINE
    naive = world.naive()
    ended = naive.run()
    for k, (mine, theirs) in enumerate(zip(log.tolist(), naive.log, strict=False)):
        assert mine == theirs, f"packet {k} of {len(log)}: {mine}, naively {theirs}"
    assert (len(log), tick) == (len(naive.log), ended)
    return len(log)


@pytest.mark.parametrize("part", range(5))
def test_the_naive_simulator_sees_the_same_packets(part: int) -> None:
    for seed in range(part, sample(40, 2_000), 5):
        _agrees(drawn(200_000 + seed))


def test_esa_with_equal_priorities_is_atp_and_the_same_seed_gives_the_same_packets() -> None:
    for seed in range(300_000, 300_000 + sample(20, 1_000)):
        world = drawn(seed, systems=("atp",), priorities=1)
        wrong, _, log, *_ = world.run(60_000)
        assert wrong == FINE
        assert (world.run(60_000)[2] == log).all()
        world.options = [replace(options, protocol="esa") for options in world.options]
        assert (world.run(60_000)[2] == log).all()
        assert len(log) > 3


def test_without_aggregators_everything_goes_to_the_server() -> None:
    world = drawn(1, systems=("atp",), faults=False)
    while world.shared:
        world = drawn(int(world.plan.dials[0]) + 1, systems=("atp",), faults=False)
    wrong, _, _, workers, sw = world.run()
    assert wrong == FINE
    assert sw.jobs["collided"].sum() == workers.state["sent"].sum() > 0


def test_a_timer_that_expires_too_often_gives_the_job_up() -> None:
    for system in ("atp", "switchml"):
        workers = worker.make_workers(1, 4, pool=4)
        packets, _ = header.make_packets(1)
        set_up(workers, 0, preset(system, window=2, max_timeouts=3, first_rto_s=1e-3, rto_s=1e-3), 0, 0, 2)
        set_region(workers, 0, 0, 8, 0)
        worker.worker_start(workers, 0, 0, 9, 0, 0)
        answers = []
        for tick in range(6):
            answers.append(worker.worker_timeout(workers, 0, tick * 1_000_000))
            while worker.worker_send(workers, 0, packets, 0, tick * 1_000_000):
                pass
        assert answers == [worker.WAITING, *[worker.TIMED_OUT] * 3, *[worker.GIVES_UP] * 2]
