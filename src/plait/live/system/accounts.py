"""Unix accounts of jobs, and file work of this thread in the name of one.

    account = Account.of_owner("ada")           # the account that runs the jobs of plait's user ada
    with in_name_of(layout.job(3)):             # by the owner of a job's folder
        (folder / "stop.json").write_text("{}")

A job owns its folder and may put links there, also between two looks of its agent. So an agent that runs as root opens
nothing in it as root: the kernel checks the file system's user ID of the thread (setfsuid(2)), and a link leads to
nothing that the account could not open itself. Everything above a job's folder belongs to root.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import pwd
import stat
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from plait.core.errors import InputError

#: The call whose effect is on one thread, which the C library hides: its setgroups(3) changes all threads.
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "ppc64le": 81}
_ACL, _ACL_VERSION = "system.posix_acl_access", 2
_INHERITED_ACL = "system.posix_acl_default"
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x08, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_NO_GROUP = 65534
_acting = threading.local()


@dataclass(frozen=True)
class Account:
    """A Unix account: its name, numbers and home folder. `groups` are all of its groups."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str = "/"
    shell: str = "/bin/sh"

    @classmethod
    def of_owner(cls, owner: str) -> Account:
        """The account of this name, for jobs of plait's user of this name; raises `InputError` for none, and root."""
        try:
            entry = pwd.getpwnam(owner)
        except (KeyError, ValueError):
            raise InputError(
                f"no account {owner!r} on this node, and jobs run as their owner's account (plait up --as-owner); "
                f"create it with: useradd --create-home {owner}, or submit with the token of a user who has one"
            ) from None
        if entry.pw_uid == 0:
            raise InputError(
                f"the account {owner!r} is root, as which no job runs (plait up --as-owner); submit with the token "
                "of another user: plait token new NAME"
            )
        return cls._of(entry)

    @classmethod
    def of_number(cls, uid: int) -> Account:
        """The account with this number; with no group if it has no name (any more): a group may have its number."""
        try:
            return cls._of(pwd.getpwuid(uid))
        except KeyError:
            return cls(str(uid), uid, _NO_GROUP, ())

    @classmethod
    def _of(cls, entry: pwd.struct_passwd) -> Account:
        groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, groups, entry.pw_dir, entry.pw_shell or "/bin/sh")

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name the account."""
        return {"HOME": self.home, "USER": self.name, "LOGNAME": self.name, "SHELL": self.shell}

    def become(self) -> None:
        """Make this process one of the account, for good. Raises `OSError`, also if it could return."""
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        with contextlib.suppress(PermissionError):
            os.setuid(0)
            raise OSError(f"still root after the change to {self.name}")
        os.umask(0o077)


def refusal() -> str:
    """Why this process cannot run jobs as their owners; "" if it can."""
    if os.geteuid() != 0:
        return f"--as-owner needs root, and this is the account {Account.of_number(os.geteuid()).name}"
    if platform.machine() not in _SETGROUPS:
        return f"--as-owner is not known to work on {platform.machine()}; it works on {', '.join(_SETGROUPS)}"
    return ""


_number = lru_cache(maxsize=1000)(Account.of_number)


@contextlib.contextmanager
def acting_as(account: Account | None) -> Iterator[None]:
    """Let the kernel check the file work of this thread as that of an account; None changes nothing.

    Start no threads within: they would keep it. Raises `OSError`.
    """
    if account is None or getattr(_acting, "uid", 0) == account.uid:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    before, uid, gid = os.getgroups(), getattr(_acting, "uid", 0), libc.setfsgid(-1)
    _acting.uid = account.uid
    try:
        _set_groups(libc, account.groups)
        libc.setfsgid(account.gid)
        libc.setfsuid(account.uid)
        if libc.setfsuid(-1) != account.uid:
            raise PermissionError(f"the kernel refuses file work as {account.name}")
        yield
    finally:
        libc.setfsuid(uid)
        libc.setfsgid(gid)
        _set_groups(libc, before)
        _acting.uid = uid


def _set_groups(libc: ctypes.CDLL, groups: Sequence[int]) -> None:
    numbers = (ctypes.c_uint32 * len(groups))(*groups)
    if libc.syscall(_SETGROUPS[platform.machine()], ctypes.c_long(len(groups)), numbers) != 0:
        raise OSError(ctypes.get_errno(), "setgroups")


def owner_of(folder: Path) -> Account | None:
    """The account that owns the folder of a job; None where this process need not act for another: no root, or own."""
    if os.geteuid() != 0:
        return None
    try:
        uid = folder.lstat().st_uid
    except OSError:
        return None
    return _number(uid) if uid else None


def in_name_of(folder: Path) -> contextlib.AbstractContextManager[None]:
    """`acting_as` the account that owns the folder of a job."""
    return acting_as(owner_of(folder))


def job_folder(rank: Path) -> Path:
    """The folder of the job of the process with this folder (jobs/JOB/attempts/EPOCH/RANK)."""
    return rank.parents[2]


def give(folder: Path, account: Account) -> None:
    """Give a job's folder, which may hold only the files of its epochs, to the account that runs the job.

    Raises `InputError` for a folder of another account. The folder above must belong to root.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        owner = os.fstat(fd).st_uid
        names = os.listdir(fd) if owner == 0 else []
        if owner not in (0, account.uid) or any(not name.startswith("EPOCH") for name in names):
            raise InputError(
                f"{folder} belongs to {Account.of_number(owner).name}, and the job to {account.name}, as which it runs "
                f"(plait up --as-owner); give it to the job with: chown -R {account.name} {folder}"
            )
        if owner == 0:  # nobody else can have been in it so far
            for name in names:
                os.chown(name, account.uid, account.gid, dir_fd=fd, follow_symlinks=False)
            os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)


