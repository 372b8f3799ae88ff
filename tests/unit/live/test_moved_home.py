"""A home that is moved while its cluster is up: what runs there ends, and nobody makes it again at its old path."""

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")

from local_agent import LocalAgent  # noqa: E402

from plait.live.agent import agent as agents  # noqa: E402
from plait.live.service.usage import UsageFiles  # noqa: E402


@pytest.mark.parametrize("made_again", [False, True])
def test_an_agent_leaves_with_its_jobs_though_another_folder_is_at_the_path_of_its_home(
    made_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    local = LocalAgent(home)
    try:
        monkeypatch.setattr(agents, "HOMELESS_S", 0.0)
        local.agent._look_for_home()
        assert not local.agent._leaving
        home.rename(tmp_path / "moved")
        if made_again:
            home.mkdir()
        local.agent._look_for_home()
        assert (local.agent._leaving, local.agent._stop_jobs) == (True, True)
    finally:
        local.close()


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO, errno.EACCES, errno.ETIMEDOUT])
def test_an_agent_stays_with_its_jobs_while_the_storage_of_its_home_does_not_answer(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = LocalAgent(tmp_path)
    home, stat = local.agent.layout.home, Path.stat

    def silent(path: Path, **options: Any) -> os.stat_result:
        if path == home:
            raise OSError(number, os.strerror(number))
        return stat(path, **options)

    try:
        monkeypatch.setattr(agents, "HOMELESS_S", 0.0)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "stat", silent)
            local.agent._look_for_home()
        assert not local.agent._leaving
    finally:
        local.close()


def test_what_jobs_used_is_not_kept_where_the_home_was(tmp_path: Path) -> None:
    files = UsageFiles(tmp_path / "home")
    with pytest.raises(FileNotFoundError):
        files.write_job(0, {})
    assert not (tmp_path / "home").exists()
