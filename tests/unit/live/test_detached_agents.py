"""What becomes of agents that an engine's process starts: nothing of that process is left in them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")


def test_they_are_not_as_nice_as_rays_workers_where_that_is_allowed() -> None:
    from plait.live.backends.host import _DETACH

    capable = re.search(r"CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text())
    allowed = int(capable[1], 16) >> 23 & 1  # CAP_SYS_NICE
    command = ["nice", "-n", "15", sys.executable, "-S", "-E", "-c", _DETACH, "/usr/bin/nice"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) > 0  # the pid
    assert done.stderr.split() == ["0" if allowed else "15"]
