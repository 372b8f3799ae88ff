"""How jobs that share GPUs with guests, or as guests, are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.live.api.jobs import SharingOfJob


def where_text(how: SharingOfJob | None) -> str:
    """Text of a list behind the nodes of a job; empty for a job that shares no GPUs as guest or host."""
    if how is None:
        return ""
    hosts, guests = _names(how, guest=False), _names(how, guest=True)
    if not how.guest:
        return f"host of {', '.join(guests)}"
    text = f"guest of {', '.join(hosts)}" if hosts else "guest"
    if how.action == "pause":
        return f"{text}, paused"
    if how.share is None:
        return text
    if how.throttled and how.share == 0:
        return f"{text}, frozen"
    text = f"{text}, share {how.share:.2f}"
    if not how.throttled:
        return text
    return f"{text}, throttled" + ("" if how.duty is None else f" (ran {how.duty:.2f})")


def rows(how: SharingOfJob) -> list[tuple[str, object]]:
    """The lines of one job, by what they are called."""
    neighbours = [f"{one.job} on {one.gpu}{' (guest)' if one.guest else ''}" for one in how.beside]
    out: list[tuple[str, object]] = [("runs as", "guest" if how.guest else "host of guests")]
    out += [("shares with", ", ".join(neighbours))] if neighbours else []
    if how.guest and how.share is not None:
        out.append(("share", f"{how.share:.2f} of the GPU's time"))
    if how.throttled:
        by = "the freezer of its control group" if how.throttled == "cgroup" else "SIGSTOP and SIGCONT"
        ran = "" if how.duty is None else f"; it ran for {how.duty:.2f} of the last 10 s"
        out.append(("throttled by", f"{by}, since it does not pace itself{ran}"))
    if how.limit_bytes:
        out.append(("memory limit", f"{how.limit_bytes / 1e9:.1f} GB"))
    if how.action not in (None, "run"):
        out.append(("instruction", how.action))
    return out


def _names(how: SharingOfJob, *, guest: bool) -> list[str]:
    return list(dict.fromkeys(one.job for one in how.beside if one.guest is guest))
