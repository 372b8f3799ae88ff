"""The side of a control socket that answers: a Unix socket for its owner alone, in the loop of the process.

Start at `ControlSocket`.
"""

from __future__ import annotations

import errno
import json
import os
import selectors
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from plait.core.errors import InputError
from plait.live.dataplane.control import MOST_REQUEST

#: Most connections at once, and most bytes of answers that wait for one of them.
MOST_CONNECTIONS, MOST_WAITING = 32, 1 << 24


class ControlSocket:
    """Listens at a path, which is removed again by `close`; never blocks."""

    def __init__(self, path: str, selector: selectors.BaseSelector, answer: Callable[[bytes], dict[str, Any]]) -> None:
        """Listen. Raises `InputError` if another process listens there or the path cannot be had."""
        self.path, self._selector, self._answer = path, selector, answer
        self._buffers: dict[socket.socket, tuple[bytearray, bytearray]] = {}
        self._listener = _listen(path)
        self._inode = os.stat(path).st_ino
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def _accept(self, _: int) -> None:
        with suppress(BlockingIOError, ConnectionError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            if len(self._buffers) >= MOST_CONNECTIONS:
                connection.close()
                return
            self._buffers[connection] = bytearray(), bytearray()
            self._selector.register(connection, selectors.EVENT_READ, lambda mask: self._serve(connection, mask))

    def _serve(self, connection: socket.socket, mask: int) -> None:
        """Read, answer all whole lines, write as much as goes."""
        asked, answers = self._buffers[connection]
        try:
            if mask & selectors.EVENT_READ:
                part = connection.recv(1 << 16)
                if not part:
                    return self._drop(connection)
                asked += part
                while (end := asked.find(b"\n")) >= 0:
                    line = bytes(asked[:end])
                    del asked[: end + 1]
                    answers += json.dumps(self._answer(line)).encode() + b"\n"
            if answers:
                del answers[: connection.send(answers)]
        except BlockingIOError:
            pass
        except OSError:
            return self._drop(connection)
        if len(asked) > MOST_REQUEST or len(answers) > MOST_WAITING:
            return self._drop(connection)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if answers else 0)
        self._selector.modify(connection, events, self._selector.get_key(connection).data)
        return None

    def _drop(self, connection: socket.socket) -> None:
        del self._buffers[connection]
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close all connections, and remove the socket file unless another process has put its own there."""
        for connection in list(self._buffers):
            self._drop(connection)
        self._selector.unregister(self._listener)
        self._listener.close()
        with suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)


def _listen(path: str) -> socket.socket:
    """A listening socket with mode 0600; it replaces one that an ended process left."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    made.setblocking(False)
    before = os.umask(0o177)
    try:
        for again in (True, False):
            try:
                made.bind(path)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE or not again or _answers(path):
                    raise
                os.unlink(path)
        made.listen(16)
    except (OSError, ValueError) as error:
        made.close()
        taken = getattr(error, "errno", 0) == errno.EADDRINUSE
        reason = "another process listens there" if taken else str(error)
        raise InputError(f"control socket {path}: {reason}; choose another path with --control") from error
    finally:
        os.umask(before)
    return made


def _answers(path: str) -> bool:
    """Whether a process accepts connections at a path, or something is there that is no socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.settimeout(1)
            probe.connect(path)
        except ConnectionRefusedError:
            import stat

            return not stat.S_ISSOCK(os.stat(path).st_mode)
        except OSError:
            return True
        return True
