"""Windows of a job: fixed, of ATP (additive increase, multiplicative decrease) and the two windows of A2TP.

ATP's, from released code (where it is switched off), belong to each worker: start at `close_window`. A2TP's two windows
must be the same at all workers: a packet that bypasses the switch while another of its sum claims an aggregator leaves
a sum that never completes there. In the released code each worker computes them from what it sees; here the server
does, once for all, and its results carry them (our design; the rules are those of the released code). Start at
`note_sum`.
"""

from __future__ import annotations

from enum import IntEnum

from plait.core.jit import lean_part
from plait.network.protocol.header import ECN, OWNER_COL, Records


class Congestion(IntEnum):
    """What changes the window of a worker."""

    NONE = 0
    AIMD = 1
    A2TP = 2


FIXED, AIMD, A2TP = (int(kind) for kind in Congestion)

#: Fields of a job at its server for A2TP: the limits and gains that are set up, the windows (packets) and their
#: smoothed congestion, collisions and straggling, then what was counted since they changed last.
WINDOWS = [
    ("cc", "i4"),
    ("window", "i4"),
    ("cwnd", "i4"),
    ("awnd", "i4"),
    ("base_rtt", "i8"),
    ("interval_end", "i8"),
    ("theta", "f8"),
    ("alpha_gain", "f8"),
    ("beta_gain", "f8"),
    ("gamma_gain", "f8"),
    ("alpha", "f8"),
    ("beta", "f8"),
    ("gamma", "f8"),
    ("straggling", "f8"),
    ("updated_at", "i8"),
    ("completed", "i4"),
    ("ecn_count", "i4"),
    ("col_count", "i4"),
    ("sampled", "i4"),
]


@lean_part
def open_window(workers: Records, w: int) -> None:
    """The window at the start of a tensor: as it was left, or as it is set up before the first one."""
    me = workers[w]
    if me["cwnd"] <= 0:
        me["cwnd"] = min(me["initial_window"], me["window"])
    me["round_end"] = me["ack"] + me["cwnd"]


@lean_part
def close_window(workers: Records, w: int, ecn: bool) -> None:
    """Change the window of AIMD if `ack` has passed its end; `ecn`: of the result that passed it."""
    me = workers[w]
    if me["cc"] != AIMD or me["ack"] < me["round_end"]:
        return
    if ecn:
        me["cwnd"] = max(1, int(me["cwnd"] * me["decrease"]))
    else:
        me["cwnd"] = min(me["window"], me["cwnd"] + me["increase"])
    me["round_end"] = me["ack"] + me["cwnd"]


@lean_part
def note_sum(jobs: Records, job: int, flags: int, now: int) -> bool:
    """Count a sum that is complete, with its marks, in the two windows of a job; they change once for each `cwnd` sums.

    Returns whether the packet one whole window later is to bypass the switch: of each window the first `awnd` are not.
    """
    row = jobs[job]
    row["completed"] += 1
    bypasses: bool = row["completed"] > row["awnd"]
    if flags & ECN:
        row["ecn_count"] += 1
    if flags & OWNER_COL:
        row["col_count"] += 1
    since = now - row["updated_at"]
    if row["sampled"] == 0 and row["base_rtt"] <= since <= row["interval_end"]:
        row["sampled"] = 1
        row["straggling"] = min(1.0, row["completed"] / max(1, row["cwnd"]))
    if row["completed"] >= row["cwnd"]:
        _two_windows(jobs, job)
        row["updated_at"] = now
        row["completed"], row["ecn_count"], row["col_count"], row["sampled"] = 0, 0, 0, 0
        row["straggling"] = 1.0
    return bypasses


@lean_part
def _two_windows(jobs: Records, job: int) -> None:
    """A2TP's rules, in this order, with the old windows in the divisors."""
    row = jobs[job]
    gamma_gain, theta = row["gamma_gain"], row["theta"]
    row["gamma"] = (1 - gamma_gain) * row["gamma"] + gamma_gain * row["straggling"]
    row["alpha"] = (1 - row["alpha_gain"]) * row["alpha"] + row["alpha_gain"] * row["ecn_count"] / row["cwnd"]
    row["beta"] = (1 - row["beta_gain"]) * row["beta"] + row["beta_gain"] * row["col_count"] / row["awnd"]
    awnd = row["awnd"] + 1
    if row["col_count"] > 0 and row["beta"] > theta:
        awnd = int(row["awnd"] * (1 - (row["beta"] - theta) ** row["gamma"] / (2 - theta)))
    cwnd = row["cwnd"] + 1
    if row["ecn_count"] > 0:
        cwnd = int(row["cwnd"] * (1 - row["alpha"] / 2))
    row["cwnd"] = min(row["window"], max(1, cwnd))
    row["awnd"] = min(row["cwnd"], max(1, awnd))
