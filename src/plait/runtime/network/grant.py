"""The grant file: the switch, and the memory of it, with which the ranks of a job may aggregate their gradients.

An agent writes it into the folder of the attempt and names it in the environment of each rank. A change (another
region, a switch that is back, no grant any more) is the same file with a higher version; ranks look for it between two
buckets, and use it as soon as all of them have found it.

    grant = NetworkGrant(version=1, granted=True, job=7, token=new_token(), n_workers=2, switch=("10.0.0.1", 4000))
    write_grant(folder / FILE, grant)          # in the agent; PLAIT_NETWORK_GRANT=folder/network.json for the ranks
    grants = GrantFile.of(os.environ)          # in a rank; None without the variable
    grants.newest()
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.core.codec.values import Codec
from plait.core.errors import InputError
from plait.core.files import OWNER_ONLY, replace_file

#: Environment variable with the path of the grant file, and the usual name of the file.
VARIABLE, FILE = "PLAIT_NETWORK_GRANT", "network.json"
#: Bytes of the secret with which ranks prove that they belong to a job.
TOKEN_BYTES = 8
#: Numbers of jobs on the wire are below this, ranks of a job at most so many.
MOST_JOBS, MOST_WORKERS = 1 << 16, 64

#: Options of the protocol, in addition to `protocol`, for a software switch: packets that its system calls carry well,
#: and timers above the time for which processes of a busy machine stand still.
SOFTWARE_SWITCH: Mapping[str, Any] = {
    "payload_bytes": 1024,
    "window": 512,
    "rto_s": 0.02,
    "first_rto_s": 0.05,
}

Address = tuple[str, int]


@dataclass(frozen=True)
class NetworkGrant:
    """The current grant of the ranks of a job.

    version      of this file: later ones are higher
    granted      False: gradients go by gloo, and `reason` is why
    job, token   number of the job on the wire, and its secret as 16 hexadecimal digits
    n_workers    ranks that take part, all of the job; rank r has bit r
    switch       host and port to which the ranks send
    server       host and port of the aggregation server, which the switch talks to; None without one (dedicated slots)
    switch_name  name of the switch in the cluster
    options      options of the protocol, as `plait.network.protocol.options.preset` takes them, `protocol` among them
    window       packets that a rank may have outstanding; 0: as in the options
    offset, size region of the switch's memory, in aggregators
    epoch        of region and window, which packets carry; a new region has a new one
    priority     0 to 255, for switches that preempt
    slots        all aggregators of the switch, for modes that share them
    """

    version: int
    granted: bool
    reason: str = ""
    job: int = 0
    token: str = ""
    n_workers: int = 0
    switch: Address | None = None
    server: Address | None = None
    switch_name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    offset: int = 0
    size: int = 0
    epoch: int = 0
    priority: int = 0
    slots: int = 0
    window: int = 0

    @property
    def secret(self) -> bytes:
        return bytes.fromhex(self.token)

    @property
    def membership(self) -> tuple[Any, ...]:
        """Identity for the switch: after a change a rank introduces itself again, and packet numbers start at 0."""
        return self.switch, self.job, self.token, self.n_workers, tuple(sorted(self.options.items()))

    @property
    def place(self) -> tuple[Any, ...]:
        """Identity of the region: failures in another one do not count for this one. The priority is not part of it."""
        return self.membership, self.epoch, self.offset, self.size, self.slots, self.window


_CODEC = Codec(strict=True, error=InputError)


def new_token() -> str:
    return secrets.token_hex(TOKEN_BYTES)


def write_grant(path: str | os.PathLike[str], grant: NetworkGrant) -> None:
    """Replace the grant file, for its owner alone to read; raises `OSError`, and `InputError` for impossible values."""
    _check(grant, str(path))
    replace_file(path, json.dumps(_CODEC.encode(grant)), mode=OWNER_ONLY)


def read_grant(path: str | os.PathLike[str]) -> NetworkGrant:
    """The grant in a file; raises `InputError` naming file and field for another content, and `OSError`."""
    text = Path(path).read_text(encoding="utf-8")
    try:
        grant = _CODEC.decode(NetworkGrant, json.loads(text))
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    _check(grant, str(path))
    return grant


def _check(grant: NetworkGrant, where: str) -> None:
    """Raise `InputError` for values that no rank could use."""
    if not grant.granted:
        return
    most = {"job": MOST_JOBS - 1, "n_workers": MOST_WORKERS, "priority": 255}
    least = {"n_workers": 1}
    for name in ("version", "job", "n_workers", "offset", "size", "epoch", "priority", "slots", "window"):
        value = getattr(grant, name)
        if not least.get(name, 0) <= value <= most.get(name, value):
            upper = f" to {most[name]}" if name in most else " or more"
            raise InputError(f"{where}: {name} is {value}; a grant takes {least.get(name, 0)}{upper}")
    try:
        good = len(grant.secret) == TOKEN_BYTES
    except ValueError:
        good = False
    if not good:
        raise InputError(f"{where}: token is not {2 * TOKEN_BYTES} hexadecimal digits; `new_token` makes one")
    if grant.switch is None:
        raise InputError(f"{where}: a grant without the address of a switch; give switch, [host, port]")


#: Claimed grants in this process: paths of grant files, with the rank.
_claimed: set[tuple[str, int]] = set()


class GrantFile:
    """The grant file as a rank sees it, read again when it has changed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        #: Why the newest content could not be read, else empty.
        self.trouble = ""
        self._grant: NetworkGrant | None = None
        self._seen: tuple[int, int, int] | None = None
        self._mine = False

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> GrantFile | None:
        """The file that the environment names; None if it names none."""
        path = environ.get(VARIABLE)
        return cls(path) if path else None

    def newest(self) -> NetworkGrant | None:
        """The newest readable grant; None before there is any. One call of `stat` if nothing has changed."""
        try:
            found = os.stat(self.path)
            seen = found.st_mtime_ns, found.st_ino, found.st_size
            if seen != self._seen:
                self._seen = seen
                grant = read_grant(self.path)
                if self._grant is None or grant.version > self._grant.version:
                    self._grant = grant
                self.trouble = ""
        except FileNotFoundError:
            self.trouble = f"{self.path} does not exist"
        except (OSError, InputError) as error:
            self.trouble = str(error)
        return self._grant

    def claim(self, rank: int) -> bool:
        """Whether this object is the one that may use the grants for a rank: the first caller, for good.

        Packets are numbered from 0 for each user, and the switch answers a repeated number with its former sum. So
        neither a second model of a script nor a process that is started again in the same attempt may continue with the
        grant: the claim is a file next to it, and without a writable file it holds within the process.
        """
        key = str(self.path), rank
        if self._mine or key in _claimed:
            return self._mine
        with contextlib.suppress(OSError):
            try:
                os.close(os.open(f"{self.path}.rank-{rank}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY))
            except FileExistsError:
                return False
        _claimed.add(key)
        self._mine = True
        return True
