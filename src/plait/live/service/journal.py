"""The service's own log: one JSON object a line, in service.log and, if there is one, on the terminal."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path

BYTES, FILES = 10_000_000, 3
#: Lines of one kind at most in so many seconds, without and with a traceback.
MOST, TRACEBACKS, EACH_S = 1000, 20, 10.0


class JsonLines(logging.Formatter):
    """Time, level, where, what, and the facts of `extra={"facts": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "from": record.name,
            "what": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Bounded(logging.Filter):
    """Passes so many lines of a kind in some seconds, then one with the number of the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._since: dict[tuple[str, int, str], float] = {}
        self._seen: Counter[tuple[str, int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written; a kind is a logger, a level and a text without its values."""
        most = TRACEBACKS if record.exc_info else MOST
        key, now = (record.name, record.levelno, str(record.msg)[:100]), self._clock()
        with self._lock:
            if now - self._since.get(key, -math.inf) >= EACH_S:
                left_out = self._seen[key] - most
                self._since[key], self._seen[key] = now, 0
                if left_out > 0:
                    record.facts = {**getattr(record, "facts", {}), "left_out_before": left_out}
                if len(self._since) > 1000:  # kinds without end are no kinds
                    self._since.clear()
                    self._seen.clear()
            self._seen[key] += 1
            return self._seen[key] <= most


def begin_log(path: Path) -> None:
    """Everything from now on goes to this file."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    handlers: list[logging.Handler] = [RotatingFileHandler(path, maxBytes=BYTES, backupCount=FILES)]
    if sys.stderr is not None and sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs the address of each request, with its secrets
    for handler in handlers:
        handler.addFilter(Bounded())  # each its own: a record that two handlers count is counted twice
        handler.setFormatter(JsonLines())
        root.addHandler(handler)
