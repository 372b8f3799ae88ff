"""The walk of AntMan's global scheduler over jobs and GPUs, for thousands of both; `antman.py` says what it decides.

All in one file on purpose: the compiler's cache notices changes to the file a function is in, not to what it calls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.core.jit import kernel, part

#: what becomes of a job
(
    STAYS,
    STARTS,  # as a host
    PROMOTED,  # a guest that becomes a host where it is
    MOVED,  # a guest that goes on elsewhere
    GUEST,  # starts as a guest
    DISPLACED,  # a guest that a host leaves no room for, and that finds none elsewhere
    HOLDS,  # waits with a reservation
    OVER_QUOTA,  # waits until its tenant's quota has room
    ABOVE_QUOTA,  # asks for more than its tenant may ever have
    BEHIND,  # waits: too few GPUs are free of hosts and reservations
    UNSHARED,  # waits as a guest: too few GPUs are open to it
) = range(11)

#: Among GPUs that are used alike, those with fewer guests go first: each counts as much use.
PER_GUEST = 1e-3
#: Room for rounding: cores and bytes.
SLACK = 1e-6


#: Columns of the tables below: whole numbers and amounts of jobs, of GPUs, and whole numbers of nodes.
GPUS, TENANT, KINDS, LO, HI, KEPT, STALLED, LENDS, RANK, STATUS, NEW_LO, NEW_HI, THERE = range(13)
CORES, HOST_BYTES, BYTES, USE = range(4)
NODE, CLOSED, JOBS, GUESTS = range(4)
CAPACITY, TAKEN, LOAD = range(3)
FIRST, END, KIND, RACK, UP = range(5)


class Jobs(NamedTuple):
    """Jobs, a row each; tables, because the compiler's time goes by the number of arrays.

    `whole` (n, 13): what a job asks for: GPUS of KINDS (a bit mask) for TENANT; it holds `held[LO:HI]` if it runs;
    flags KEPT (may not be moved), STALLED (should be), LENDS (will be a guest if it cannot be a host, so nothing is
    reserved for it); its RANK among all. Results: STATUS, on (or reserved) `new[NEW_LO:NEW_HI]`, and how many GPUs
    were THERE for it. `amounts` (n, 4): CORES and HOST_BYTES for each of its GPUs, BYTES of GPU memory, and USE: the
    part of the time that it keeps a GPU busy when alone. `filled`: one value, how much of `new` is.
    """

    whole: IntArray
    amounts: FloatArray
    held: IntArray
    new: IntArray
    filled: IntArray


class Devices(NamedTuple):
    """GPUs and nodes, a row each, at a moment of the walk.

    `whole` (gpus, 4): NODE; CLOSED: has a host, is reserved, or its node is down; JOBS on it, GUESTS of those.
    `amounts` (gpus, 3): CAPACITY in bytes, infinite where not known; TAKEN bytes of jobs and contexts; LOAD: the parts
    of time that its jobs use. `nodes` (nodes, 5): its GPUs are FIRST to before END, of KIND, in RACK, UP or not.
    `spare` (nodes, 2): CORES and HOST_BYTES.
    """

    whole: IntArray
    amounts: FloatArray
    nodes: IntArray
    spare: FloatArray


class Rules(NamedTuple):
    """A GPU takes guests below `limit` and up to `most` of them; `context` bytes come with each process.

    `kinds` and `racks`: how many there are.
    """

    limit: float
    most: int
    context: float
    kinds: int
    racks: int


class Lists(NamedTuple):
    """Rows of jobs. `hosts` and `guests` run, the latter in their order; `asking` are those that would be guests.

    `queue[first[t]:first[t + 1]]`: those of tenant t that want to be hosts, best first; guests among them would be
    promoted. `holders` have a reservation.
    """

    hosts: IntArray
    guests: IntArray
    asking: IntArray
    queue: IntArray
    first: IntArray
    holders: IntArray


class Tenants(NamedTuple):
    """GPUs of tenants, shape (tenants, kinds): that their hosts have, that jobs ahead wait for, that they may have.

    By tenant: `total` is what it may have of all kinds together, `share` what its usage is compared with.
    """

    used: FloatArray
    claimed: FloatArray
    quota: FloatArray
    total: FloatArray
    share: FloatArray


@part
def fits(gpu: int, row: int, guest: bool, jobs: Jobs, devices: Devices, rules: Rules) -> bool:
    """Whether the GPU has the memory for one job more; contexts count where there are guests."""
    context = rules.context if guest or devices.whole[gpu, JOBS] > 0 else 0.0
    needed = devices.amounts[gpu, TAKEN] + jobs.amounts[row, BYTES] + context
    return bool(needed <= devices.amounts[gpu, CAPACITY] * (1.0 + 1e-9))


@part
def on_node(node: int, row: int, jobs: Jobs, devices: Devices) -> int:
    """GPUs of a job that a node's cores and host memory are enough for."""
    room = 1 << 30
    for i in range(2):
        if jobs.amounts[row, i] > 0.0 and devices.spare[node, i] < np.inf:
            room = min(room, int(np.floor((devices.spare[node, i] + SLACK) / jobs.amounts[row, i])))
    return max(room, 0)


