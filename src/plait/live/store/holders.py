"""The name of a process in its lease, and the check whether it lives."""

from __future__ import annotations

import json
import os

from plait.live.protocol.leases import LEAD_S
from plait.live.system import procs


def this_process(lease_s: float = LEAD_S) -> str:
    """The calling process's name in its lease, and how long its leases last.

    Another one on the same machine can see whether it is dead.
    """
    me = procs.Process.of(os.getpid())
    assert me is not None
    said = {"pid": me.pid, "start_time": me.start_time, "boot": me.boot, "space": _space(), "lease_s": lease_s}
    return json.dumps(said)


def lasts_s(holder: str, usual_s: float) -> float:
    """Seconds that a holder's leases last."""
    try:
        return float(json.loads(holder)["lease_s"])
    except (ValueError, KeyError, TypeError):
        return usual_s


def is_dead(holder: str) -> bool:
    """Whether a holder is known to be dead; False for one of another machine or container, where it is unknown."""
    try:
        said = json.loads(holder)
        if said["boot"] != procs.boot_id() or said["space"] != _space() or not said["space"]:
            return False
        return not procs.Process(said["pid"], said["start_time"], said["boot"]).alive
    except (ValueError, KeyError, TypeError, OSError):
        return False


def _space() -> str:
    """The pid namespace: pids of other containers mean nothing here."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
