"""The files of a rank about aggregation: its grant, which the agent writes, and its report, which the agent reads."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from plait.core.errors import InputError
from plait.live.protocol.wire import Exchange
from plait.runtime.network import report
from plait.runtime.network.grant import FILE, NetworkGrant, read_grant, write_grant
from plait.runtime.network.report import read_report


class RankFiles:
    """Of one rank, in its folder."""

    def __init__(self, folder: Path) -> None:
        """Nothing is read or written yet."""
        self._folder = folder
        self._version: int | None = None
        self._stamp: tuple[int, int] | None = None
        self._exchange: Exchange | None = None

    @property
    def grant(self) -> Path:
        """Where the grant is."""
        return self._folder / FILE

    def write(self, grant: NetworkGrant) -> None:
        """Write the grant, if it is newer than the present one. Raises `OSError`, `InputError`."""
        if self._version is None:
            self._version = 0
            with contextlib.suppress(OSError, InputError):
                self._version = read_grant(self.grant).version
        if grant.version > self._version:
            write_grant(self.grant, grant)
            self._version = grant.version

    def exchange(self) -> Exchange | None:
        """The rank's last report; None before the first."""
        try:
            found = os.stat(self._folder / report.FILE)
        except OSError:
            return self._exchange
        stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp and (said := read_report(self._folder)) is not None:
            self._stamp = stamp
            seconds = said.agreement_s + said.quantise_s + said.transfer_s + said.decode_s + said.success_s
            self._exchange = Exchange(
                said.mode, said.reason, said.grant_version, float(said.aggregated_bytes), float(said.fallback_bytes),
                seconds + said.gloo_s, said.collided_share, said.resend_share, float(said.timeouts),
                float(said.numbers),
            )  # fmt: skip
        return self._exchange
