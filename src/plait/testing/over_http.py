"""Simulated agents that talk to a real service: many in one thread, each with a connection of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from urllib.parse import urlsplit

from plait.live.agent.link import PATH
from plait.live.protocol.wire import Assignment, Observed, decode, encode
from plait.testing.agents import SimulatedAgent


class HttpLink:
    """A connection of an agent to a service, kept open. An answer that is no 200 is a `ConnectionError`."""

    def __init__(self, url: str, token: str) -> None:
        """Store the address; connections open later."""
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._head = f"POST {PATH} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> HttpLink:
        self._streams = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._streams is not None:
            self._streams[1].close()
            await self._streams[1].wait_closed()

    async def send(self, body: bytes) -> bytes:
        """Send one request and return the body of the answer."""
        assert self._streams is not None, "use it as a context manager"
        reader, writer = self._streams
        writer.write(f"{self._head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        sizes = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
        data = await reader.readexactly(sizes[0] if sizes else 0)
        if lines[0].split()[1] != "200":
            raise ConnectionError(f"{lines[0]}: {data[:200].decode(errors='replace')}")
        return data

    async def ask(self, report: Observed) -> Assignment:
        """The assignment in answer to the report `report`."""
        return decode(Assignment, await self.send(encode(report)))


async def live(
    agent: SimulatedAgent, link: HttpLink, until: Callable[[], bool], *, wait_s: float = 1.0,
    clock: Callable[[], float] = time.monotonic,
) -> int:  # fmt: skip
    """Run `agent` over `link` as a real agent until `until` is true; returns the number of requests."""
    asked = 0
    async with link:
        while not until():
            report = agent.observe(clock(), wait_s)
            agent.obey(await link.ask(report), report, clock())
            asked += 1
    return asked
