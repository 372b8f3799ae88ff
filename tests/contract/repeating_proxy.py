"""Somebody between agents and the service who repeats what they say and tells them old answers."""

import contextlib
import json
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Between:
    """Passes messages of agents on, each twice with an old one in between; every fourth answer is an old one."""

    def __init__(self, service: str) -> None:
        self.nodes: set[str] = set()
        self.replayed, self.closed = 0, False
        old: dict[str, list[tuple[bytes, bytes]]] = {}
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                node = json.loads(body)["node"]["id"]
                before = old.setdefault(node, [])
                try:
                    data = self._pass_on(body)
                    if before:
                        self._pass_on(before[-1][0])
                    self._pass_on(body)
                except OSError:
                    self.close_connection = True
                    return
                if between.closed:
                    self.close_connection = True
                    return
                before.append((body, data))
                if len(before) % 4 == 0:
                    data = before[0][1]
                    between.replayed += 1
                between.nodes.add(node)
                with contextlib.suppress(OSError):
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def _pass_on(self, body: bytes) -> bytes:
                with contextlib.closing(HTTPConnection(service, timeout=10)) as connection:
                    headers = {"Authorization": self.headers["Authorization"]}
                    connection.request("POST", self.path, body, headers)
                    return connection.getresponse().read()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self.closed = True  # those that talk through it are cut off
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
