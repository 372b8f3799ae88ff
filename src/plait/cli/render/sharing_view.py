"""How jobs that share GPUs with guests, or as guests, are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def where_text(job: Mapping[str, Any]) -> str:
    """Text of a list behind the nodes of a job; empty for a job that shares no GPUs as guest or host.

    >>> host, guest = {"job": "j-0", "gpu": "n0:1", "guest": False}, {"job": "j-5", "gpu": "n0:1", "guest": True}
    >>> where_text({"sharing": {"guest": True, "share": 0.35, "beside": [host]}})
    'guest of j-0, share 0.35'
    >>> where_text({"sharing": {"guest": True, "share": 0.35, "throttled": "cgroup", "duty": 0.34, "beside": [host]}})
    'guest of j-0, share 0.35, throttled (ran 0.34)'
    >>> where_text({"sharing": {"guest": False, "share": 1.0, "beside": [guest]}})
    'host of j-5'
    """
    how = job.get("sharing")
    if not how:
        return ""
    hosts, guests = _names(how, guest=False), _names(how, guest=True)
    if not how.get("guest"):
        return f"host of {', '.join(guests)}"
    text = f"guest of {', '.join(hosts)}" if hosts else "guest"
    if how.get("action") == "pause":
        return f"{text}, paused"
    if how.get("share") is None:
        return text
    if how.get("throttled") and how["share"] == 0:
        return f"{text}, frozen"
    text = f"{text}, share {how['share']:.2f}"
    if not how.get("throttled"):
        return text
    return f"{text}, throttled" + ("" if how.get("duty") is None else f" (ran {how['duty']:.2f})")


def rows(how: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The lines of one job, by what they are called."""
    beside = [
        f"{one['job']} on {one['gpu']}{' (guest)' if one.get('guest') else ''}" for one in how.get("beside") or ()
    ]
    out: list[tuple[str, object]] = [("runs as", "guest" if how.get("guest") else "host of guests")]
    out += [("shares with", ", ".join(beside))] if beside else []
    if how.get("guest") and how.get("share") is not None:
        out.append(("share", f"{how['share']:.2f} of the GPU's time"))
    if how.get("throttled"):
        by = "the freezer of its control group" if how["throttled"] == "cgroup" else "SIGSTOP and SIGCONT"
        ran = "" if how.get("duty") is None else f"; it ran for {how['duty']:.2f} of the last 10 s"
        out.append(("throttled by", f"{by}, since it does not pace itself{ran}"))
    if how.get("limit_bytes"):
        out.append(("memory limit", f"{how['limit_bytes'] / 1e9:.1f} GB"))
    if how.get("action") not in (None, "run"):
        out.append(("instruction", how["action"]))
    return out


def _names(how: Mapping[str, Any], *, guest: bool) -> list[str]:
    return list(dict.fromkeys(one["job"] for one in how.get("beside") or () if bool(one.get("guest")) is guest))
