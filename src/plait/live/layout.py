"""Where everything is stored below one folder, by default `~/.plait`.

    service.json, service.lock, service.log, token, plait.db      the service
    network.toml, network-secret                                  the cluster file of its network; for tokens of jobs
    keeper.json, keeper.lock, keeper.log, up.json                 what keeps it and the nodes, and with which options
    up-<machine>.lock                                             taken by what starts or ends services there
    nodes/<node>/journal.jsonl, agent.log, agent.lock, enrol      an agent
    jobs/<job>/checkpoints, EPOCH                                 a job, over all its attempts
    jobs/<job>/attempts/<epoch>/rank<r>/                          one process of one attempt
    usage/<job>, usage/idle-<hour>                                what jobs used over time, from the service
    gates/<group>/, lease-<node>                                  the gate of a running group, the lease of a node:
                                                                  in /dev/shm if possible

Folders are for their owner alone. Names that come from outside never become paths: jobs are `j-<number>`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from plait.core.errors import InputError
from plait.core.files import OWNER_ONLY, create_file, replace_file

DEFAULT_HOME = "~/.plait"
#: The name of a home's first service, whose log and lock are service.log and service.lock, and that of a standby.
FIRST, SECOND = "1", "2"
#: Form of a node's name, which is also that of a folder.
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Attempts that a job can have had.
MOST_EPOCHS = 10**9
SHARED_MEMORY = Path("/dev/shm")


def job_name(number: int) -> str:
    """The name of a job in folders and on the command line.

    >>> job_name(12)
    'j-12'
    """
    return f"j-{number}"


def job_number(name: str) -> int | None:
    """The number in a job's name; None if it is no such name.

    >>> job_number("j-12"), job_number("../etc")
    (12, None)
    """
    digits = name.removeprefix("j-")
    return int(digits) if name.startswith("j-") and digits.isascii() and digits.isdigit() else None


def array_name(first: int, index: int | None = None) -> str:
    """The name of the array whose first member is job `first`, or of its member with this index.

    >>> array_name(5), array_name(5, 3)
    ('a-5', 'a-5.3')
    """
    return f"a-{first}" if index is None else f"a-{first}.{index}"


def array_index(name: str) -> tuple[str, int | None] | None:
    """The array that a name is of, and the index of the member, None for the whole of it; None for other names.

    >>> array_index("a-5"), array_index("a-5.3"), array_index("a-x")
    (('a-5', None), ('a-5', 3), None)
    """
    match = re.fullmatch(r"(a-[0-9]{1,15})(?:\.([0-9]{1,15}))?", name)
    return None if match is None else (match[1], None if match[2] is None else int(match[2]))


@dataclass(frozen=True)
class Layout:
    """Paths under `home`; nothing is made by asking."""

    home: Path

    @classmethod
    def at(cls, home: str | Path | None = None) -> Layout:
        """The given folder, that of the environment (PLAIT_HOME), or the default."""
        return cls(Path(home or os.environ.get("PLAIT_HOME") or DEFAULT_HOME).expanduser().resolve())

    @property
    def service_file(self) -> Path:
        return self.home / "service.json"

    @property
    def token_file(self) -> Path:
        """The file with the administrator's token."""
        return self.home / "token"

    @property
    def database(self) -> Path:
        """The store, unless it is PostgreSQL."""
        return self.home / "plait.db"

    def options_file(self, name: str = FIRST) -> Path:
        """The file of the options of a service; the first one's options are shared by all."""
        return self.home / ("up.json" if name == FIRST else f"up-{name}.json")

    def node(self, node: str) -> Path:
        """The folder of an agent."""
        return self.home / "nodes" / node

    def job(self, number: int) -> Path:
        """The folder that a job keeps over its attempts."""
        return self.home / "jobs" / job_name(number)

    def epoch_file(self, number: int) -> Path:
        """The highest attempt of a job whose checkpoints count."""
        return self.job(number) / "EPOCH"

    def rank(self, number: int, epoch: int, rank: int) -> Path:
        """The folder of one process of one attempt."""
        return self.job(number) / "attempts" / str(epoch) / f"rank{rank}"

    @property
    def gates(self) -> Path:
        """Gates of running groups: in shared memory where there is any, so that waiting costs microseconds."""
        return (self._shared or self.home) / "gates"

    def lease(self, node: str) -> Path:
        """Lease file of a node, which bounds its processes: in shared memory if possible, away from slow disks."""
        return self._shared / f"lease-{node}" if self._shared else self.node(node) / "lease"

    def leases(self) -> list[Path]:
        """Lease files of all nodes of this machine."""
        return sorted(self._shared.glob("lease-*") if self._shared else self.home.glob("nodes/*/lease"))

    @property
    def _shared(self) -> Path | None:
        """The home's part of this machine's shared memory; raises `InputError` if another user has taken its name."""
        if not (SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)):
            return None
        mark = hashlib.sha256(str(self.home).encode()).hexdigest()[:12]
        folder = SHARED_MEMORY / f"plait-{os.getuid()}-{mark}"
        with contextlib.suppress(FileNotFoundError):
            facts = folder.lstat()  # all may write to its parent, and could lead agents of root elsewhere
            if facts.st_uid != os.getuid() or not stat.S_ISDIR(facts.st_mode):
                raise InputError(
                    f"{folder}, where plait keeps locks and leases, is a link or of another account (uid "
                    f"{facts.st_uid}); remove it as root: rm -r {folder}"
                )
        return folder


def read_epoch(path: Path) -> int:
    """The number in a file EPOCH; 0 if there is none, or none that can be. Raises OSError if it cannot be read.

    Jobs can write there: a pipe must not hold anybody up, and a huge number is no attempt's.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return 0
        raise
    try:
        text = os.read(fd, 64).strip() if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)
    return int(text) if text.isdigit() and int(text) <= MOST_EPOCHS else 0


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file (`flock`); a check holds it for a moment, too."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
    return False


def may_lead(layout: Layout) -> bool:
    """Whether a service of this home may be running, by its file or its lock."""
    return layout.service_file.exists() or any(is_locked(path) for path in layout.home.glob("service*.lock"))


def make_private(folder: Path) -> Path:
    """The folder, made for its owner alone if missing, and so are missing folders above it."""
    if not folder.exists():
        if not folder.parent.exists():
            make_private(folder.parent)
        folder.mkdir(exist_ok=True, mode=0o700)
    return folder


def network_secret(layout: Layout) -> bytes:
    """The key of the jobs' tokens for switches: the same for all services of a home, made at the first call.

    Simultaneous callers get the same: the file appears whole, on the disk, and is never replaced. Raises `InputError`
    for a file that holds no secret, as after an interrupted copy of the home.
    """
    path = layout.home / "network-secret"
    if not path.exists():
        make_private(path.parent)
        create_file(path, secrets.token_hex(32) + "\n", mode=OWNER_ONLY, durable=True)
    secret = path.read_bytes().strip()
    if len(secret) < 32:
        raise InputError(
            f"{path} holds {len(secret)} bytes, no secret; remove it: running jobs go by gloo until the end"
        )
    return secret


def write_secret(path: Path, secret: str) -> None:
    """A file for its owner alone, there at once or not at all."""
    make_private(path.parent)
    replace_file(path, secret + "\n", mode=OWNER_ONLY)
