"""Parts of the data plane in this process: faults, who may send, requests of the control socket."""

import json
import selectors
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.core.errors import InputError
from plait.live.dataplane.control import SwitchControl
from plait.live.dataplane.faults import DIRECTIONS, HELD_NS, TO_SWITCH, TO_WORKER, Faults, LinkFault
from plait.live.dataplane.members import Members
from plait.live.dataplane.packet_rows import PacketRows
from plait.live.dataplane.process import ControlSocket, Operations, resolve
from plait.live.dataplane.server_plane import ServerPlane
from plait.live.dataplane.switch_plane import SwitchPlane
from plait.network.protocol import header
from plait.network.protocol.hello import Hello, pack
from plait.network.protocol.options import preset
from plait.network.protocol.worker import bit_of
from plait.runtime.network.datagrams import BatchSocket

WHERE, SERVER, TOKEN = ("10.0.0.1", 1), ("10.0.0.9", 9), "0123456789abcdef"
OPTIONS = {"protocol": "switchml", "payload_bytes": 16}


def rows(count: int) -> list[bytes]:
    return [number.to_bytes(2, "big") for number in range(count)]


def passed(faults: Faults, count: int = 4000, job: int = 1) -> list[bytes]:
    """All that comes through, in order, what was held back at the end included."""
    out: list[bytes] = []
    for at in range(0, count, 50):
        out += [one for _, one in faults.passing(TO_SWITCH, job, rows(count)[at : at + 50], WHERE, at)]
    return out + [late.datagram for late in faults.due(HELD_NS + count)]


def test_faults_have_their_rates_and_depend_on_the_sequence_alone() -> None:
    def made(seed: int = 5) -> Faults:
        faults = Faults()
        faults.set(TO_SWITCH, None, LinkFault(loss=0.1, duplicate=0.05, reorder=0.2, seed=seed))
        return faults

    first = passed(made())
    times = Counter(first)
    assert 330 < 4000 - len(times) < 470
    assert 100 < sum(n == 2 for n in times.values()) < 260
    assert set(times.values()) == {1, 2}
    overtaken = sum(a > b for a, b in pairwise(first))
    assert 450 < overtaken < 900
    assert passed(made()) == first
    assert passed(made(6)) != first
    assert passed(made(), job=2) != first
    # In other batches the same.
    faults, other = made(), []
    for one in rows(4000):
        other += [data for _, data in faults.passing(TO_SWITCH, 1, [one], WHERE, 0)]
    other += [late.datagram for late in faults.due(HELD_NS + 1)]
    assert other == first


def test_a_rule_of_a_job_comes_before_the_rule_of_all() -> None:
    faults = Faults()
    faults.set(TO_SWITCH, None, LinkFault(loss=1.0))
    faults.set(TO_SWITCH, 2, LinkFault())
    faults.set(TO_WORKER, 3, LinkFault(loss=1.0))
    assert faults.passing(TO_SWITCH, 1, rows(9), WHERE, 0) == []
    assert len(faults.passing(TO_SWITCH, 2, rows(9), WHERE, 0)) == 9
    assert len(faults.passing(TO_WORKER, 1, rows(9), WHERE, 0)) == 9
    assert faults.active == {TO_SWITCH, TO_WORKER}
    assert [one["lost"] for one in faults.counters()] == [9]
    faults.forget(3)
    faults.set(TO_SWITCH, None, LinkFault())
    faults.set(TO_SWITCH, 2, LinkFault())
    assert faults.active == set()
    assert len(faults.passing(TO_SWITCH, 1, rows(9), WHERE, 0)) == 9


