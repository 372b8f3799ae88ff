"""All state of a packet simulation: records in arrays, in one named tuple that the kernels share.

Times are int64 picoseconds: a packet of 306 bytes takes 24.48 ns at 100 Gb/s. The protocol gets nanoseconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from plait.core.arrays import IntArray
from plait.core.jit import lean_part
from plait.network.protocol.header import Records, Values
from plait.network.protocol.server import Server
from plait.network.protocol.switch import Switch
from plait.network.protocol.worker import Workers

PS = 1000  # picoseconds of a nanosecond

#: Two classes of packets: to servers, and from them. Queue 2 c + class is that of channel c; after all of these come
#: the lines of channels that both classes use, in the same order.
UP, DOWN = 0, 1

#: One direction of a link. `to`: the node, or the number of nodes plus the switch, that it leads to; `mark_ps`: backlog
#: at which packets are marked; `full_ps`: backlog at which packets are dropped, or with `pauses` stop the links over
#: which they came; `lose_up`, `lose_down`: probabilities times 2^30, by class; from `slow_from` to `slow_until` packets
#: take `slow` times as long; `paused`: until when nothing starts. Then counters.
CHANNEL = np.dtype(
    [
        ("ps_per_byte", "f8"),
        ("busy", "i8"),
        ("mark_ps", "i8"),
        ("full_ps", "i8"),
        ("pauses", "i8"),
        ("to", "i8"),
        ("lose_up", "i8"),
        ("lose_down", "i8"),
        ("slow", "f8"),
        ("slow_from", "i8"),
        ("slow_until", "i8"),
        ("paused", "i8"),
        ("sent", "i8"),
        ("lost", "i8"),
        ("dropped", "i8"),
        ("marked", "i8"),
        ("stopped", "i8"),
    ]
)
#: Packets of a class on their way through a channel, a ring of `mask` + 1 entries from `first` on. `delay`: from the
#: end of a packet's transmission to its event at the other end. `line`: that of packets of a class which are not ready
#: to be sent, -1 where only one class uses the channel: what is ready of the other class does not wait for them.
QUEUE = np.dtype([("first", "i8"), ("mask", "i8"), ("head", "i8"), ("count", "i8"), ("delay", "i8"), ("line", "i8")])
#: An entry of a ring: when the packet arrives or is ready, its insertion number, its row, and the channel over which it
#: came to the switch, for packets that are not ready.
ENTRY = np.dtype([("time", "i8"), ("order", "i8"), ("row", "i8"), ("came", "i8")])
#: A job at a switch: the channel to its server, -1 for none; its children from `first_kid` on; and how many aggregators
#: it has held there since when, how many it has claimed.
ROUTE = np.dtype(
    [("up", "i8"), ("first_kid", "i8"), ("kids", "i8"), ("claims", "i8"), ("held", "i8"), ("since", "i8")], align=True
)
#: A child: a channel, and the workers that it leads to.
KID = np.dtype([("channel", "i8"), ("bits", "i8")])
#: A switch: its aggregators are those from `first` to `last`, `latency` of a pass in ps; until when its port for
#: packets that recirculate is `busy`, at `ps_per_byte`.
SWITCH = np.dtype(
    [("first", "i8"), ("last", "i8"), ("latency", "i8"), ("max_age", "i8"), ("busy", "i8"), ("ps_per_byte", "f8")]
)
#: A job: bytes of a packet on the wire, the channel from the node of its server, tensors in all, those of an iteration,
#: packets of exponents, workers, whether it has dedicated slots, workers that are not finished, passes of a packet
#: through a switch that adds it up, time after which its server asks for what is missing (ps; 0: never), whether it is
#: an all-reduce between workers; then packets that came to its server.
JOB = np.dtype(
    [
        ("wire_bytes", "i8"),
        ("server_channel", "i8"),
        ("server_ps", "i8"),
        ("tensors", "i8"),
        ("per_iteration", "i8"),
        ("exponents", "i8"),
        ("n_workers", "i8"),
        ("dedicated", "i8"),
        ("busy", "i8"),
        ("passes", "i8"),
        ("reminder", "i8"),
        ("collective", "i8"),
        ("arrived", "i8"),
    ]
)
#: A worker: the channel from its node, its rank, its jitter and computation in ps, the next tensor, whether its timer
#: is in the heap, how often it had too many timeouts in a row, wrong sums that it received.
HOST = np.dtype(
    [
        ("channel", "i8"),
        ("rank", "i8"),
        ("jitter", "i8"),
        ("compute", "i8"),
        ("tensor", "i8"),
        ("timed", "i8"),
        ("gave_up", "i8"),
        ("wrong", "i8"),
    ]
)

#: A lane of a worker of an all-reduce: the next of its sends and the one after its last, packets of it that were sent,
#: and of all that have not arrived yet.
LANE = np.dtype([("at", "i8"), ("end", "i8"), ("sent", "i8"), ("under_way", "i8")])
#: Packets for another worker: its node, how many, their part of the all-reduce, the part that must have come before
#: (-1: none), and how long an acknowledgement takes (ps).
SEND = np.dtype([("node", "i8"), ("packets", "i8"), ("part", "i8"), ("after", "i8"), ("back", "i8")])
#: Background traffic from a node to another: the channel from it, the other node, a number after those of jobs, the
#: mean time between the last packet of a flow and the next flow, that between packets of one, and when the first one is
#: sent (ps), and packets left of the present flow.
FLOW = np.dtype([(name, "i8") for name in ("channel", "node", "job", "gap", "line", "start", "left")])
#: Type of a packet for another node that no switch adds up, after those of the protocol; `bitmap` is the node.
PEER = 7

#: Another region of a job, from the tensor `tensor` on: as in `worker.WORKER`.
MOVE = np.dtype([("tensor", "i8"), ("offset", "i8"), ("size", "i8"), ("mode", "i8"), ("window", "i8"), ("epoch", "i8")])

#: Columns of `Links.info`: size of the heap, insertion numbers, random numbers, the first free row, rows in use,
#: workers that are not finished, what went wrong and where, rows of the log, width of a bin (ps), events, seed, time.
HEAP, ORDER, DRAWS, FREE_ROW, ROWS, ACTIVE, FAULT, FAULT_AT, LOGGED, WIDTH, EVENTS, SEED, NOW = range(13)
INFO = 13
#: What may go wrong.
FINE, FULL_QUEUE, FULL_ROWS, TOO_LATE = range(4)
#: Bins of everything that is measured over time.
BINS = 256
#: Columns of the log: when (ps), where (node or switch, by number), type, job, seq, bitmap, index, flags, priority.
COLUMNS = 9


class Links(NamedTuple):
    """Channels and what is on its way through them; and the heap.

    packets  rows that are in use or, from `info[FREE_ROW]` on by `refs`, free; `refs`: queues that a row is in
    """

    channels: Records
    queues: Records
    entries: Records
    heap: Records
    packets: Records
    values: Values
    refs: npt.NDArray[np.int32]
    jobs: Records
    info: IntArray


class Fabric(NamedTuple):
    """Switches and the routes of jobs through them.

    table    the aggregators of all switches, one after the other; `value` likewise
    jobs_at  switches x jobs: what `switch.Switch.jobs` is
    held     jobs x bins: aggregators x ps
    """

    routes: Records
    kids: Records
    switches: Records
    table: Records
    value: Values
    jobs_at: Records
    switch_info: IntArray
    held: IntArray


class Ends(NamedTuple):
    """Workers, and what they have to send.

    worker_at  nodes x jobs: the worker there, or -1
    tensors    jobs x tensors x 3: first packet, the packet after its last, priority
    delivered  jobs x bins: packets, by all workers
    times      jobs x iterations x 2: start of the first worker and end of the last (ps)
    moves      jobs: the newest move of each
    """

    worker_at: npt.NDArray[np.int32]
    tensors: IntArray
    hosts: Records
    delivered: IntArray
    times: IntArray
    moves: Records
    workers: Workers


class PeerTraffic(NamedTuple):
    """All-reduces without aggregation, and background traffic.

    hops      (jobs and flows) x switches x nodes: the channel to a node
    lanes     workers x lanes; `starts`: workers x tensors x (lanes + 1), the first send of each lane
    missing   workers x 2 x parts: packets of the present and the next tensor that have not come; `left`: their sums,
              and whether the worker is in a tensor; `expected`: workers x tensors x parts
    waiting   channels x 2: packets of background traffic on each, and its room for them; empty without such traffic
    sizes     (1024,) quantiles of the sizes of its flows, in packets; a flow of one packet has another after it
    """

    hops: npt.NDArray[np.int32]
    lanes: Records
    sends: Records
    starts: IntArray
    missing: IntArray
    left: IntArray
    expected: IntArray
    flows: Records
    waiting: IntArray
    sizes: IntArray


class Net(NamedTuple):
    """All of a simulation. In parts, since the compiler takes long over functions with many arrays."""

    links: Links
    fabric: Fabric
    ends: Ends
    server: Server
    peers: PeerTraffic
    log: IntArray


@lean_part
def switch_at(fabric: Fabric, s: int) -> Switch:
    """A switch as the protocol knows it: views of its rows."""
    first, last = fabric.switches[s]["first"], fabric.switches[s]["last"]
    return Switch(fabric.table[first:last], fabric.value[first:last], fabric.jobs_at[s], fabric.switch_info[s])