@part
def take(gpus: IntArray, lo: int, hi: int, row: int, host: bool, jobs: Jobs, devices: Devices, rules: Rules) -> None:
    """Put a job on `gpus[lo:hi]`."""
    for i in range(lo, hi):
        gpu = gpus[i]
        node = devices.whole[gpu, NODE]
        for r in range(2):
            devices.spare[node, r] -= jobs.amounts[row, r]
        devices.amounts[gpu, TAKEN] += jobs.amounts[row, BYTES] + rules.context
        devices.whole[gpu, JOBS] += 1
        devices.amounts[gpu, LOAD] += jobs.amounts[row, USE]
        if host:
            devices.whole[gpu, CLOSED] = 1
        else:
            devices.whole[gpu, GUESTS] += 1


@part
def still_fits(gpus: IntArray, lo: int, hi: int, row: int, jobs: Jobs, devices: Devices, rules: Rules) -> bool:
    """Whether a guest may stay on `gpus[lo:hi]` beside those that came before it."""
    there = np.zeros(len(devices.nodes), dtype=np.int64)
    for i in range(lo, hi):
        gpu = gpus[i]
        there[devices.whole[gpu, NODE]] += 1
        if devices.whole[gpu, GUESTS] >= rules.most or not fits(gpu, row, True, jobs, devices, rules):
            return False
    for i in range(lo, hi):
        node = devices.whole[gpus[i], NODE]
        if on_node(node, row, jobs, devices) < there[node]:
            return False
    return True


@part
def rooms(row: int, kind: int, jobs: Jobs, devices: Devices, rules: Rules, room: IntArray, clean: IntArray) -> int:
    """How many GPUs of each node of a kind a job could have as a host, and those without guests; the former's sum."""
    total = 0
    for node in range(len(devices.nodes)):
        room[node] = clean[node] = 0
        if devices.nodes[node, KIND] == kind and devices.nodes[node, UP]:
            for gpu in range(devices.nodes[node, FIRST], devices.nodes[node, END]):
                if not devices.whole[gpu, CLOSED] and fits(gpu, row, False, jobs, devices, rules):
                    room[node] += 1
                    clean[node] += devices.whole[gpu, GUESTS] == 0
            if room[node] > 0:
                room[node] = min(room[node], on_node(node, row, jobs, devices))
            total += room[node]
    return total


@part
def spread(
    need: int, rack: int, room: IntArray, clean: IntArray, nodes: IntArray, from_node: IntArray
) -> tuple[int, int]:
    """GPUs from each of the fewest nodes, of a rack or of all for -1: how many nodes, and on how many guests are.

    The roomiest nodes whole, then one for the rest; among equal ones the fewest guests, the least room, the lowest
    number. A gang that does not fit takes 0 nodes.
    """
    for node in range(len(room)):
        from_node[node] = 0
    missing, count, shared = need, 0, 0
    while missing > 0:
        best, get, crowd = -1, 0, 0
        for node in range(len(room)):
            if room[node] == 0 or from_node[node] > 0 or (rack >= 0 and nodes[node, RACK] != rack):
                continue
            gets = min(room[node], missing)
            guests = max(gets - clean[node], 0)
            if gets == get and best >= 0:
                better = guests < crowd or (guests == crowd and room[node] < room[best])
            else:
                better = gets > get
            if better:
                best, get, crowd = node, gets, guests
        if best < 0:
            return 0, 0
        from_node[best] = get
        missing, count, shared = missing - get, count + 1, shared + crowd
    return count, shared


