"""The service's own log: one JSON object a line, in service.log and, if somebody looks, on the terminal."""

from __future__ import annotations

import json
import logging
import os
import sys
from logging.handlers import RotatingFileHandler
from pathlib import Path

BYTES, FILES = 10_000_000, 3


class JsonLines(logging.Formatter):
    """Time, level, where, what, and the facts of `extra={"facts": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
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


def begin_log(path: Path) -> None:
    """Everything from now on goes to this file."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    handlers: list[logging.Handler] = [RotatingFileHandler(path, maxBytes=BYTES, backupCount=FILES)]
    if sys.stderr is not None and sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(JsonLines())
        root.addHandler(handler)
    logging.getLogger("alembic").setLevel(logging.WARNING)
