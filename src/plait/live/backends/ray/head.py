"""Requests to the head of a Ray cluster: through a process that talks to Ray, and with an end to every wait.

Ray's own client waits long for a head that is dead, and cannot be stopped while it does; `bridge` is what
runs in that process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from plait.core.errors import PlaitError
from plait.live.layout import make_private

#: Most seconds for a connection to the head, and for the bridge to come up.
PROBE_S, CONNECT_S = 3.0, 30.0


class NoHead(PlaitError):
    """The Ray cluster does not answer."""


def probe(host: str, port: int) -> None:
    """Whether anything listens there; raises NoHead if not."""
    try:
        socket.create_connection((host, port), timeout=PROBE_S).close()
    except OSError as error:
        raise NoHead(
            f"no head of a Ray cluster answers at {host}:{port} ({error}); is it up? One on this machine is "
            "started with: plait ray up"
        ) from None


class Bridge:
    """The process that talks to Ray; every wait has an end."""

    def __init__(self, address: str, namespace: str, token: str, folder: Path) -> None:
        """Started, and connected; raises NoHead if it is not in time. Its log is in the folder."""
        environment = dict(os.environ)
        if token:
            environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}
        with open(make_private(folder) / "bridge.log", "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "plait.live.backends.ray.bridge", address, namespace],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        self._address, self._log = address, folder / "bridge.log"
        self._buffer = b""
        try:
            self._read(CONNECT_S)
        except NoHead:
            self.kill()
            raise

    def ask(self, request: dict[str, Any], wait_s: float) -> dict[str, Any]:
        """The answer; raises NoHead if there is none in time, or Ray could not do it."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise NoHead(f"the connection to the Ray cluster at {self._address} is broken ({error})") from None
        return self._read(wait_s)

    def _read(self, wait_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        fd, until = self._process.stdout.fileno(), time.monotonic() + wait_s
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                raise NoHead(f"the Ray cluster at {self._address} did not answer in {wait_s:g} s; see {self._log}")
            part = os.read(fd, 1 << 16)
            if not part:
                raise NoHead(f"the connection to the Ray cluster at {self._address} ended; see {self._log}")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NoHead(
                f"the Ray cluster at {self._address} refused: {answer['error']}; with token authentication, give "
                "-o token-file=PATH or set RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH"
            )
        return answer

    def kill(self) -> None:
        """End it at once; it has nothing to put in order."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process.kill()
        self._process.wait()