def test_late_datagrams_come_when_they_are_due() -> None:
    faults = Faults()
    faults.set(TO_SWITCH, 1, LinkFault(delay_s=0.002))
    assert faults.passing(TO_SWITCH, 1, rows(3), WHERE, 1_000_000) == []
    assert faults.next_ns() == 3_000_000
    assert faults.due(2_999_999) == []
    assert [late.datagram for late in faults.due(3_000_000)] == rows(3)
    assert faults.next_ns() is None
    # What is held back does not wait for ever, nor when its rule is taken away.
    faults.set(TO_SWITCH, 1, LinkFault(reorder=1.0))
    assert faults.passing(TO_SWITCH, 1, rows(1), WHERE, 0) == []
    assert faults.next_ns() == HELD_NS
    faults.set(TO_SWITCH, 1, LinkFault())
    assert [late.datagram for late in faults.due(HELD_NS)] == rows(1)


def test_faults_that_cannot_be_are_refused() -> None:
    with pytest.raises(InputError, match=r"loss is 1.5; it takes a probability from 0 to 1"):
        LinkFault(loss=1.5)
    with pytest.raises(InputError, match="delay_s is 11; it takes 0 to 10 seconds"):
        LinkFault(delay_s=11)
    with pytest.raises(InputError, match="direction 'to_swich' does not exist; did you mean 'to_switch'"):
        Faults().set("to_swich", None, LinkFault())
    assert len(DIRECTIONS) == 4


def test_an_address_belongs_to_one_job_and_a_rank_to_one_address() -> None:
    members, options, token = Members(16), preset(**OPTIONS), bytes.fromhex(TOKEN)
    assert members.add(1, "a", 64, options, token)
    assert not members.add(1, "a", 64, options, token)
    assert members.add(2, "b", 2, options, token[::-1])
    one, other = ("h", 1), ("h", 2)
    assert members.admit(one, Hello(1, 1, token)) is members.jobs[1]
    assert members.admit(one, Hello(1, bit_of(63), token)) is members.jobs[1]
    assert members.jobs[1].greeted == 2
    assert members.admit(other, Hello(1, 1, token)) is members.jobs[1]  # the rank has moved
    assert members.jobs[1].addresses == {one: bit_of(63), other: 1}
    assert members.admit(one, Hello(2, 1, token)) is None  # the secret of another job
    assert members.admit(one, Hello(2, 2, token[::-1])) is members.jobs[2]  # the address has another job
    assert members.jobs[1].addresses == {other: 1}
    assert members.admit(other, Hello(1, 0, token)) is None
    members.remove(2)
    assert members.by_address == {other: members.jobs[1]}
    for what, match in (
        ((1, "a", 63, options, token), "job 1 is registered as 'a' with other values; free it first"),
        ((70_000, "a", 1, options, token), "numbers of jobs are 0 to 65535"),
        ((3, "a", 65, options, token), "65 workers; a job may have 1 to 64"),
        ((3, "a", 2, options, b"1"), "the token has 1 bytes; give 8"),
        ((3, "a", 2, preset("atp"), token), "payload_bytes is 248; packets here have 16"),
    ):
        with pytest.raises(InputError, match=match):
            members.add(*what)


def test_payloads_that_no_packet_has_are_refused() -> None:
    for payload in (8, 14, 65_484):
        with pytest.raises(InputError, match=f"payload of {payload} bytes: it takes a multiple of 4 from 12 to 65480"):
            PacketRows(payload)
    with pytest.raises(InputError, match=r"--server 'tor0' is not HOST:PORT; write e.g. 127.0.0.1:4000"):
        resolve("tor0", "--server")


class Plane:
    """A switch in this process that speaks to nobody, and the answers to requests."""

    def __init__(self, server: bool = True):
        self.sent: list[tuple[Any, bytes]] = []
        self.plane = SwitchPlane(64, 16, self.send, server=SERVER if server else None)
        self.socket = BatchSocket()
        self.operations = Operations("tor0", self.plane, self.socket, "tor0.sock")

    def send(self, address: Any, parts: Any, segment: int) -> int:
        data = b"".join(map(bytes, parts))
        self.sent += [(address, data[at : at + segment]) for at in range(0, len(data), segment)]
        return len(data) // segment

    def ask(self, op: str, **values: Any) -> dict[str, Any]:
        return self.operations.answer(json.dumps({"op": op, **values}).encode())

    def register(self, job: int, **changed: Any) -> dict[str, Any]:
        options = {**OPTIONS, **changed}
        return self.ask("register", job=job, name=f"j{job}", expected_workers=2, options=options, token=TOKEN)

    def packets(self, **fields: Any) -> bytes:
        count = max(len(np.atleast_1d(value)) for value in fields.values())
        packets, values = header.make_packets(count, 4)
        for name, value in fields.items():
            packets[name] = value
        out = np.zeros((count, 40), np.uint8)
        header.encode(packets, values, count, out)
        return out.tobytes()


