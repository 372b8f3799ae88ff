"""Jobs as the accounts of their owners: links in files that members of a group share, and accounts that are deleted."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from local_agent import LocalAgent

from plait.core.errors import InputError
from plait.live.layout import Layout, make_private
from plait.live.protocol.wire import Ask, Assignment, ConsoleAsk, GroupInfo, Mate, Run
from plait.live.supervisor.up import _close_files
from plait.live.system import procs
from plait.live.system.accounts import Account, acting_as, admit

NOBODY_HERE = 54_321


def acl(path: Path) -> bytes:
    try:
        return os.getxattr(path, "system.posix_acl_access")
    except OSError:
        return b""


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_place_of_a_shared_file_opens_nothing(tmp_path: Path, link: object) -> None:
    """Members of a group may write into the folder of its gate, and their agent, which is root, opens its files."""
    secret, page = tmp_path / "secret", tmp_path / "page.bin"
    secret.touch(mode=0o600)
    page.touch(mode=0o600)
    try:
        admit(page, NOBODY_HERE, 6)
    except OSError as error:
        pytest.skip(f"no access control lists here: {error}")
    assert NOBODY_HERE.to_bytes(4, "little") in acl(page)
    page.unlink()
    link(secret, page)  # type: ignore[operator]
    with pytest.raises(OSError, match=r"page\.bin"):
        admit(page, NOBODY_HERE, 6)
    assert acl(secret) == b""


def test_a_number_without_a_name_has_no_group() -> None:
    """The group of this number may be another's: 27 is that of sudo."""
    account = Account.of_number(NOBODY_HERE)
    assert (account.name, account.gid, account.groups) == (str(NOBODY_HERE), 65534, ())


@pytest.mark.skipif(os.geteuid() != 0, reason="acting for others needs root")
def test_acting_ends_with_the_rights_from_before_also_of_another_account() -> None:
    ada, bob = (Account(str(uid), uid, uid, (uid,)) for uid in (40_001, 40_002))

    def rights() -> list[str]:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return [line.split()[-1] for line in lines if line.startswith(("Uid:", "Gid:", "Groups:"))]

    before = rights()
    with contextlib.suppress(KeyError), acting_as(ada):
        with contextlib.suppress(KeyError), acting_as(bob):
            assert rights() == ["40002"] * 3
            raise KeyError
        assert rights() == ["40001"] * 3
        raise KeyError
    assert rights() == before


@pytest.mark.parametrize(
    "link", [True, pytest.param(False, marks=pytest.mark.skipif(os.geteuid() != 0, reason="root"))]
)
def test_a_folder_of_others_in_shared_memory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: bool
) -> None:
    """Its name can be known before an agent of root makes it, and everybody may write to its parent."""
    monkeypatch.setattr("plait.live.layout.SHARED_MEMORY", tmp_path)
    layout = Layout(tmp_path / "home")
    folder = make_private(layout.gates).parent
    assert layout.gates.parent == folder
    (folder / "gates").rmdir()
    if link:
        folder.rmdir()
        folder.symlink_to("/etc")
    else:
        os.chown(folder, NOBODY_HERE, 0)
    for ask in (lambda: layout.gates, lambda: layout.lease("n0"), layout.leases):
        with pytest.raises(InputError, match="is a link or of another account"):
            ask()


def test_files_of_the_home_are_closed_and_folders_of_others_stay_open(tmp_path: Path) -> None:
    """An operator may have put the installation that all accounts run next to it."""
    before = os.umask(0o022)
    try:
        (tmp_path / "up.json").touch()
        (tmp_path / "venv").mkdir()
        _close_files(Layout(tmp_path))
        (tmp_path / "later").touch()
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"up.json": 0o600, "later": 0o600, "venv": 0o755}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalAgent]:
    local = LocalAgent(tmp_path / "home")
    local.agent.link.ever = True
    yield local
    local.want()
    while any(attempt.alive for attempt in local.agent.attempts.values()):
        local.agent._wait()
    local.close()


def test_an_agent_survives_that_the_account_of_a_running_job_is_deleted(local: LocalAgent) -> None:
    run = Run(5, 1, 0, 1, [sys.executable, "-c", "import time; time.sleep(600)"], [0],
              GroupInfo("g", members=[Mate(5, 0)]), owner="nobody-here")  # fmt: skip
    local.want(run)
    agent = local.agent
    agent.settings = replace(agent.settings, as_owner=True)
    ask = Ask(1, 5, 1, 0, console=ConsoleAsk("c1", ["true"]))
    assert "no account 'nobody-here'" in (agent._answer(ask).error or "")
    local.version += 1
    beside = Assignment(1, local.version, 60.0, [run], successors=[replace(run, epoch=2)])
    assert agent.obey(beside, agent.observe(0.0), procs.boot_s())
    assert [attempt.alive for attempt in agent.attempts.values()] == [True]
    assert (5, 2, 0) in agent.successors