@part
def name_gpus(row: int, from_node: IntArray, jobs: Jobs, devices: Devices, rules: Rules, out: IntArray) -> None:
    """So many GPUs of each node into `out`: those with fewest guests, the lowest numbers first."""
    found = 0
    for node in range(len(from_node)):
        crowd, missing = 0, from_node[node]
        while missing > 0:
            for gpu in range(devices.nodes[node, FIRST], devices.nodes[node, END]):
                free = missing > 0 and not devices.whole[gpu, CLOSED] and devices.whole[gpu, GUESTS] == crowd
                if free and fits(gpu, row, False, jobs, devices, rules):
                    out[found] = gpu
                    found += 1
                    missing -= 1
            crowd += 1


@part
def best_topology(
    row: int, jobs: Jobs, devices: Devices, rules: Rules, allowed: BoolArray, out: IntArray
) -> tuple[int, int]:
    """The best GPUs of one of the `allowed` kinds for a host into `out`: the kind and how many.

    Fewest nodes, then one rack, then fewest guests, then least room left, lowest numbers. Fewer than it needs are the
    best part of a gang, of the kind that has most; kind -1 if there are none.
    """
    need, nodes = jobs.whole[row, GPUS], len(devices.nodes)
    room, clean = np.empty(nodes, dtype=np.int64), np.empty(nodes, dtype=np.int64)
    trial, chosen = np.empty(nodes, dtype=np.int64), np.empty(nodes, dtype=np.int64)
    best, best_got, best_nodes, best_racks, best_shared = -1, 0, 0, 0, 0
    for kind in range(rules.kinds):
        got = 0
        if allowed[kind]:
            got = min(rooms(row, kind, jobs, devices, rules, room, clean), need)
        if got == 0 or got < best_got:
            continue
        for rack in range(-1, rules.racks if rules.racks > 1 and got == need else 0):
            on, shared = spread(got, rack, room, clean, devices.nodes, trial)
            racks = 1 if rack >= 0 or on == 1 or rules.racks == 1 else 2
            better = best < 0 or got > best_got or on < best_nodes
            if not better and on == best_nodes:
                better = racks < best_racks or (racks == best_racks and shared < best_shared)
            if on > 0 and better:
                best, best_got, best_nodes, best_racks, best_shared = kind, got, on, racks, shared
                for node in range(nodes):
                    chosen[node] = trial[node]
    if best >= 0:
        name_gpus(row, chosen, jobs, devices, rules, out)
    return best, best_got


@part
def open_to_guests(gpu: int, devices: Devices, rules: Rules) -> bool:
    """Whether a GPU is used little enough, by few enough guests."""
    return bool(devices.amounts[gpu, LOAD] < rules.limit and devices.whole[gpu, GUESTS] < rules.most)


@part
def least_used(row: int, jobs: Jobs, devices: Devices, rules: Rules, out: IntArray) -> int:
    """The least used GPUs of one kind for a guest into `out`, none of them its present ones; how many it found.

    Fewer than it needs is what the kind with most of them has.
    """
    need, best, best_load = jobs.whole[row, GPUS], 0, 0.0
    open_ = np.empty(len(devices.whole), dtype=np.bool_)
    chosen, there = np.empty(need, dtype=np.int64), np.empty(len(devices.nodes), dtype=np.int64)
    for kind in range(rules.kinds):
        if not (jobs.whole[row, KINDS] >> kind) & 1:
            continue
        for gpu in range(len(open_)):
            node = devices.whole[gpu, NODE]
            usable = (
                devices.nodes[node, KIND] == kind and devices.nodes[node, UP] and open_to_guests(gpu, devices, rules)
            )
            open_[gpu] = usable and fits(gpu, row, True, jobs, devices, rules)
        for i in range(jobs.whole[row, LO], jobs.whole[row, HI]):
            open_[jobs.held[i]] = False
        for node in range(len(there)):
            there[node] = on_node(node, row, jobs, devices)
        found, load = 0, 0.0
        while found < need:
            pick, least = -1, 0.0
            for gpu in range(len(open_)):
                if open_[gpu] and there[devices.whole[gpu, NODE]] > 0:
                    use = devices.amounts[gpu, LOAD] + PER_GUEST * devices.whole[gpu, GUESTS]
                    if pick < 0 or use < least:
                        pick, least = gpu, use
            if pick < 0:
                break
            open_[pick] = False
            there[devices.whole[pick, NODE]] -= 1
            chosen[found] = pick
            found += 1
            load += least
        if found > best or (found == need and load < best_load):
            best, best_load = found, load
            for i in range(found):
                out[i] = chosen[i]
    return best


