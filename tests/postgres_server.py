"""A PostgreSQL server of our own on a Unix socket, where the machine has the programs."""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def programs() -> Path | None:
    """The folder of PostgreSQL's server programs, if there is one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    here = shutil.which("initdb")
    return Path(here).parent if here else None


@contextmanager
def server() -> Iterator[Callable[[], str]]:
    """Started; makes an empty database at each call and returns its URL. Skips the test, with the reason, elsewhere."""
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra postgres)")
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server programs (initdb, pg_ctl) on this machine")
    data = Path(tempfile.mkdtemp(prefix="plait-pg-"))
    run_as: list[str] = []
    if os.getuid() == 0:  # the server refuses to run as root
        try:
            user = pwd.getpwnam("postgres")
        except KeyError:
            shutil.rmtree(data)
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres to run it as")
        os.chown(data, user.pw_uid, user.pw_gid)
        run_as = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]

    def call(program: str, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*run_as, str(folder / program), *args], capture_output=True, text=True, cwd=data)

    try:
        made = call("initdb", "-D", str(data / "db"), "-U", "plait", "-A", "trust", "--no-sync", "-E", "UTF8")
        options = f"-k {data} -c listen_addresses='' -c fsync=off"
        up = call("pg_ctl", "-D", str(data / "db"), "-o", options, "-l", str(data / "log"), "-w", "start")
        if up.returncode:
            pytest.skip(f"PostgreSQL does not start here: {(made.stderr + up.stderr + up.stdout).strip()[-300:]}")
        yield lambda: _database(data)
    finally:
        call("pg_ctl", "-D", str(data / "db"), "-m", "immediate", "stop")
        shutil.rmtree(data, ignore_errors=True)


def _database(data: Path) -> str:
    import sqlalchemy as sa

    name = f"d{os.urandom(6).hex()}"
    admin = sa.create_engine(f"postgresql+psycopg://plait@/postgres?host={data}")
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    admin.dispose()
    return f"postgresql://plait@/{name}?host={data}"
