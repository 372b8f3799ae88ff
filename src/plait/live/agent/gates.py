"""Files of the groups with members on this node, and each process's control file about its group.

Several agents on one machine may have members of the same group: each puts a file with its name into the group's
folder, and the last one removes the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from plait.live.agent.processes.attempt import LocalAttempt
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import ENDED, GroupInfo
from plait.live.system import procs
from plait.live.system.accounts import admit, in_name_of, job_folder, open_to_all, owner_of
from plait.runtime.group_files import Group, GroupError, GroupMember, make_group, remove_group
from plait.runtime.page import VERSION

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Gates:
    """Group folders as the agent `node` needs them."""

    def __init__(self, layout: Layout, node: str, log: Callable[..., None]) -> None:
        self._layout, self.folder, self._mine, self._log = layout, layout.gates, f"agent-{node}", log

    def tell(self, attempt: LocalAttempt) -> None:
        """Create the files of the attempt's group and update its control file, if anything changed."""
        group = attempt.run.group
        wanted = (group.id, group.version, attempt.neighbours)
        if attempt.group_version == wanted:
            return
        attempt.group_version = wanted
        entry = self._entry(attempt)
        self._show_hosts(attempt)
        with in_name_of(job_folder(attempt.folder)):
            known = procs.read_json(attempt.folder / "control.json") or {}
            sharing = None if attempt.neighbours is None else attempt.neighbours.control()
            facts = {"epoch": attempt.run.epoch, "group": entry, "sharing": sharing}
            number = known.get("version")
            version = number if isinstance(number, int) and 0 <= number < 1 << 62 else 0  # the job can write there
            if any(known.get(name) != value for name, value in facts.items()):
                version += 1
                control = {"version": version, "made_by": VERSION} | facts
                procs.write_json(attempt.folder / "control.json", control)
            if attempt.page is not None:  # also without news: an agent may have died before it wrote this
                attempt.page.control(version)

    def _show_hosts(self, attempt: LocalAttempt) -> None:
        """Let the account of a guest read the pages of its hosts, which show when they use the GPU."""
        guest = owner_of(job_folder(attempt.folder))
        if guest is None or attempt.neighbours is None:
            return
        for page in attempt.neighbours.hosts:
            host = job_folder(page.parent)
            try:
                with in_name_of(host):
                    if page.stat().st_uid != guest.uid:
                        admit(page, guest.uid, 4)
                        for folder in page.parents[:4]:
                            admit(folder, guest.uid, 1)
            except OSError as error:
                self._log("page not shown", page=page, to=guest.name, why=error)

    def _entry(self, attempt: LocalAttempt) -> dict[str, Any] | None:
        """The entry "group" of control.json; None if there can be no gate, which lets the job run without one."""
        run, info = attempt.run, attempt.run.group
        try:
            if not _SAFE.fullmatch(info.id):
                raise GroupError(f"group {info.id!r} is no name for a folder")
            if info.gate == "none" or len(info.members) < 2:
                alone = _members(info) or (GroupMember(run.job, 0, run.world),)
                return Group(self.folder / info.id, "none", info.version, alone).control(run.job, run.rank)
            group = self._made(info)
            # Let the accounts of all members into the files of their group, and no other.
            owners = {owner.uid for m in info.members if (owner := owner_of(self._layout.job(m.job))) is not None}
            if owners:
                open_to_all(self.folder.parent)
                open_to_all(self.folder)
            for uid in owners:
                admit(group.folder, uid, 1)
                admit(group.files, uid, 7, inherited=True)
                admit(group.files / "page.bin", uid, 6)
            return group.control(run.job, run.rank)
        except (GroupError, OSError) as error:
            self._log("no gate", job=run.job, group=info.id, why=str(error))
            return None

    def _made(self, info: GroupInfo) -> Group:
        with self._locked():
            group = make_group(
                self.folder / info.id, info.gate, _members(info), version=info.version, quantum_s=info.quantum_s
            )
            (self.folder / info.id / self._mine).touch(mode=0o600)
        return group

    def clear(self, attempts: Iterable[LocalAttempt]) -> None:
        """Remove folders of groups without members here, unless another agent uses them."""
        needed = {a.run.group.id for a in attempts if a.state != ENDED}
        for folder in [path.parent for path in self.folder.glob(f"*/{self._mine}")]:
            if folder.name in needed:
                continue
            with self._locked():
                with contextlib.suppress(OSError):
                    (folder / self._mine).unlink()
                if not any(folder.glob("agent-*")):
                    remove_group(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        make_private(self.folder)
        fd = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)


def _members(info: GroupInfo) -> tuple[GroupMember, ...]:
    return tuple(GroupMember(m.job, m.turn, m.world) for m in info.members)