@part
def release(gpus: IntArray, lo: int, hi: int, row: int, jobs: Jobs, devices: Devices, rules: Rules) -> None:
    """Take a guest off `gpus[lo:hi]` again."""
    for i in range(lo, hi):
        gpu = gpus[i]
        for r in range(2):
            devices.spare[devices.whole[gpu, NODE], r] += jobs.amounts[row, r]
        devices.whole[gpu, JOBS] -= 1
        devices.whole[gpu, GUESTS] -= 1
        devices.amounts[gpu, TAKEN] -= jobs.amounts[row, BYTES] + rules.context
        devices.amounts[gpu, LOAD] -= jobs.amounts[row, USE]


@part
def total(table: FloatArray, row: int) -> float:
    """The sum of a row."""
    out = 0.0
    for i in range(table.shape[1]):
        out += table[row, i]
    return out


@part
def next_tenant(lists: Lists, tenants: Tenants, jobs: Jobs, at: IntArray) -> int:
    """The tenant with waiting jobs that uses least of its share; at equal ones whose job is first; -1 if none."""
    best, least = -1, 0.0
    for t in range(len(at)):
        if at[t] < lists.first[t + 1]:
            mine = total(tenants.used, t) / tenants.share[t]
            same = best >= 0 and mine == least
            earlier = same and jobs.whole[lists.queue[at[t]], RANK] < jobs.whole[lists.queue[at[best]], RANK]
            if best < 0 or mine < least or earlier:
                best, least = t, mine
    return best


@part
def note(jobs: Jobs, row: int, status: int, gpus: IntArray, count: int) -> None:
    """What becomes of a job, and on which GPUs."""
    end = jobs.filled[0]
    jobs.whole[row, STATUS], jobs.whole[row, NEW_LO], jobs.whole[row, NEW_HI] = status, end, end + count
    for i in range(count):
        jobs.new[end + i] = gpus[i]
    jobs.filled[0] = end + count


@part
def promote(
    row: int,
    kind: int,
    tenants: Tenants,
    jobs: Jobs,
    devices: Devices,
    rules: Rules,
) -> int:
    """Make a guest the host of its GPUs, if they have none and are not reserved; how many GPUs that closes."""
    lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
    if hi - lo != jobs.whole[row, GPUS]:
        return 0
    for i in range(lo, hi):
        if devices.whole[jobs.held[i], CLOSED]:
            return 0
    if jobs.whole[row, KEPT]:
        release(jobs.held, lo, hi, row, jobs, devices, rules)
    else:
        for i in range(lo, hi):
            devices.whole[jobs.held[i], GUESTS] -= 1
    take(jobs.held, lo, hi, row, True, jobs, devices, rules)
    jobs.whole[row, STATUS] = PROMOTED
    tenants.used[jobs.whole[row, TENANT], kind] += hi - lo
    return int(hi - lo)