@pytest.fixture
def switch() -> Iterator[Plane]:
    made = Plane()
    yield made
    made.socket.close()


def test_requests_that_cannot_be_carried_out_say_why(switch: Plane) -> None:
    assert switch.register(1) == switch.register(1) == {"ok": True}
    assert switch.ask("region", job=1, offset=0, size=8, epoch=0) == {"ok": True}
    for answer, error in (
        (switch.operations.answer(b"{"), "Expecting property name"),
        (switch.operations.answer(b"[1]"), "a request is a JSON object with op, not list"),
        (switch.ask("regoin"), "op 'regoin' does not exist; did you mean 'region'?"),
        (switch.ask("free"), "op 'free': job is missing; it takes a whole number"),
        (switch.ask("free", job="x"), "op 'free': job is 'x'; it takes a whole number"),
        (switch.ask("free", job=7), "job 7 is not registered here; registered are: 1"),
        (switch.ask("fault", direction="to_switch", loss="much"), "op 'fault': loss is 'much'; it takes a number"),
        (switch.ask("region", job=1, offset=60, size=8, epoch=1), "8 aggregators from 60 on; the switch has 64"),
        (switch.ask("region", job=1, offset=0, size=1, epoch=1), "1 dedicated slots; a job needs 2 or more"),
        (switch.ask("region", job=1, offset=0, size=8, epoch=1, mode="shared_hash"), "registered with dedicated"),
        (switch.ask("priority", job=1, prio=256), "priority 256; it takes 0 to 255"),
        (switch.register(2, protocol="udp"), "job 2: protocol 'udp' does not exist"),
        (switch.register(2, windw=4), "job 2: protocol switchml: option 'windw' does not exist"),
        (switch.ask("register", job=2), "op 'register': expected_workers is missing"),
        (switch.ask("register", job=2, expected_workers=1), "options are None; they take an object with protocol"),
        (switch.ask("register", job=2, token="xy"), "job 2: token 'xy' is not hexadecimal"),
        (switch.register(2, protocol=["atp"]), "they take an object with protocol"),
        (switch.register(2, rto_s=1e300), "rto_s is 1e+300; it takes 1e-09 to 1e+06"),
        (switch.ask("drain", job=1, epoch=10**30), "epoch is an integer of 31 digits; it takes a number below 2^62"),
        (switch.ask("free", job=10**400), "job is an integer of 401 digits; it takes a number below 2^62"),
        (switch.operations.answer(b'{"op": "free", "job": ' + b"9" * 9_999 + b"}"), "Exceeds the limit"),
        (switch.operations.answer(b"[" * 60_000), "the request is nested too deeply"),
    ):  # fmt: skip
        assert not answer["ok"]
        assert error in answer["error"]
    alone = Plane(server=False)
    assert "needs a server for what the switch does not complete" in alone.register(1, protocol="atp")["error"]
    alone.socket.close()
    server = ServerPlane(16, 8, 1, 0, switch.send)
    asked = Operations("ps", server, switch.socket, "ps.sock")
    options = {**OPTIONS, "protocol": "atp", "window": 8}

    def register(job: int, **changed: Any) -> str:
        request = {"op": "register", "job": job, "expected_workers": 2, "token": TOKEN}
        return str(asked.answer(json.dumps({**request, "options": {**options, **changed}}).encode()).get("error"))

    assert register(1) == "None"
    assert register(2) == "job 2: all 1 places for jobs are taken; free one first"
    assert "window of 9 packets; this server keeps results for windows up to 8" in register(2, window=9)
    assert "protocol switchml needs no server" in register(2, protocol="switchml")
    assert "this is a server, which has no aggregators" in asked.answer(b'{"op": "drain"}')["error"]
    assert asked.ready() == {"server": "ps", "data": list(switch.socket.address), "control": "ps.sock"}


