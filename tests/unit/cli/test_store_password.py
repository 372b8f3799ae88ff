"""The address of a store may hold a password: it is in no command line, no file for others, and no job."""

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs the extra [live]")
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")

from plait.core.errors import InputError  # noqa: E402
from plait.live.agent.processes.launch import environment  # noqa: E402
from plait.live.layout import Layout  # noqa: E402
from plait.live.protocol.wire import GroupInfo, Run  # noqa: E402
from plait.live.supervisor import down, services, up  # noqa: E402
from plait.live.supervisor.options import remember, remembered  # noqa: E402
from plait.live.supervisor.services import start_service  # noqa: E402


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


def test_a_service_is_told_in_its_environment(layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_DB", "sqlite:////nowhere/of-another-cluster.db")
    old = os.umask(0)
    try:
        process = start_service(layout, {"db": f"sqlite:///{tmp_path}/secret.db"})
    finally:
        os.umask(old)
    try:
        assert b"secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert (tmp_path / "secret.db").exists()
        assert not layout.database.exists()
        assert (layout.home / "service.log").stat().st_mode & 0o077 == 0
    finally:
        down.stop(layout, stop_jobs=False)
    process = start_service(layout, {})  # that of the environment is somebody else's
    down.stop(layout, stop_jobs=False)
    assert layout.database.exists()


def test_it_is_remembered_for_the_owner_alone(layout: Layout) -> None:
    layout.options_file().write_text("{}")
    layout.options_file().chmod(0o644)
    for name in ("1", "2"):
        remember(layout, {"db": "postgresql://u:secret@h/d"}, name)
        assert layout.options_file(name).stat().st_mode & 0o077 == 0
        assert remembered(layout, name) == {"db": "postgresql://u:secret@h/d"}
    assert remembered(layout, "3") == {}


def test_up_takes_it_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from plait.cli import main

    given = {}

    def start(layout: Layout, options: dict[str, object]) -> None:
        given.update(options)
        raise InputError("enough")

    monkeypatch.setattr(up, "start", start)
    monkeypatch.setenv("PLAIT_DB", "postgresql://u:secret@h/d")
    monkeypatch.delenv("PLAIT_DEBUG", raising=False)
    with pytest.raises(SystemExit):
        main(["up", "--home", str(tmp_path / "home")])
    assert given == {"db": "postgresql://u:secret@h/d"}
    assert "secret" not in "".join(capsys.readouterr())


def test_a_home_that_others_can_see_is_noted(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def start_service(layout: Layout, options: dict[str, object]) -> None:
        raise InputError("enough")

    monkeypatch.setattr(services, "start_service", start_service)
    for mode, said in ((0o700, False), (0o755, True)):
        layout.home.chmod(mode)
        with pytest.raises(InputError, match="enough"):
            up.start(layout, {"fake": True})
        assert (f"chmod 700 {layout.home}" in capsys.readouterr().err) is said


def test_jobs_do_not_get_it(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAIT_DB", "postgresql://u:secret@h/d")
    monkeypatch.setenv("PGPASSWORD", "secret")
    monkeypatch.setenv("PGHOST", "h")
    monkeypatch.setenv("PLAIT_PASS_ENV", "PG*")
    run = Run(job=1, epoch=1, rank=0, world=1, argv=["true"], gpus=[0], group=GroupInfo("g"))
    found = environment(run, layout, None, 1)
    assert found["PGHOST"] == "h"
    assert "secret" not in "".join(found.values())
    run.env["PGPASSWORD"] = "the job's own"
    assert environment(run, layout, None, 1)["PGPASSWORD"] == "the job's own"