@part
def admit_host(
    row: int, tenants: Tenants, jobs: Jobs, devices: Devices, rules: Rules, free: IntArray,
) -> None:  # fmt: skip
    """The turn of one job that wants to be a host: start, promote, reserve, or wait."""
    t, need, room, some, ever = jobs.whole[row, TENANT], jobs.whole[row, GPUS], 0, False, -1
    allowed = np.zeros(rules.kinds, dtype=np.bool_)
    in_all = total(tenants.used, t) + total(tenants.claimed, t) + need <= tenants.total[t]
    for kind in range(rules.kinds):
        usable = (jobs.whole[row, KINDS] >> kind) & 1 == 1
        asked = tenants.used[t, kind] + tenants.claimed[t, kind] + need
        allowed[kind] = usable and in_all and asked <= tenants.quota[t, kind]
        some = some or allowed[kind]
        if usable and need <= min(tenants.quota[t, kind], tenants.total[t]) and ever < 0:
            ever = kind
        if allowed[kind]:
            room = max(room, free[kind])
    if jobs.whole[row, HI] > jobs.whole[row, LO]:
        kind = devices.nodes[devices.whole[jobs.held[jobs.whole[row, LO]], NODE], KIND]
        if allowed[kind]:
            free[kind] -= promote(row, kind, tenants, jobs, devices, rules)
        return
    if not some:
        jobs.whole[row, STATUS] = OVER_QUOTA if ever >= 0 else ABOVE_QUOTA
        if ever >= 0 and not jobs.whole[row, LENDS]:
            tenants.claimed[t, ever] += need
        return
    jobs.whole[row, STATUS], jobs.whole[row, THERE] = BEHIND, room
    if room == 0:
        return
    gpus = np.empty(need, dtype=np.int64)
    kind, got = best_topology(row, jobs, devices, rules, allowed, gpus)
    jobs.whole[row, THERE] = got
    if kind >= 0 and got == need:
        note(jobs, row, STARTS, gpus, need)
        take(gpus, 0, need, row, True, jobs, devices, rules)
        tenants.used[t, kind] += need
        free[kind] -= need
    elif kind >= 0 and not jobs.whole[row, LENDS]:
        note(jobs, row, HOLDS, gpus, got)
        for i in range(got):
            devices.whole[gpus[i], CLOSED] = True
        tenants.claimed[t, kind] += need
        free[kind] -= got


@part
def seat_running(lists: Lists, used: FloatArray, jobs: Jobs, devices: Devices, rules: Rules) -> None:
    """Put hosts, and guests that may not be moved, on their GPUs; `used` as in `Tenants`."""
    for gpu in range(len(devices.whole)):
        devices.whole[gpu, CLOSED] = not devices.nodes[devices.whole[gpu, NODE], UP]
    for row in lists.hosts:
        lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
        take(jobs.held, lo, hi, row, True, jobs, devices, rules)
        used[jobs.whole[row, TENANT], devices.nodes[devices.whole[jobs.held[lo], NODE], KIND]] += hi - lo
    for row in lists.guests:
        lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
        if jobs.whole[row, KEPT]:
            take(jobs.held, lo, hi, row, False, jobs, devices, rules)
        else:  # they count where hosts choose, but no host waits for them
            for i in range(lo, hi):
                devices.whole[jobs.held[i], GUESTS] += 1


@kernel
def admit_hosts(
    lists: Lists, tenants: Tenants, jobs: Jobs, devices: Devices, rules: Rules
) -> IntArray:  # fmt: skip
    """Whose turn it is, as long as anybody can get anything; the rows of the queue in that order."""
    seat_running(lists, tenants.used, jobs, devices, rules)
    free = np.zeros(rules.kinds, dtype=np.int64)
    for gpu in range(len(devices.whole)):
        free[devices.nodes[devices.whole[gpu, NODE], KIND]] += not devices.whole[gpu, CLOSED]
    promotable, turns = 0, 0
    for row in lists.queue:
        promotable += jobs.whole[row, HI] > jobs.whole[row, LO]
    order, done = np.empty(len(lists.queue), dtype=np.int64), np.zeros(len(jobs.whole), dtype=np.bool_)
    at = np.empty(len(lists.first) - 1, dtype=np.int64)
    for t in range(len(at)):
        at[t] = lists.first[t]
    for turn in range(len(lists.holders) + len(lists.queue)):
        if turn < len(lists.holders):
            row = lists.holders[turn]
        else:
            t = -1
            left_over = promotable
            for kind in range(rules.kinds):
                left_over += free[kind]
            if left_over > 0:
                t = next_tenant(lists, tenants, jobs, at)
            if t < 0:
                break
            row = lists.queue[at[t]]
            at[t] += 1
        if not done[row]:
            done[row] = True
            order[turns] = row
            turns += 1
            promotable -= jobs.whole[row, HI] > jobs.whole[row, LO]
            admit_host(row, tenants, jobs, devices, rules, free)
    for row in lists.queue:  # nothing was left when their turn would have come
        if not done[row]:
            order[turns] = row
            turns += 1
            if jobs.whole[row, HI] == jobs.whole[row, LO]:
                jobs.whole[row, STATUS] = BEHIND
    return order


