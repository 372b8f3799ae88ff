"""The client of a control socket: a method for each request to a running switch or aggregation server.

Requests and answers are JSON, one a line: {"op": "region", "job": 7, ...} -> {"ok": true, ...}, or {"ok": false,
"error": "..."}. The owner of the socket may open it and send any request. Start at `SwitchControl`.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from plait.core.errors import InputError

#: Most bytes of a request.
MOST_REQUEST = 1 << 16


class SwitchControl:
    """A connection to a control socket. All methods raise `InputError` with the reason of a refusal, and `OSError`.

    A connection that broke since the last request, as when the process was restarted, is opened again.
    """

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 5.0) -> None:
        """Nothing is opened yet; `timeout_s` for each request."""
        self.path, self.timeout_s = os.fspath(path), timeout_s
        self._socket: socket.socket | None = None
        self._rest = b""

    def __enter__(self) -> SwitchControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; a later request opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def request(self, op: str, **values: Any) -> dict[str, Any]:
        """Make a request; returns the answer without `ok`."""
        line = json.dumps({"op": op, **{name: value for name, value in values.items() if value is not None}})
        reused = self._socket is not None
        try:
            answer = self._exchange(line.encode() + b"\n")
        except OSError as error:
            self.close()
            if reused and isinstance(error, ConnectionError):
                return self.request(op, **values)
            raise
        if not answer.pop("ok", False):
            raise InputError(str(answer.get("error", "refused without a reason")))
        return answer

    def _exchange(self, line: bytes) -> dict[str, Any]:
        if self._socket is None:
            self._rest = b""
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            self._socket.settimeout(self.timeout_s)
            self._socket.connect(self.path)
        self._socket.sendall(line)
        while b"\n" not in self._rest:
            part = self._socket.recv(1 << 16)
            if not part:
                raise ConnectionResetError(f"{self.path}: the process closed the connection")
            self._rest += part
        first, _, self._rest = self._rest.partition(b"\n")
        found: dict[str, Any] = json.loads(first)
        return found

    def status(self) -> dict[str, Any]:
        """Description of the process: name, kind, addresses, memory, jobs in short."""
        return self.request("status")

    def register(
        self, job: int, name: str, expected_workers: int, options: Mapping[str, Any], token: str
    ) -> dict[str, Any]:
        """Make a job known; again with the same values does nothing.

        `options` as for `plait.network.protocol.options.preset`, with `protocol`; `token`: 16 hexadecimal digits.
        """
        values = {"name": name, "expected_workers": expected_workers, "options": dict(options), "token": token}
        return self.request("register", job=job, **values)

    def free(self, job: int) -> dict[str, Any]:
        """Forget a job and drop everything it holds; `held` of the answer is that amount."""
        return self.request("free", job=job)

    def region(
        self, job: int, offset: int, size: int, epoch: int, mode: str | None = None, window: int | None = None
    ) -> dict[str, Any]:
        """Give a job memory for packets of an epoch; packets of the previous epoch keep theirs.

        `mode`, if given, is checked: how the options of the job choose aggregators. `window`: packets that a worker may
        have outstanding from then on; None: as in the options.
        """
        return self.request("region", job=job, offset=offset, size=size, epoch=epoch, mode=mode, window=window)

    def priority(self, job: int, prio: int | None) -> dict[str, Any]:
        """Give packets of a job this priority, 0 to 255; None: the priority in the packets."""
        return self.request("priority", job=job, prio=-1 if prio is None else prio)

    def statistics(self, job: int | None = None) -> dict[str, Any]:
        """Counters of the process and of each job, or of one."""
        return self.request("statistics", job=job)

    def drain(self, job: int | None = None, epoch: int | None = None) -> dict[str, Any]:
        """Take back the memory of an epoch, of a job, or of all jobs; `held` of the answer: what they still hold."""
        return self.request("drain", job=job, epoch=epoch)

    def fault(
        self, direction: str, *, job: int | None = None, loss: float = 0.0, delay_s: float = 0.0,
        duplicate: float = 0.0, reorder: float = 0.0, seed: int = 0,
    ) -> dict[str, Any]:  # fmt: skip
        """Let datagrams be lost, late, doubled and overtaken; without values, no more.

        `direction`: to_switch, to_worker, to_server or from_server; `job`: None for all.
        """
        values = {"loss": loss, "delay_s": delay_s, "duplicate": duplicate, "reorder": reorder, "seed": seed}
        return self.request("fault", direction=direction, job=job, **values)

    def measure(self) -> dict[str, Any]:
        """Measure processor time by stage from here on; `statistics` has it."""
        return self.request("measure")

    def stop(self) -> dict[str, Any]:
        """End the process."""
        return self.request("stop")
