"""The event log: one JSON line about the run, then one for each event with the commands it caused.

    {"plait_log": 1, "policy": "srsf", "cluster": [...], ...}
    {"event": {"type": "JobSubmitted", ...}, "commands": [...]}

The same inputs give the same bytes. A log cut off in the middle of a line reads up to the line before.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from plait.control import messages
from plait.core.cluster import Cluster
from plait.core.errors import InputError

VERSION = 1


class EventLog:
    """A record that writes to a file; use it as a context manager.

    The file appears under its name only when the run went well: until then it is `<name>.part`. A name that
    ends in `.gz` is compressed.
    """

    def __init__(self, path: str | Path, *, policy: str, cluster: Cluster, **about: Any) -> None:
        """`about` goes to the header: trace, seed, world and whatever else identifies the run."""
        self.path = Path(path)
        self._part = self.path.with_name(self.path.name + ".part")
        header = {"plait_log": VERSION, "policy": policy, "cluster": cluster_to_json(cluster), **about}
        if cluster.network is not None:
            header["network"] = messages.network_to_json(cluster.network)
        try:
            self._file: IO[bytes] = open(self._part, "wb")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise InputError(f"cannot write the event log {path}: {error.strerror}") from error
        self._out: IO[bytes] = self._file
        if self.path.suffix == ".gz":
            # No name and no time inside, so that the same run gives the same bytes.
            self._out = gzip.GzipFile(filename="", mode="wb", fileobj=self._file, mtime=0)  # type: ignore[assignment]
        self._write(header)

    def __call__(self, event: messages.Event, commands: Sequence[messages.Command]) -> None:
        self._write({"event": messages.to_json(event), "commands": [messages.to_json(c) for c in commands]})

    def _write(self, data: Mapping[str, Any]) -> None:
        self._out.write(json.dumps(data, separators=(",", ":"), allow_nan=False).encode() + b"\n")

    def close(self, *, keep: bool = True) -> None:
        """Finish the file, or drop it."""
        if self._out is not self._file:
            self._out.close()
        self._file.close()
        if keep:
            os.replace(self._part, self.path)
        else:
            self._part.unlink(missing_ok=True)

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Keep the log of a run that went well."""
        self.close(keep=kind is None)


def cluster_to_json(cluster: Cluster) -> list[dict[str, Any]]:
    """The nodes of a cluster as JSON objects."""
    return [messages.node_to_json(node) for node in cluster.nodes]


@dataclass(frozen=True)
class LogStep:
    """One line of a log: its place, the event and the commands."""

    line: int
    event: messages.Event
    commands: tuple[messages.Command, ...]


@dataclass(frozen=True)
class RecordedRun:
    """A log that was read: its header and its steps."""

    header: Mapping[str, Any]
    steps: tuple[LogStep, ...]

    @property
    def cluster(self) -> Cluster:
        nodes = tuple(messages.node_from_json(node) for node in self.header["cluster"])
        network = self.header.get("network")
        return Cluster(nodes, network=None if network is None else messages.network_from_json(network))


def read_log(path: str | Path) -> RecordedRun:
    """Read a log; raises `InputError` naming file and line for anything that is not one."""
    lines = _lines(path)
    first = next(lines, None)
    if first is None or first[1].get("plait_log") != VERSION:
        raise InputError(f"{path}:1: not a plait event log of version {VERSION}")
    steps = []
    for number, data in lines:
        try:
            commands = tuple(messages.from_json(c) for c in data["commands"])
            steps.append(LogStep(number, messages.from_json(data["event"]), commands))  # type: ignore[arg-type]
        except (KeyError, TypeError, InputError) as error:
            raise InputError(f"{path}:{number}: {error}") from error
    return RecordedRun(first[1], tuple(steps))


def _lines(path: str | Path) -> Iterator[tuple[int, dict[str, Any]]]:
    opener: Any = gzip.open if str(path).endswith(".gz") else open
    try:
        with opener(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith(b"\n"):
                    return  # the writer died in this line
                try:
                    data = json.loads(line)
                except ValueError as error:
                    raise InputError(f"{path}:{number}: not JSON: {error}") from error
                if not isinstance(data, dict):
                    raise InputError(f"{path}:{number}: not a JSON object")
                yield number, data
    except OSError as error:
        raise InputError(f"cannot read the event log {path}: {error.strerror or error}") from error
    except EOFError:
        return  # a compressed log whose writer died
