"""Commands next to a job of a real cluster: `plait exec`, a shell that ends, and a notebook behind the service."""

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from plait.live.client.client import FINAL
from plait.testing.cluster import Cluster

pytestmark = pytest.mark.engines

#: Ctrl-C reaches it also where what started the tests ignores that signal, as `nohup` and background shells do.
START = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'plait'; "
PLAIT = (sys.executable, "-c", f"{START}from plait.cli import main; main()")
#: Serves what Jupyter would: a page for those that have the token.
LAB = """
import http.server, json, os
from pathlib import Path
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = b"lab" * 200000 if os.environ["JUPYTER_TOKEN"] in self.path else b"no"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
folder = Path(os.environ["JUPYTER_RUNTIME_DIR"])
folder.mkdir(parents=True)
(folder / "jpserver-1.json").write_text(json.dumps({"port": server.server_port}))
server.serve_forever()
"""


def test_jobs_are_entered_through_the_service(tmp_path: Path) -> None:
    (tmp_path / "jupyterlab").mkdir()
    (tmp_path / "jupyterlab" / "__main__.py").write_text(LAB)
    home = tmp_path / "home"
    environ = {**os.environ, "PLAIT_HOME": str(home), "PYTHONPATH": str(tmp_path)}

    def plait(*words: str, typed: str = "") -> tuple[int, str]:
        command = [*PLAIT, *words]
        done = subprocess.run(
            command, input=typed, capture_output=True, text=True, cwd=tmp_path, env=environ, timeout=90, check=False
        )
        return done.returncode, done.stdout + done.stderr

    with Cluster(home, nodes=1, slots=2, options={"round": 0.2}) as cluster, cluster.client() as service:
        (job,) = service.submit([{"command": ["sleep", "100"], "workdir": str(tmp_path)}])
        while service.job(job.id).state != "running":
            time.sleep(0.1)
        assert plait("exec", job.id, "--", "sh", "-c", "echo $PLAIT_JOB; exit 5") == (5, f"{job.id}\n")
        assert plait("exec", job.id, "--", "cat", typed="typed\n") == (0, "typed\n")
        code, said = plait("shell", "-g", "1", typed="echo in $PLAIT_JOB; exit 7\n")
        assert (code, "in j-1" in said) == (7, True)
        while service.job("j-1").state not in FINAL:
            time.sleep(0.1)
        assert service.job("j-1").state == "finished"
        notebook = subprocess.Popen(
            [*PLAIT, "notebook", "-g", "1"], cwd=tmp_path, env=environ, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            address = notebook.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/lab\?token=\S+", address)
            page = b""
            for _ in range(100):  # until Jupyter has started
                try:
                    page = urllib.request.urlopen(address, timeout=60).read()
                    break
                except OSError:
                    time.sleep(0.2)
            assert page == b"lab" * 200_000
            assert urllib.request.urlopen(address.partition("?")[0], timeout=60).read() == b"no"
        finally:
            notebook.send_signal(signal.SIGINT)
            notebook.communicate(timeout=30)
        while service.job("j-2").state not in FINAL:
            time.sleep(0.1)
        service.cancel(job.id)
        assert plait("exec", job.id, "--", "true")[0] != 0