def check_reach(account: Account, paths: Sequence[Path]) -> None:
    """Raise `InputError` if an account cannot read one of these files or enter one of these folders."""
    with acting_as(account):
        for path in paths:
            try:
                os.close(os.open(path, os.O_RDONLY if path.is_file() else os.O_PATH))
            except OSError as error:
                raise InputError(
                    f"the account {account.name} cannot reach {path}: {error.strerror}; jobs run as their owner's "
                    "account (plait up --as-owner), so plait and its home have to be where all accounts may enter, "
                    "for example /opt/plait and: plait up --home /var/lib/plait"
                ) from None


def open_to_all(folder: Path) -> None:
    """Let all accounts pass through a folder of root, without seeing what is in it."""
    folder.chmod(0o711)


def process_owner(pid: int) -> int | None:
    """The user ID of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("Uid:")), None)
    except OSError:
        return None


def admit(path: Path, uid: int, allowed: int, *, inherited: bool = False) -> None:
    """Give one more account access to a file or folder, by its access control list. Raises `OSError`.

    `allowed`: 4 to read, 2 to write, 1 to enter, or a sum of these. `inherited`: new files of the folder have the same.
    Members of a group may replace the files of its gate, so links are refused: they could lead to any file of root.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISDIR(facts.st_mode) and not (stat.S_ISREG(facts.st_mode) and facts.st_nlink == 1):
            raise PermissionError(errno.EPERM, "not a plain file", str(path))
        mode = facts.st_mode
        try:
            data = os.getxattr(fd, _ACL)
            entries = [struct.unpack_from("<HHI", data, at) for at in range(4, len(data), 8)]
        except OSError:  # it has none
            entries = [
                (_USER_OBJ, mode >> 6 & 7, _NO_ID), (_GROUP_OBJ, mode >> 3 & 7, _NO_ID), (_OTHER, mode & 7, _NO_ID),
            ]  # fmt: skip
        kept = [one for one in entries if one[0] != _MASK and (one[0], one[2]) != (_USER, uid)]
        kept.append((_USER, allowed, uid))
        most = 0
        for tag, given, _ in kept:
            most |= given if tag in (_USER, _GROUP_OBJ, _GROUP) else 0
        data = struct.pack("<I", _ACL_VERSION) + b"".join(
            struct.pack("<HHI", *one)
            for one in sorted([*kept, (_MASK, most, _NO_ID)], key=lambda one: (one[0], one[2]))
        )
        os.setxattr(fd, _ACL, data)
        if inherited:
            os.setxattr(fd, _INHERITED_ACL, data)
    finally:
        os.close(fd)