@part
def keep_guests(
    lists: Lists,
    jobs: Jobs,
    devices: Devices,
    rules: Rules,
    measured: FloatArray,
) -> None:
    """Guests stay where hosts leave room for them, the first ones first; then GPUs are as used as measured."""
    for row in lists.guests:
        if jobs.whole[row, STATUS] == PROMOTED or jobs.whole[row, KEPT]:
            continue
        lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
        for i in range(lo, hi):
            devices.whole[jobs.held[i], GUESTS] -= 1
        if still_fits(jobs.held, lo, hi, row, jobs, devices, rules):
            take(jobs.held, lo, hi, row, False, jobs, devices, rules)
        else:
            jobs.whole[row, STATUS] = DISPLACED
    begun = np.zeros(len(devices.whole), dtype=np.bool_)
    for i in range(jobs.filled[0]):
        begun[jobs.new[i]] = True
    for gpu in range(len(devices.whole)):
        if not np.isnan(measured[gpu]) and not begun[gpu]:
            devices.amounts[gpu, LOAD] = measured[gpu]


@part
def admit_guest(
    row: int, jobs: Jobs, devices: Devices, rules: Rules, count: IntArray
) -> bool:  # fmt: skip
    """Put a guest on the least used GPUs that are not its present ones, all or nothing; `count` (kinds,): open GPUs."""
    need, most = jobs.whole[row, GPUS], 0
    for kind in range(rules.kinds):
        if (jobs.whole[row, KINDS] >> kind) & 1:
            most = max(most, count[kind])
    jobs.whole[row, THERE] = most
    if most < need:
        return False
    gpus = np.empty(need, dtype=np.int64)
    jobs.whole[row, THERE] = least_used(row, jobs, devices, rules, gpus)
    if jobs.whole[row, THERE] < need:
        return False
    status = GUEST
    if jobs.whole[row, HI] > jobs.whole[row, LO]:
        if jobs.whole[row, STATUS] != DISPLACED:
            release(jobs.held, jobs.whole[row, LO], jobs.whole[row, HI], row, jobs, devices, rules)
        status = MOVED
    note(jobs, row, status, gpus, need)
    take(gpus, 0, need, row, False, jobs, devices, rules)
    for gpu in gpus:
        count[devices.nodes[devices.whole[gpu, NODE], KIND]] -= not open_to_guests(gpu, devices, rules)
    return True


@kernel
def admit_guests(lists: Lists, jobs: Jobs, devices: Devices, rules: Rules, measured: FloatArray) -> None:
    """Guests that stay, then those that have no room or no time where they are, then those that wait.

    `measured` (gpus,): use of GPUs with jobs whose own use is not known, NaN elsewhere; it counts where nobody starts.
    """
    keep_guests(lists, jobs, devices, rules, measured)
    count = np.zeros(rules.kinds, dtype=np.int64)
    for gpu in range(len(devices.whole)):
        node = devices.whole[gpu, NODE]
        count[devices.nodes[node, KIND]] += devices.nodes[node, UP] and open_to_guests(gpu, devices, rules)
    for row in lists.guests:
        status = jobs.whole[row, STATUS]
        if status == DISPLACED or (status == STAYS and jobs.whole[row, STALLED] and not jobs.whole[row, KEPT]):
            admit_guest(row, jobs, devices, rules, count)
    for row in lists.asking:
        status = jobs.whole[row, STATUS]
        if status == STARTS or admit_guest(row, jobs, devices, rules, count):
            continue
        if status in (STAYS, BEHIND):
            jobs.whole[row, STATUS] = UNSHARED
