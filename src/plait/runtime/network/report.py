"""A rank's report about in-network aggregation for its agent: one small file, replaced at most once a second.

    write_report(run_dir, report)        # in the rank, into its own folder (PLAIT_RUN_DIR)
    read_report(run_dir)                 # in the agent; None if there is none

All numbers count from the start of the process, so the newest report is complete.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from plait.core.codec.values import Codec, CodecError
from plait.core.files import replace_file

#: Name of the file in the folder of a rank.
FILE = "network_report.json"
#: Events that a report keeps.
MOST_EVENTS = 20


@dataclass(frozen=True)
class NetworkEvent:
    """A change worth telling the user: `time` in seconds since 1970."""

    time: float
    text: str


@dataclass(frozen=True)
class NetworkReport:
    """Counters of one rank.

    mode           "aggregation" or "gloo": the way of the last bucket; `reason`: why by gloo
    grant_version  of the newest grant that all ranks have: none of them uses an older one; -1 for none
    switch_name    of the grant in use
    numbers        of packets that the job has used under its number on the wire, of 2^32
    aggregated     buckets that the network added up; `aggregated_bytes`: of gradients in them
    fallback       reason -> buckets that went by gloo for it; `fallback_bytes`: of gradients in them
    sent, resent   packets sent for the first time, and sent again
    results        packets with sums that were used; `collided`: the ones with a packet that found its
                   aggregator occupied
    timeouts       of the timers of packets
    *_s            seconds in: agreement before a bucket, fixed point and packing, sending and receiving (with waiting
                   for the network), unpacking, agreement after a bucket, gloo
    events         the newest ones, oldest first
    """

    mode: str = "gloo"
    reason: str = ""
    grant_version: int = -1
    switch_name: str = ""
    aggregated: int = 0
    aggregated_bytes: int = 0
    fallback: Mapping[str, int] = field(default_factory=dict)
    fallback_bytes: int = 0
    sent: int = 0
    resent: int = 0
    results: int = 0
    collided: int = 0
    timeouts: int = 0
    numbers: int = 0
    agreement_s: float = 0.0
    quantise_s: float = 0.0
    transfer_s: float = 0.0
    decode_s: float = 0.0
    success_s: float = 0.0
    gloo_s: float = 0.0
    events: Sequence[NetworkEvent] = ()

    @property
    def fallback_share(self) -> float:
        """Fraction of all bytes of gradients that went by gloo; 0 before there are any."""
        total = self.aggregated_bytes + self.fallback_bytes
        return self.fallback_bytes / total if total else 0.0

    @property
    def collided_share(self) -> float:
        return self.collided / self.results if self.results else 0.0

    @property
    def resend_share(self) -> float:
        """Fraction of all packets sent that were sent again."""
        total = self.sent + self.resent
        return self.resent / total if total else 0.0


_CODEC = Codec(strict=True)


def write_report(folder: str | os.PathLike[str], report: NetworkReport) -> None:
    """Replace the report in the folder of a rank; a full disk or a missing folder does not stop a training."""
    with contextlib.suppress(OSError):
        replace_file(Path(folder) / FILE, json.dumps(_CODEC.encode(report)))


def read_report(folder: str | os.PathLike[str]) -> NetworkReport | None:
    """The newest report in the folder of a rank; None if there is none, or none that can be read."""
    try:
        return report_of(json.loads((Path(folder) / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def report_of(data: object) -> NetworkReport | None:
    """The report in a JSON object; None if it is none."""
    try:
        return _CODEC.decode(NetworkReport, data)
    except CodecError:
        return None
