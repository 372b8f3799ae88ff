"""Whom the schedulers trust as their PostgreSQL: what run-on-kubernetes.md tells to make has to let them connect."""

import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kustomized import render

psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed; pip install 'plait[postgres]' brings it")

ROOT = Path(__file__).resolve().parents[3]
SAID = b"SFATAL\0C28P01\0Mwrong password\0\0"


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, timeout=60)


def authority(folder: Path) -> Path:
    """A folder with a certificate of an authority, and one of `localhost` that it signed."""
    folder.mkdir()
    ca, key, request, made = (folder / name for name in ("ca.crt", "key.pem", "localhost.csr", "localhost.crt"))
    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new, "-keyout", folder / "ca.key", "-out", ca, "-subj", f"/CN={folder.name}", "-days", "2")
    openssl("req", *new, "-keyout", key, "-out", request, "-subj", "/CN=localhost")
    signed_by = ("-CA", ca, "-CAkey", folder / "ca.key", "-CAcreateserial")
    openssl("x509", "-req", "-in", request, *signed_by, "-out", made, "-days", "2")
    return folder


def serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    """Speak TLS as PostgreSQL does, then refuse the password: who hears that has trusted us."""
    while True:
        try:
            link, _ = listener.accept()
        except OSError:
            return
        try:
            link.recv(8)
            link.sendall(b"S")
            with context.wrap_socket(link, server_side=True) as safe:
                safe.recv(4096)
                safe.sendall(b"E" + (len(SAID) + 4).to_bytes(4, "big") + SAID)
        except OSError:
            link.close()


@pytest.fixture
def server() -> Iterator[Callable[[Path], int]]:
    """Starts a server with a folder's certificate; its port."""
    listeners, threads = [], []

    def start(folder: Path) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "localhost.crt", folder / "key.pem")
        listeners.append(socket.create_server(("127.0.0.1", 0)))
        threads.append(threading.Thread(target=serve, args=(listeners[-1], context)))
        threads[-1].start()
        return int(listeners[-1].getsockname()[1])

    yield start
    for listener, thread in zip(listeners, threads, strict=True):
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl here to make certificates with")
def test_schedulers_trust_the_given_authority_and_no_other(
    tmp_path: Path, server: Callable[[Path], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
    (deployment,) = [o for o in render(ROOT / "deploy/kubernetes/base") if o["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    mine, other = authority(tmp_path / "mine"), authority(tmp_path / "other")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    given = dict(re.findall(r"--from-literal=(PG\w+)=(\S+)", text))
    given |= {v["name"]: v["value"] for v in container["env"] if "value" in v}
    given = {name: value.replace(mounts.get("postgres-ca", "/none"), str(mine)) for name, value in given.items()}
    assert given["PGSSLMODE"] == "verify-full"
    for name, value in (given | {"PGHOST": "localhost", "PGHOSTADDR": "127.0.0.1", "HOME": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    for folder, answer in ((mine, "wrong password"), (other, "certificate verify failed")):
        monkeypatch.setenv("PGPORT", str(server(folder)))
        with pytest.raises(psycopg.OperationalError, match=answer):
            psycopg.connect("", connect_timeout=20)
