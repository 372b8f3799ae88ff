"""A cluster that speaks TLS with a certificate that no machine knows: `plait up` and its agents trust it, no other."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from plait.live import tls
from plait.live.client.client import Client, NotRunning
from plait.live.layout import Layout

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make certificates with"),
]
PLAIT = (sys.executable, "-c", "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()")
NEW = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def make(folder: Path, name: str) -> None:
    """NAME.pem: a certificate for localhost that nobody's authority has signed, and its key; NAME.key: the key."""
    openssl(folder, "req", "-x509", *NEW, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=nobody", "-days", "2")
    openssl(folder, "req", *NEW, "-keyout", f"{name}.key", "-out", "asked", "-subj", "/CN=localhost")
    (folder / "names").write_text("subjectAltName=DNS:localhost\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2")
    openssl(folder, "x509", "-req", "-in", "asked", *signed, "-out", f"{name}.pem")
    with open(folder / f"{name}.pem", "a") as file:
        file.write((folder / f"{name}.key").read_text())


def test_up_with_a_certificate_of_a_private_authority(tmp_path: Path) -> None:
    home = tmp_path / "home"
    make(tmp_path, "mine")
    make(tmp_path, "other")
    env = {k: v for k, v in os.environ.items() if k not in ("PLAIT_URL", "PLAIT_TOKEN", "PLAIT_CA")}

    def plait(*words: str) -> None:
        done = subprocess.run(
            [*PLAIT, *words, "--home", str(home)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        plait("up", "--fake", "--nodes", "1", "--host", "localhost", "--tls-cert", "mine.pem", "--tls-key", "mine.key")
        said = json.loads((home / "service.json").read_text())
        assert said["url"].startswith("https://localhost:")
        assert "PRIVATE" not in said["certificate"]
        with Client.at(str(home)) as client:
            assert [node.state for node in client.nodes()] == ["ready"]
        with Client(said["url"], "", home=Layout.at(str(tmp_path))) as stranger, pytest.raises(NotRunning):
            stranger.status()
        said["certificate"] = tls.certificates(tmp_path / "other.pem")
        (home / "service.json").write_text(json.dumps(said))
        with Client.at(str(home)) as client, pytest.raises(NotRunning):
            client.status()
    finally:
        plait("down", "--stop-jobs", "--may-lose-work")
