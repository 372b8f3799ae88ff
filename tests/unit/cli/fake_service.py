"""A service made of a dictionary: answers the fields that tests put there, and records the requests.

`headers`: of every answer.
"""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from sample_answers import answered

TOKEN = "secret"


@dataclass
class Fake:
    """`answers` by (method, path): a value, or a list of (status, value) given one after the other."""

    answers: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    bodies: list = field(default_factory=list)
    keys: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)
    url: str = ""

    def paths(self):
        return [f"{method} {path}" for method, path, _ in self.asked]


def serve(fake: Fake) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def answer(self):
            parts = urlsplit(self.path)
            path, query = unquote(parts.path), {k: v[0] for k, v in parse_qs(parts.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            fake.asked.append((self.command, parts.path, query))
            fake.keys.append(self.headers.get("Idempotency-Key"))
            if body is not None:
                fake.bodies.append(body)
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.send(401, {"error": {"message": "this token is not known"}})
                return
            found = fake.answers.get((self.command, path))
            if found is None:
                message = f"there is no {path.rpartition('/')[2]}"
                self.send(404, {"error": {"message": message, "next": "list them with: plait ls"}})
            elif isinstance(found, list) and found and isinstance(found[0], tuple):
                status, value = found.pop(0) if len(found) > 1 else found[0]
                self.send(status, answered(self.command, path, value) if status < 400 else value)
            else:
                self.send(200, answered(self.command, path, found(query) if callable(found) else found))

        def send(self, status, value):
            text = value if isinstance(value, str) else json.dumps(value)
            kind = "text/event-stream" if isinstance(value, str) else "application/json"
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            for name, text in fake.headers.items():
                self.send_header(name, text)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    return server