def test_results_of_several_jobs_in_one_batch_go_to_their_own_workers(switch: Plane) -> None:
    for job in (1, 2, 3):
        switch.register(job, protocol="atp")
        for rank in range(2):
            hello = pack(Hello(job, 1 << rank, bytes.fromhex(TOKEN)))
            switch.plane.take(("h", 10 * job + rank), hello, len(hello), 0)
    switch.ask("free", job=3)
    switch.sent.clear()
    data = switch.packets(job=[1, 2, 1, 3, 9], seq=[5, 6, 7, 8, 9], type=header.RESULT, bitmap=3, index=-1)
    switch.plane.take(SERVER, data, 40, 0)
    assert {(address, int.from_bytes(one[4:8], "big")) for address, one in switch.sent} == {
        (("h", 10 * job + rank), seq) for job, seq in ((1, 5), (2, 6), (1, 7)) for rank in range(2)
    }
    assert len(switch.sent) == 6
    assert switch.plane.dropped.foreign == 2
    # A worker may send neither results nor the bits of others.
    for fields in ({"type": header.RESULT, "bitmap": 1}, {"type": header.EVICT, "bitmap": 1}, {"bitmap": 3}):
        switch.plane.take(("h", 10), switch.packets(job=[1], seq=[1], index=-1, **fields), 40, 0)
    assert switch.plane.dropped.malformed == 3
    assert len(switch.sent) == 6


def test_the_switch_introduces_itself_to_the_server_until_it_is_heard_of(switch: Plane) -> None:
    switch.register(1, protocol="atp")
    switch.register(2)
    hello = pack(Hello(1, 0, bytes.fromhex(TOKEN)))
    for now in range(0, 200_000_000, 25_000_000):
        switch.plane.tend(now)
    assert switch.sent == [(SERVER, hello)] * 4
    switch.plane.take(SERVER, hello, len(hello), 200_000_000)
    assert switch.ask("statistics", job=1)["jobs"][0]["connected"]
    switch.sent.clear()
    for now in range(200_000_000, 700_000_000, 25_000_000):
        switch.plane.tend(now)
    assert len(switch.sent) == 2


def test_a_server_forgets_a_switch_that_serves_no_job_any_more(switch: Plane) -> None:
    server = ServerPlane(16, 8, 2, 0, switch.send)
    for job in (1, 2):
        server.register(job, "one", 2, preset("atp", payload_bytes=16, window=8), bytes.fromhex(TOKEN))
    for port in (1, 2, 3):  # a switch that restarts comes from another port
        for job in (1, 2):
            hello = pack(Hello(job, 0, bytes.fromhex(TOKEN)))
            server.take(("s", port), hello, len(hello), 0)
            assert set(server._rows_of) == ({("s", port - 1), ("s", port)} if job == 1 and port > 1 else {("s", port)})
    server.free(1)
    assert set(server._rows_of) == {("s", 3)}
    server.free(2)
    assert server._rows_of == {}


def test_a_sweep_goes_on_where_it_had_no_more_room(switch: Plane) -> None:
    plane = SwitchPlane(40_000, 16, switch.send, server=SERVER)
    plane.register(1, "one", 2, preset("atp", payload_bytes=16), bytes.fromhex(TOKEN))
    plane.region(1, 0, 40_000, 0)
    hello = pack(Hello(1, 1, bytes.fromhex(TOKEN)))
    plane.take(WHERE, hello, len(hello), 0)
    for first in range(0, 8000, 1000):
        seqs = np.arange(first, first + 1000)
        plane.take(WHERE, switch.packets(job=1, seq=seqs, index=5 * seqs, bitmap=1), 40, first)
    assert plane.memory.held == 8000 > 2 * plane.rows.most
    switch.sent.clear()
    plane.sweep(7000, 1500)
    assert plane.memory.held == 2000
    plane.sweep(8600, 1500, 39_000, 1000)
    assert plane.memory.held == 2000 - 200
    assert sorted(int.from_bytes(one[4:8], "big") for _, one in switch.sent) == [*range(6000), *range(7800, 8000)]


