"""Headers, addresses, options, fixed point, and single steps of switch, server and worker."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import InputError
from plait.core.options import declared
from plait.network.protocol import addressing, fixed_point, header, options, priority, server, switch, worker
from plait.network.protocol.addressing import Index, cycle_slots, indices
from plait.network.protocol.header import BYPASS, COLLIDED, CONTROL, DATA, EVICT, FULL, OVERFLOW, RESEND, RESULT
from plait.network.protocol.hello import Hello, pack, unpack
from plait.network.protocol.switch import DROP, EVICTED, HELD, MULTICAST, TO_SERVER, UNICAST

NO_SLOTS = np.zeros(1, dtype=np.int32)
ELEMENTS = 2


class Bench:
    """One switch of `size` aggregators with job 0, of three workers, and what steps need."""

    def __init__(self, size: int = 4, rules: int = 0, jobs: int = 2, expected: int = 7):
        self.switch = switch.make_switch(size, jobs, ELEMENTS)
        self.packets, self.values = header.make_packets(8, ELEMENTS)
        for job in range(jobs):
            switch.register(self.switch, job, expected, 3, rules)
            switch.grant(self.switch, job, 0, size, 0)

    def put(self, seq: int, bits: int, kind: int = DATA, index: int = 1, value: int = 5, **more: int) -> int:
        """A packet at the switch; returns the actions. What becomes of it is in row 0, what it evicts in row 1."""
        self.packets[0] = np.zeros((), header.PACKET)
        for name, what in {"seq": seq, "bitmap": bits, "type": kind, "index": index, **more}.items():
            if name != "now":
                self.packets[0][name] = what
        self.values[0] = value
        return switch.switch_step(self.switch, self.packets, self.values, 0, 1, more.get("now", 0))

    def row(self, i: int = 0) -> tuple[int, int, list[int]]:
        return int(self.packets[i]["type"]), int(self.packets[i]["bitmap"]), self.values[i].tolist()


def test_packets_are_the_same_after_the_wire() -> None:
    rng = np.random.default_rng(0)
    packets, values = header.make_packets(50, 7)
    packets["seq"] = rng.integers(0, 2**32, 50)
    packets["bitmap"] = rng.integers(-(2**63), 2**63, 50)
    packets["job"], packets["index"] = rng.integers(0, 2**16, 50), rng.integers(-1, 2**31, 50)
    packets["flags"], packets["type"] = rng.integers(0, 128, 50), rng.integers(0, 6, 50)
    packets["level"], packets["exponent"] = rng.integers(0, 4, 50), rng.integers(-128, 128, 50)
    for name in ("prio", "epoch", "n_workers"):
        packets[name] = rng.integers(0, 256, 50)
    values[:] = rng.integers(-(2**31), 2**31, values.shape)
    wire = np.zeros((50, header.WIRE_BYTES + 28), dtype=np.uint8)
    header.encode(packets, values, 50, wire)
    back, back_values = header.make_packets(50, 7)
    assert header.decode(wire, np.full(50, 52), 50, back, back_values) == 50
    assert (back == packets).all()
    assert (back_values == values).all()
    assert wire[0, 24:28].tobytes() == int(values[0, 0]).to_bytes(4, "big", signed=True)


def test_rows_are_written_in_the_order_that_is_asked_for() -> None:
    packets, values = header.make_packets(4, 3)
    packets["seq"], values[:] = [5, 6, 7, 8], np.arange(12).reshape(4, 3)
    wire, part = np.zeros((4, 36), dtype=np.uint8), np.zeros((3, 36), dtype=np.uint8)
    header.encode(packets, values, 4, wire)
    header.encode_rows(packets, values, np.array([3, 0, 3, 1]), 3, part)
    assert (part == wire[[3, 0, 3]]).all()


def test_a_hello_is_a_packet_with_the_secret_of_a_job() -> None:
    for hello in (Hello(65_535, worker.bit_of(63), b"12345678"), Hello(0, 0, bytes(8)), Hello(7, 4, b"\xff" * 8)):
        datagram = pack(hello)
        assert unpack(datagram) == unpack(bytearray(datagram)) == hello
        row = np.frombuffer(datagram, np.uint8).reshape(1, -1)
        packets, values = header.make_packets(1, 2)
        assert header.decode(row, np.array([len(datagram)]), 1, packets, values) == 1
        assert packets[0][["type", "job", "bitmap", "index"]].tolist() == (header.HELLO, hello.job, hello.bitmap, -1)
        assert values.tobytes() == np.frombuffer(hello.token, ">i4").astype(np.int32).tobytes()
    assert unpack(datagram[:-1]) is unpack(datagram + b"1") is unpack(b"") is None
    assert unpack(bytes([header.VERSION << 5]) + datagram[1:]) is None
    with pytest.raises(ValueError, match="a token has 8 bytes, not 3"):
        pack(Hello(1, 1, b"123"))


def test_rows_that_are_short_or_of_another_version_are_left_out() -> None:
    packets, values = header.make_packets(3, 1)
    packets["seq"] = [1, 2, 3]
    wire = np.zeros((3, 28), dtype=np.uint8)
    header.encode(packets, values, 3, wire)
    wire[1, 0] = 7 << 5
    back, back_values = header.make_packets(3, 1)
    assert header.decode(wire, np.array([28, 28, 27]), 3, back, back_values) == 1
    assert back["seq"][0] == 1


def test_each_bit_of_job_and_seq_changes_about_half_of_the_hash() -> None:
    rng = np.random.default_rng(1)
    for bit in range(48):
        changed = 0
        for job, seq in zip(rng.integers(0, 2**16, 40).tolist(), rng.integers(0, 2**32, 40).tolist(), strict=True):
            other = (job, seq ^ 1 << bit) if bit < 32 else (job ^ 1 << bit - 32, seq)
            changed += (int(addressing.mix(job, seq)) ^ int(addressing.mix(*other))).bit_count()
        assert 25 < changed / 40 < 37, bit


def test_hashed_indices_are_even_over_the_aggregators() -> None:
    counts = np.zeros(1000)
    for job in range(4):
        np.add.at(counts, indices(Index.SHARED_HASH, job, np.arange(25_000), 0, 1000, NO_SLOTS, 0), 1)
    assert abs(counts.var() / counts.mean() - 1) < 0.2


def test_indices_of_each_mode() -> None:
    seqs = np.arange(10)
    assert indices(Index.DEDICATED, 3, seqs, 100, 5, NO_SLOTS, 0).tolist() == [100, 101, 102, 103] * 2 + [100, 101]
    assert indices(Index.HYBRID_MODULO, 3, seqs, 100, 5, NO_SLOTS, 0).tolist() == [100, 101, 102, 103, 104] * 2
    assert set(indices(Index.HYBRID_REGION, 3, np.arange(500), 100, 5, NO_SLOTS, 0)) == {100, 101, 102, 103, 104}
    assert indices(Index.SHARED_HASH, 3, seqs, 0, 0, NO_SLOTS, 0).tolist() == [-1] * 10
    slots = cycle_slots(3, 4, 6, first=10)
    assert indices(Index.SHARED_CYCLE, 3, seqs, 0, 0, slots, 4).tolist() == [*slots, *slots, slots[0], slots[1]]
    assert len(set(slots)) == 4
    assert set(slots) <= set(range(10, 16))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: cycle_slots(1, 9, 8), "needs as many aggregators; the switch has 8"),
        (lambda: addressing.check_cycle(9, 4, 8), "cycle of 9 slots"),
        (lambda: addressing.check_cycle(4, 5, 8), "window of 5 packets"),
        (lambda: addressing.check_partitions([4, 1], 100), "job 1: 1 dedicated slots; a job needs 2 or more"),
        (lambda: addressing.check_partitions([4, 0], 100), "job 1: 0 dedicated slots"),
        (lambda: addressing.check_partitions([60, 60], 100), "the switch has 100 aggregators"),
        (lambda: options.preset("apt"), "did you mean 'atp'"),
        (lambda: options.preset("atp", windw=3), "did you mean 'window'"),
        (lambda: options.preset("atp", window=0), "window is 0; it takes 1 to 65536"),
        (lambda: options.preset("atp", window=True), "a whole number"),
        (lambda: options.preset("atp", rto_s=float("nan")), "it takes a number"),
        (lambda: options.preset("atp", cc="reno"), "it takes none, aimd, a2tp"),
        (lambda: options.preset("atp", payload_bytes=250), "a multiple of 4"),
        (lambda: options.preset("atp", window=64, cycle=32), "less than the window"),
        (lambda: options.preset("atp", index="dedicated"), "switchml alone"),
        (lambda: options.preset("switchml", index="shared_hash"), "switchml alone"),
        (lambda: server.register(server.make_server(1, 4), 0, 65), "1 to 64"),
    ],
)
def test_what_does_not_work_is_refused_with_what_would(call, words: str) -> None:
    with pytest.raises(InputError, match=words):
        call()


def test_options_have_help_and_the_defaults_of_the_released_systems() -> None:
    assert all(one.option.help for one in declared(options.Options))
    atp, switchml, a2tp = options.preset("atp"), options.preset("switchml"), options.preset("a2tp")
    assert (atp.payload_bytes, atp.header_bytes, atp.rto_s, atp.first_rto_s) == (248, 58, 200e-6, 50e-3)
    assert (atp.elements, atp.mode, atp.max_age_ns) == (62, Index.SHARED_HASH, 800_000)
    assert (switchml.payload_bytes, switchml.rto_s, switchml.mode) == (256, 10e-3, Index.DEDICATED)
    assert (a2tp.cc, a2tp.a2tp_theta, a2tp.bypass) == ("a2tp", 0.1, "flush")
    assert options.preset("esa").rules == switch.PREEMPT
    assert options.preset("inalloc").mode == Index.HYBRID_MODULO
    workers = worker.make_workers(1, 256)
    options.set_up(workers, 0, atp, 0, 0, 1)
    assert workers.state[0]["increase"] == 4  # 1,500 bytes are four packets and a part of one


def test_dedicated_slots_are_twice_the_window() -> None:
    workers = worker.make_workers(1, 8, pool=8)
    options.set_up(workers, 0, options.preset("switchml", window=8), 0, 0, 1)
    options.set_region(workers, 0, 0, 7, 0)
    assert (workers.state[0]["window"], workers.state[0]["size"]) == (3, 6)
    with pytest.raises(InputError, match="job 0: 1 dedicated slots"):
        options.set_region(workers, 0, 0, 1, 0)


def test_a_shared_aggregator_sums_emits_and_is_freed_by_the_result() -> None:
    b = Bench()
    assert b.put(9, 1) == DROP
    assert b.put(9, 1) == DROP  # the same worker again
    assert b.put(9, 4, value=7) == DROP
    assert b.put(9, 2) == TO_SERVER
    assert b.row() == (DATA, 7, [17, 17])
    assert b.packets[0]["flags"] & FULL
    assert b.put(9, 2) == TO_SERVER  # complete: the content is sent again
    assert b.row() == (DATA, 7, [17, 17])
    assert b.put(8, 1) == TO_SERVER
    assert b.packets[0]["flags"] & COLLIDED
    assert b.put(9, 7, RESULT) == MULTICAST
    assert b.switch.info[HELD] == 0


def test_a_packet_sent_again_takes_along_what_is_there_and_never_claims() -> None:
    b = Bench()
    assert b.put(9, 1, RESEND) == TO_SERVER
    assert b.switch.info[HELD] == 0
    assert b.put(9, 1) == DROP
    assert b.put(9, 4, RESEND, value=7) == TO_SERVER
    assert b.row() == (RESEND, 5, [12, 12])
    assert b.switch.info[HELD] == 0


@pytest.mark.parametrize(("rules", "held"), [(0, 0), (switch.BYPASS_PASSES, 1)])
def test_a_packet_that_bypasses_flushes_its_aggregator_or_passes(rules: int, held: int) -> None:
    b = Bench(rules=rules)
    b.put(9, 1)
    assert b.put(9, 2, flags=BYPASS) == TO_SERVER
    assert b.switch.info[HELD] == held


def test_higher_priority_takes_an_aggregator_and_a_complete_sum_is_not_ejected() -> None:
    b = Bench(rules=switch.PREEMPT)
    b.put(9, 1, prio=3)
    assert b.put(20, 1, job=1, prio=3) == TO_SERVER  # equal: first come, first served
    assert b.put(20, 1, job=1, prio=4, value=8) == DROP | EVICTED
    assert b.row(1) == (EVICT, 1, [5, 5])
    assert (b.packets[1]["job"], b.packets[1]["seq"]) == (0, 9)
    b.put(20, 2, job=1, prio=4)
    b.put(20, 4, job=1, prio=4)
    assert b.put(9, 2, prio=9) == DROP
    assert b.switch.jobs["held"].tolist() == [1, 0]
    assert b.put(20, 1, RESEND, job=1, prio=255) == TO_SERVER  # never preempts
    assert b.switch.jobs["held"].tolist() == [1, 0]


def test_residents_lose_half_of_their_priority_with_ageing() -> None:
    b = Bench(rules=switch.PREEMPT | switch.AGEING)
    b.put(9, 1, prio=9)
    assert [b.put(20, 1, job=1, prio=3) & EVICTED for _ in range(3)] == [0, 0, EVICTED]  # 9, 4, 2


def test_a_dedicated_slot_answers_one_worker_and_retires_older_sums() -> None:
    b = Bench(rules=switch.DEDICATED)
    assert [b.put(1, bit) for bit in (1, 2)] == [DROP, DROP]
    assert b.put(1, 4) == MULTICAST
    assert b.row() == (RESULT, 7, [15, 15])
    assert b.put(1, 2) == UNICAST
    assert b.row() == (RESULT, 2, [15, 15])
    assert b.put(5, 2) == DROP
    assert b.put(1, 1) == DROP  # older
    assert b.put(5, 1, index=9) == DROP  # outside of the region
    assert b.switch.jobs[0]["stale"] == 1
    assert b.switch.jobs[0]["outside"] == 1


def test_a_region_holds_for_its_epoch_and_the_one_before_drains() -> None:
    b = Bench(size=8)
    switch.grant(b.switch, 0, 0, 4, 0)
    b.put(9, 1, index=1)
    switch.grant(b.switch, 0, 4, 4, 1)
    assert b.put(9, 2, index=1) == DROP  # still finds its own
    assert b.put(30, 1, index=5, epoch=1) == DROP
    assert b.put(31, 1, index=2, epoch=1) == TO_SERVER  # not in the new region
    assert b.packets[0]["flags"] & COLLIDED
    assert (switch.holds(b.switch, 0, 0), switch.holds(b.switch, 0, 1)) == (1, 1)
    b.put(9, 7, RESULT, index=1)
    assert switch.holds(b.switch, 0, 0) == 0


def test_a_sweep_evicts_what_is_old_and_keeps_dedicated_slots() -> None:
    b = Bench()
    switch.register(b.switch, 1, 7, 3, switch.DEDICATED)
    switch.grant(b.switch, 1, 2, 2, 0)
    b.put(9, 1, now=100)
    b.put(4, 1, job=1, index=3, now=100)
    assert switch.sweep(b.switch, b.packets, b.values, 0, 4, 3, 1100, 1000) == (0, 0)
    assert switch.sweep(b.switch, b.packets, b.values, 2, 4, 3, 1101, 1000) == (1, 2)
    assert b.row(3) == (EVICT, 1, [5, 5])
    assert b.switch.jobs["held"].tolist() == [0, 1]
    switch.release(b.switch, 1)
    assert b.switch.info[HELD] == 0
    assert b.put(4, 1, job=1, index=3) == DROP


def test_a_reminder_brings_what_a_switch_holds() -> None:
    b = Bench()
    b.put(9, 1)
    assert b.put(8, 1, CONTROL) == DROP
    assert b.put(9, 1, CONTROL) == TO_SERVER
    assert b.row() == (EVICT, 1, [5, 5])
    assert b.switch.info[HELD] == 0


def test_two_levels_add_the_sums_of_switches_below() -> None:
    below, above = Bench(expected=3, rules=switch.BELOW), Bench(expected=7)
    assert below.put(9, 1) == DROP
    assert below.put(9, 2) == TO_SERVER
    assert (below.row(), int(below.packets[0]["level"])) == ((DATA, 3, [10, 10]), 1)
    assert above.put(9, 3, value=10) == DROP
    assert above.put(9, 1) == DROP  # one of its workers again
    assert above.put(9, 6) == TO_SERVER  # only some of its workers are counted: the server decides
    assert above.row() == (DATA, 6, [5, 5])
    assert above.put(9, 6, RESEND) == TO_SERVER | EVICTED
    assert above.row(1) == (EVICT, 3, [10, 10])
    dedicated = Bench(expected=3, rules=switch.DEDICATED | switch.BELOW)
    dedicated.put(9, 1)
    assert dedicated.put(9, 2) == TO_SERVER
    assert dedicated.put(9, 7, RESULT) == MULTICAST
    assert dedicated.put(9, 2) == TO_SERVER  # kept for workers that lost the result


def test_sums_beyond_32_bits_stay_at_the_end_and_are_marked() -> None:
    b = Bench()
    b.put(9, 1, value=2**31 - 2)
    b.put(9, 2, value=2)
    assert b.put(9, 4, value=0) == TO_SERVER
    assert b.row() == (DATA, 7, [2**31 - 1] * 2)
    assert b.packets[0]["flags"] & OVERFLOW


def test_a_batch_does_what_single_steps_do() -> None:
    rng = np.random.default_rng(3)
    one, many = (Bench(size=3, rules=switch.PREEMPT) for _ in range(2))
    packets, values = header.make_packets(400, ELEMENTS)
    packets["seq"][:200], packets["bitmap"][:200] = rng.integers(0, 9, 200), 1 << rng.integers(0, 3, 200)
    packets["job"][:200], packets["type"][:200] = rng.integers(0, 2, 200), rng.choice([DATA, DATA, RESEND, RESULT], 200)
    packets["prio"][:200], packets["index"][:200] = rng.integers(0, 4, 200), rng.integers(-1, 4, 200)
    values[:200] = rng.integers(-100, 100, (200, ELEMENTS))
    single, single_values = packets.copy(), values.copy()
    actions, spares = np.zeros(200, np.int64), np.zeros(200, np.int64)
    used = switch.switch_batch(many.switch, packets, values, 200, 5, actions, spares)
    spare = 200
    for k in range(200):
        assert switch.switch_step(one.switch, single, single_values, k, spare, 5) == actions[k]
        assert spares[k] == (spare if actions[k] & EVICTED else -1)
        spare += 1 if actions[k] & EVICTED else 0
    assert used == spare > 200
    assert (single == packets).all()
    assert (single_values == values).all()


def test_the_server_adds_disjoint_packets_takes_whole_ones_and_answers_again() -> None:
    servers = server.make_server(1, 4, ELEMENTS)
    server.register(servers, 0, 3)
    packets, values = header.make_packets(2, ELEMENTS)

    def put(seq: int, bits: int, value: int, kind: int = DATA) -> int:
        packets[0] = np.zeros((), header.PACKET)
        packets[0]["seq"], packets[0]["bitmap"], packets[0]["type"] = seq, bits, kind
        values[0] = value
        return server.server_step(servers, packets, values, 0, 0)

    assert put(3, 3, 10) == server.DROP
    assert put(3, 6, 99) == server.DROP  # worker 1 is counted: dropped whole
    assert put(3, 4, 5, RESEND) == server.TO_SWITCH | server.URGENT
    assert (packets[0]["type"], values[0].tolist()) == (RESULT, [15, 15])
    assert put(3, 1, 1) == server.TO_SWITCH
    assert values[0].tolist() == [15, 15]
    assert put(3, 1, 1, EVICT) == server.DROP
    assert put(4, 1, 1) == server.DROP
    assert put(4, 7, 20) == server.TO_SWITCH  # whole: replaces what was collected
    assert values[0].tolist() == [20, 20]
    assert put(11, 1, 1) == server.DROP
    assert put(3, 1, 1) == server.DROP  # eight later: no longer kept
    assert servers.jobs[0]["stale"] == 1


@given(
    x=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20), workers=st.integers(1, 64),
)  # fmt: skip
def test_fixed_point_sums_fit_and_are_near(x: list[float], workers: int) -> None:
    values = np.array(x, dtype=np.float32)
    exponent = fixed_point.exponent_of(values)
    scale = fixed_point.scale_of(exponent, workers)
    out, back = np.zeros(len(x), np.int32), np.zeros(len(x), np.float32)
    assert fixed_point.quantise(values, scale, False, out) == 0
    assert (out == [int(np.rint(float(v) * scale)) for v in values]).all()
    assert workers * int(np.abs(out.astype(np.int64)).max()) < 2**31
    fixed_point.dequantise(out, scale, back)
    assert np.abs(back.astype(float) - values).max() <= (0.5 + 2**-7) / scale + np.abs(values).max() * 2**-23 + 2**-148


def test_exponents_and_what_cannot_be_quantised() -> None:
    def of(*x: float) -> int:
        return fixed_point.exponent_of(np.array(x, dtype=np.float32))

    assert (of(0.0), of(0.9), of(1.0), of(-3.0, 2.0)) == (header.NO_EXPONENT, 0, 1, 2)
    assert of(float("nan")) == of(1, float("inf")) == fixed_point.NOT_FINITE
    assert fixed_point.scale_of(0, 2, margin=0) == (2**31 - 1) / 2
    out = np.zeros(4, np.int32)
    x = np.array([1.9999999e-6, -1.5e-6, 1e6, np.nan], np.float32)
    assert fixed_point.quantise(x, fixed_point.ATP_SCALE, True, out) == 2
    assert out.tolist() == [1, -1, 2**31 - 1, 0]


def test_priorities_grow_with_communication_and_fall_with_depth_and_what_remains() -> None:
    base = priority.esa_priority(4, 1.0, 1.0, 100.0)
    assert priority.esa_priority(1, 1.0, 1.0, 100.0) > base > priority.esa_priority(16, 1.0, 1.0, 100.0)
    assert priority.esa_priority(4, 2.0, 1.0, 100.0) > base > priority.esa_priority(4, 1.0, 1.0, 1000.0)
    assert priority.esa_priority(10**9, 0.0, 1.0, 1e9) == 1
    assert priority.esa_priority(1, 1e9, 0.0, 0.0) == 255
    with pytest.raises(ValueError, match="ranks start at 1"):
        priority.esa_priority(0, 1.0, 1.0, 1.0)
