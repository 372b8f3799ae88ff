"""Batches of datagrams over loopback: the same bytes arrive with and without the kernel's help."""

from collections.abc import Iterator

import pytest

from plait.runtime.network.datagrams import MOST_BYTES, MOST_SEGMENTS, BatchSocket, Datagrams, batches


@pytest.fixture(params=[True, False], ids=["segments", "one by one"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[BatchSocket, BatchSocket]]:
    one, other = (BatchSocket(segments=request.param) for _ in range(2))
    yield one, other
    one.close()
    other.close()


def rows(count: int, size: int, start: int = 0) -> bytes:
    return b"".join(bytes([(start + k) % 256]) * size for k in range(count))


def taken(socket: BatchSocket, found: list[Datagrams]) -> list[bytes]:
    """All datagrams that were received, one by one."""
    out = []
    for one in found:
        data = bytes(socket.buffers[one.slot][: one.length])
        out += [data[at : at + one.segment] for at in range(0, max(1, one.length), one.segment)]
    return out


def everything(socket: BatchSocket, count: int) -> list[bytes]:
    out: list[bytes] = []
    while len(out) < count:
        found = socket.receive(timeout_s=2)
        assert found, f"{len(out)} of {count} datagrams arrived"
        assert {one.address for one in found} <= {found[0].address}
        out += taken(socket, found)
    return out


@pytest.mark.parametrize(("count", "size"), [(1, 32), (5, 272), (62, 1048), (200, 1048), (70, 8216), (3, MOST_BYTES)])
def test_what_is_sent_arrives_in_order(pair: tuple[BatchSocket, BatchSocket], count: int, size: int) -> None:
    one, other = pair
    data = rows(count, size)
    assert one.send(other.address, [data], size) == count
    assert everything(other, count) == [data[at : at + size] for at in range(0, len(data), size)]
    assert one.unsent == 0
    assert other.receive() == []


def test_parts_are_sent_as_one(pair: tuple[BatchSocket, BatchSocket]) -> None:
    one, other = pair
    parts = [rows(1, 100, 1), rows(3, 100, 7), memoryview(rows(2, 100, 9))]
    assert one.send(other.address, parts, 100) == 6
    assert b"".join(everything(other, 6)) == b"".join(bytes(part) for part in parts)
    assert one.sends == (1 if one.sends_segments else 6)


def test_senders_and_sizes_are_kept_apart(pair: tuple[BatchSocket, BatchSocket]) -> None:
    one, other = pair
    third = BatchSocket()
    one.send(other.address, [rows(3, 64)], 64)
    third.send(other.address, [rows(2, 64, 50)], 64)
    one.send(other.address, [rows(1, 96)], 96)
    one.send(other.address, [b""], 1)  # nothing to send
    one.socket.sendto(b"", other.address)
    found: list[tuple[int, int, int]] = []
    while sum(length for length, _, _ in found) < 416 or len(found) < 4:
        found += [(d.length, d.segment, d.packets) for d in other.receive(timeout_s=2)]
    assert found == [(192, 64, 3), (128, 64, 2), (96, 96, 1), (0, 1, 1)]
    third.close()


def test_a_receive_ends_when_all_buffers_are_full(pair: tuple[BatchSocket, BatchSocket]) -> None:
    one, _ = pair
    small = BatchSocket(slots=2)
    for size in (10, 20, 30, 40, 50):
        one.send(small.address, [rows(1, size)], size)
    sizes = [[d.length for d in small.receive(timeout_s=2)] for _ in range(3)]
    assert sizes == [[10, 20], [30, 40], [50]]
    small.close()


def test_batches_hold_what_one_send_may_carry() -> None:
    made = batches([rows(150, 1000)], 1000, MOST_SEGMENTS)
    assert [sum(map(len, batch)) for batch in made] == [64_000, 64_000, 22_000]
    assert [len(batch) for batch in batches([b"12", b"34", b"56"], 2, 2)] == [2, 1]
    with pytest.raises(ValueError, match="5 bytes are no whole number of datagrams of 2"):
        batches([b"12345"], 2, 64)
    with pytest.raises(ValueError, match="65508 bytes: UDP carries 1 to 65507"):
        batches([b""], 65_508, 64)
