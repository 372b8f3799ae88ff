"""Agents use the address of their own, and that of users where only that can be connected to."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from plait.live import tls
from plait.live.agent.link import Unreachable, _Connection
from plait.live.layout import Layout
from plait.live.protocol.wire import Assignment, NodeInfo, Observed, to_json
from plait.live.system import procs


@pytest.fixture
def url() -> Iterator[str]:
    """A service that answers agents with an assignment of version 7."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(to_json(Assignment(1, 7, 5.0))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def closed() -> str:
    """An address where nobody listens, as behind a firewall."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


def ask(*urls: str) -> int:
    link = _Connection(lambda: (urls, "token"), lambda url: tls.context(None, url))
    try:
        return link.ask(Observed(NodeInfo("n0", 1), "agent-1")).version
    finally:
        link.close()


def test_the_first_address_that_can_be_connected_to_is_used(url: str, closed: str) -> None:
    assert ask(url, closed) == 7
    assert ask(closed, url) == 7
    with pytest.raises(Unreachable, match="refused"):
        ask(closed, closed)


def test_a_home_trusts_its_certificate_at_both_addresses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, loaded = Layout(tmp_path), []
    record = {"url": "https://a:1", "agents": "https://a:2", "certificate": "the certificate"}
    procs.write_json(layout.service_file, record)

    class Context:
        verify_flags = 0

        def cert_store_stats(self) -> dict[str, int]:
            return {"x509_ca": 1}

        def load_verify_locations(self, cadata: str) -> None:
            loaded.append(cadata)

    for address in ("https://a:1", "https://a:2", "https://a:3"):
        tls.trust(Context(), layout, address)  # type: ignore[arg-type]
    assert loaded == ["the certificate"] * 2
