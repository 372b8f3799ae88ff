"""Web servers of a service: one for users, and, in a thread of its own, one for agents.

A node loses its lease if its reports are not answered in time, so no user and no stranger may keep the event loop from
them: agents have a listener, an event loop and a limit of connections of their own.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn

from plait.live.service.http.connections import Acceptor, Connection, Connections, counted, room
from plait.live.service.http.gateway import Gateway

#: Grace period of open requests when the service has to end, seconds.
GOODBYE_S = 3
#: With more connections than that agents have half of them, else a quarter: each node needs two.
MANY = 2_000


def shares() -> tuple[int, int]:
    """How many connections users and agents may have open."""
    most = room()
    agents = most // 2 if most > MANY else most // 4
    return most - agents, agents


class Server(uvicorn.Server):
    """A server that calls `ready` when it answers, leaves signals to others, and admits clients while there is room."""

    def __init__(
        self, gateway: Gateway, most: int, certificate: str | None, key: str | None,
        ready: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Answers with `gateway` over `most` connections; with TLS if there are files of a certificate and its key."""
        super().__init__(
            uvicorn.Config(
                gateway, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=False,
                ssl_certfile=certificate, ssl_keyfile=key, timeout_graceful_shutdown=GOODBYE_S, timeout_keep_alive=75,
                ws="none",
            )
        )  # fmt: skip
        self._ready = ready
        self._connections = gateway.connections = Connections(most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the listening sockets."""
        await super().startup(sockets=[])
        kind = counted(self.config.http_protocol_class, self._connections)

        def protocol(one: Connection) -> Any:
            return kind(config=self.config, server_state=self.server_state, app_state={"connection": one})

        self._acceptors = [Acceptor(each, self._connections, protocol, self.config.ssl) for each in sockets or []]
        for acceptor in self._acceptors:
            acceptor.open()
        if not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close them, and answer what is open."""
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)


class AgentServer(threading.Thread):
    """The server of agents, in its thread; `failed` gets what ends it before `stop`."""

    def __init__(self, server: Server, listener: socket.socket, failed: Callable[[BaseException], object]) -> None:
        super().__init__(name="agents", daemon=True)
        self._server, self._listener, self._failed = server, listener, failed

    def run(self) -> None:
        """Serve until stopped."""
        try:
            asyncio.run(self._server._serve(sockets=[self._listener]))
        except BaseException as error:
            self._failed(error)

    def stop(self) -> None:
        """End the server, once open requests are answered."""
        self._server.should_exit = True
