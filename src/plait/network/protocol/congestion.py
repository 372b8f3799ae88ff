"""Windows of a worker: fixed, of ATP (additive increase, multiplicative decrease) and the two windows of A2TP.

From released code of ATP (where it is switched off) and A2TP. Start at `close_window`, which changes them once for each
window of results.
"""

from __future__ import annotations

from enum import IntEnum

from plait.core.jit import lean_part
from plait.network.protocol.header import Records


class Congestion(IntEnum):
    """What changes the window of a worker."""

    NONE = 0
    AIMD = 1
    A2TP = 2


FIXED, AIMD, A2TP = (int(kind) for kind in Congestion)


@lean_part
def open_windows(workers: Records, w: int, now: int) -> None:
    """The windows at the start of a tensor: as they were left, or as they are set up before the first one."""
    me = workers[w]
    if me["cwnd"] <= 0:
        me["cwnd"] = min(me["initial_window"], me["window"])
        me["awnd"] = me["cwnd"]
        me["alpha"], me["beta"], me["gamma"] = 0.0, 0.0, 1.0
    me["straggling"] = 1.0
    me["opening"] = 1
    _new_round(workers, w, now)


@lean_part
def _new_round(workers: Records, w: int, now: int) -> None:
    me = workers[w]
    me["round_end"] = me["ack"] + me["cwnd"]
    me["round_sent"] = 0
    me["ecn_count"] = 0
    me["col_count"] = 0
    me["updated_at"] = now
    me["updated_ack"] = me["ack"]
    me["sampled"] = 0


@lean_part
def sample_straggling(workers: Records, w: int, now: int) -> None:
    """A2TP's degree of straggling, at the first result between a base RTT and the end of the interval.

    The progress in order since the last change of the windows, of a window; at most 1.
    """
    me = workers[w]
    since = now - me["updated_at"]
    if me["cc"] == A2TP and me["sampled"] == 0 and me["base_rtt"] <= since <= me["interval_end"]:
        me["sampled"] = 1
        me["straggling"] = min(1.0, (me["ack"] - me["updated_ack"]) / max(1, me["cwnd"]))


@lean_part
def close_window(workers: Records, w: int, ecn: bool, now: int) -> None:
    """Change the windows if `ack` has passed the end of the current one; `ecn`: of the result that passed it."""
    me = workers[w]
    if me["ack"] < me["round_end"]:
        return
    me["opening"] = 0
    if me["cc"] == AIMD:
        if ecn:
            me["cwnd"] = max(1, int(me["cwnd"] * me["decrease"]))
        else:
            me["cwnd"] = min(me["window"], me["cwnd"] + me["increase"])
        me["awnd"] = me["cwnd"]
    elif me["cc"] == A2TP:
        _two_windows(workers, w)
    _new_round(workers, w, now)


@lean_part
def _two_windows(workers: Records, w: int) -> None:
    """A2TP's rules, in this order, with the old windows in the divisors."""
    me = workers[w]
    gamma_gain, theta = me["gamma_gain"], me["theta"]
    me["gamma"] = (1 - gamma_gain) * me["gamma"] + gamma_gain * me["straggling"]
    me["alpha"] = (1 - me["alpha_gain"]) * me["alpha"] + me["alpha_gain"] * me["ecn_count"] / me["cwnd"]
    me["beta"] = (1 - me["beta_gain"]) * me["beta"] + me["beta_gain"] * me["col_count"] / me["awnd"]
    awnd = me["awnd"] + 1
    if me["col_count"] > 0 and me["beta"] > theta:
        awnd = int(me["awnd"] * (1 - (me["beta"] - theta) ** me["gamma"] / (2 - theta)))
    cwnd = me["cwnd"] + 1
    if me["ecn_count"] > 0:
        cwnd = int(me["cwnd"] * (1 - me["alpha"] / 2))
    me["cwnd"] = min(me["window"], max(1, cwnd))
    me["awnd"] = min(me["cwnd"], max(1, awnd))
    me["straggling"] = 1.0
