"""`plait logs --tail`: whole lines, read from the end of a log as agents answer."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from plait.cli.commands import jobs
from plait.live.agent.logs import read_part
from plait.live.agent.processes.runner import LogWriter
from plait.live.api.jobs import LogPart
from sample_answers import sample


class Service:
    """Answers about one log in a folder."""

    def __init__(self, folder: Path, most: int) -> None:
        self.folder, self.most = folder, most

    def logs(
        self, job: str, *, rank: int = 0, offset: int = 0, limit: int = 65_536, epoch: int | None = None
    ) -> LogPart:
        """A part, of at most `most` bytes."""
        return sample(LogPart, **asdict(read_part(self.folder, offset, min(limit, self.most))))


@pytest.mark.parametrize("most", [1000, 1001, 1002, 1 << 20])
def test_the_last_lines_are_whole_characters_and_lines(tmp_path: Path, monkeypatch: Any, most: int) -> None:
    monkeypatch.setattr(jobs, "LOG_CHUNK", 512)
    text = "".join(f"line {i} {'ä€😀' * (i % 40)}\n" for i in range(400)) + "without an end ä"
    LogWriter(str(tmp_path), 10_000_000).write(text.encode())
    service: Any = Service(tmp_path, most)
    for count in (1, 2, 20, 300, 1000):
        found = jobs.last_lines(service, "j-1", 0, count)
        assert found.text == "\n".join(text.split("\n")[-count:])
        assert text.encode()[found.offset :].decode() == found.text
        assert found.next == found.size == len(text.encode())


def test_lines_behind_a_gap_and_an_empty_log(tmp_path: Path) -> None:
    writer = LogWriter(str(tmp_path), 4096)
    service: Any = Service(tmp_path, 1 << 20)
    assert jobs.last_lines(service, "j-1", 0, 3).text == ""
    for i in range(3000):
        writer.write(f"{i:06d}\n".encode())
    assert jobs.last_lines(service, "j-1", 0, 2).text == "002998\n002999\n"
    everything = jobs.last_lines(service, "j-1", 0, 3000).text.splitlines()
    assert everything[0] == "000000"
    assert sum(line.startswith("[plait: ") for line in everything) == 1