def test_epochs_that_are_left_out_leave_no_former_region(switch: Plane) -> None:
    switch.register(1)
    hello = pack(Hello(1, 1, bytes.fromhex(TOKEN)))
    switch.plane.take(WHERE, hello, len(hello), 0)
    for epoch, offset in ((4, 0), (5, 8), (8, 16)):
        assert switch.ask("region", job=1, offset=offset, size=8, epoch=epoch)["ok"]
        fields = {"seq": [epoch], "index": offset, "bitmap": 1, "epoch": epoch}
        switch.plane.take(WHERE, switch.packets(job=[1], **fields), 40, 0)
    # Those of epoch 4 and 5 are dropped and may not come again; another job may have their memory.
    assert switch.ask("statistics", job=1)["jobs"][0]["regions"] == {"8": [16, 8]}
    assert switch.plane.memory.held == 1
    switch.plane.take(WHERE, switch.packets(job=[1], seq=[9], index=8, bitmap=1, epoch=5), 40, 0)
    assert switch.ask("statistics", job=1)["jobs"][0]["outside"] == 1
    switch.register(2)
    assert switch.ask("region", job=2, offset=0, size=16, epoch=0) == {"ok": True}
    assert switch.ask("free", job=1) == {"ok": True, "held": 1}
    assert switch.plane.memory.held == 0


def test_the_priority_of_a_job_takes_the_place_of_what_its_packets_carry(switch: Plane) -> None:
    switch.register(1)
    switch.ask("region", job=1, offset=0, size=8, epoch=0)
    hello = pack(Hello(1, 1, bytes.fromhex(TOKEN)))
    switch.plane.take(WHERE, hello, len(hello), 0)
    for seq, prio in ((0, 200), (1, -1)):
        assert switch.ask("priority", job=1, prio=prio)["ok"]
        switch.plane.take(WHERE, switch.packets(job=[1], seq=[seq], index=seq, bitmap=1, prio=7), 40, 0)
    assert switch.plane.switch.table["prio"][:2].tolist() == [200, 7]
    assert switch.ask("drain", job=1) == {"ok": True, "held": 0}
    assert switch.ask("status")["held"] == 0


def test_a_control_socket_answers_whole_lines_and_drops_who_sends_too_much(tmp_path: Path, switch: Plane) -> None:
    path = str(tmp_path / "s.sock")
    with selectors.DefaultSelector() as selector:
        control = ControlSocket(path, selector, switch.operations.answer)
        stop = threading.Event()

        def serve() -> None:
            while not stop.is_set():
                for key, mask in selector.select(0.02):
                    key.data(mask)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with SwitchControl(path) as client:
                assert client.status()["switch"] == "tor0"
                with pytest.raises(InputError, match="job 5 is not registered here; registered are: none"):
                    client.free(5)
            with socket.socket(socket.AF_UNIX) as raw:
                raw.settimeout(5)
                raw.connect(path)
                raw.sendall(b'{"op": "status"}\n{"op": "st')
                raw.sendall(b'atus"}\n')
                lines = raw.makefile("rb")
                assert json.loads(lines.readline())["ok"]
                assert json.loads(lines.readline())["ok"]
                with pytest.raises(OSError, match=r"Broken pipe|Connection reset"):
                    raw.sendall(b"x" * (100 << 16))
                lines.close()
            with pytest.raises(InputError, match=r"File name too long|AF_UNIX path too long"):
                ControlSocket(str(tmp_path / ("x" * 120)), selector, switch.operations.answer)
        finally:
            stop.set()
            thread.join()
            control.close()
    assert not Path(path).exists()
    with pytest.raises(FileNotFoundError):
        SwitchControl(path).status()
