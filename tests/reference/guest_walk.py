"""AntMan's walk as `plait.policies.guest_walk` does it, a job and a GPU at a time: its reference."""

from typing import NamedTuple

import numpy as np

from plait.core.arrays import BoolArray, FloatArray, IntArray
from plait.policies import guest_walk as walk_itself
from plait.policies.guest_walk import (
    ABOVE_QUOTA,
    BEHIND,
    HOLDS,
    OVER_QUOTA,
    UNSHARED,
    Devices,
    GuestRules,
    Lists,
    WalkJobs,
)  # fmt: skip
from plait.policies.guest_walk_kernels import (
    BYTES,
    CAPACITY,
    CLOSED,
    CORES,
    DISPLACED,
    END,
    FIRST,
    GPUS,
    GUEST,
    GUESTS,
    HI,
    JOBS,
    KEPT,
    KIND,
    KINDS,
    LENDS,
    LO,
    LOAD,
    MOVED,
    NODE,
    PER_GUEST,
    POSITION,
    PROJECT,
    PROMOTED,
    RACK,
    SLACK,
    STALLED,
    START_BYTES,
    STARTS,
    STATUS,
    STAYS,
    TAKEN,
    THERE,
    UP,
    USE,
)  # fmt: skip


class Projects(NamedTuple):
    """GPUs of projects, shape (projects, kinds): that their hosts have, that jobs ahead wait for, that they may have.

    By project: `total` is what it may have of all kinds together, `share` what its usage is compared with.
    """

    used: FloatArray
    claimed: FloatArray
    quota: FloatArray
    total: FloatArray
    share: FloatArray


def walk(
    lists: Lists,
    projects: walk_itself.Projects,
    jobs: WalkJobs,
    devices: Devices,
    rules: GuestRules,
    measured: FloatArray,
) -> IntArray:
    """As `plait.policies.guest_walk.walk`."""
    none = np.zeros_like(projects.quota)
    turns = admit_hosts(lists, Projects(none, none.copy(), *projects), jobs, devices, rules)
    admit_guests(lists, jobs, devices, rules, measured)
    return turns


def fits(gpu: int, row: int, guest: bool, jobs: WalkJobs, devices: Devices, rules: GuestRules) -> bool:
    """Whether the GPU has the memory for one job more; contexts count where there are guests."""
    context = rules.context if guest or devices.whole[gpu, JOBS] > 0 else 0.0
    needed = devices.amounts[gpu, TAKEN] + jobs.amounts[row, BYTES] + context
    return bool(needed <= devices.amounts[gpu, CAPACITY] * (1.0 + 1e-9))


def on_node(node: int, row: int, jobs: WalkJobs, devices: Devices) -> int:
    """GPUs of a job that a node's cores and host memory are enough for."""
    room = 1 << 30
    for i in range(2):
        if jobs.amounts[row, CORES + i] > 0.0 and devices.spare[node, i] < np.inf:
            room = min(room, int(np.floor((devices.spare[node, i] + SLACK) / jobs.amounts[row, CORES + i])))
    return max(room, 0)


def take(
    gpus: IntArray, lo: int, hi: int, row: int, host: bool, jobs: WalkJobs, devices: Devices, rules: GuestRules
) -> None:
    """Put a job on `gpus[lo:hi]`."""
    for i in range(lo, hi):
        gpu = gpus[i]
        node = devices.whole[gpu, NODE]
        for r in range(2):
            devices.spare[node, r] -= jobs.amounts[row, CORES + r]
        devices.amounts[gpu, TAKEN] += jobs.amounts[row, BYTES] + rules.context
        devices.whole[gpu, JOBS] += 1
        devices.amounts[gpu, LOAD:] += jobs.amounts[row, USE:CORES]
        if host:
            devices.whole[gpu, CLOSED] = 1
        else:
            devices.whole[gpu, GUESTS] += 1


def still_fits(gpus: IntArray, lo: int, hi: int, row: int, jobs: WalkJobs, devices: Devices, rules: GuestRules) -> bool:
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
    return one_pace(gpus[lo:hi], devices)


def one_pace(gpus: IntArray, devices: Devices) -> bool:
    """Whether a guest's GPUs are of one node, or none has a host."""
    hosts = [gpu for gpu in gpus if devices.whole[gpu, JOBS] != devices.whole[gpu, GUESTS]]
    return not hosts or len({int(devices.whole[gpu, NODE]) for gpu in gpus}) == 1


def rooms(
    row: int, kind: int, jobs: WalkJobs, devices: Devices, rules: GuestRules, room: IntArray, clean: IntArray
) -> int:
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


def name_gpus(
    row: int, from_node: IntArray, jobs: WalkJobs, devices: Devices, rules: GuestRules, out: IntArray
) -> None:
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


def best_topology(
    row: int, jobs: WalkJobs, devices: Devices, rules: GuestRules, allowed: BoolArray, out: IntArray
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


def open_to_guests(gpu: int, devices: Devices, rules: GuestRules) -> bool:
    """Whether a GPU is used little enough, by few enough guests."""
    return bool(devices.amounts[gpu, LOAD] < rules.limit and devices.whole[gpu, GUESTS] < rules.most)


def crowded(gpu: int, row: int, jobs: WalkJobs, devices: Devices) -> float:
    """The part of its speed that a guest loses to stages of others."""
    own, left = jobs.amounts[row, USE:CORES], np.maximum(1.0 - devices.amounts[gpu, LOAD:], 0.0)
    return 1.0 - min([1.0, *(there / needs for there, needs in zip(left, own, strict=True) if needs > 0.0)])


def least_used(row: int, jobs: WalkJobs, devices: Devices, rules: GuestRules, out: IntArray) -> int:
    """The least used GPUs of one kind for a guest into `out`, none of them its present ones; how many it found.

    A gang's are rather of one node, and next to hosts only. Fewer than it needs is what the kind with most of them has.
    """
    need, best, best_load = jobs.whole[row, GPUS], 0, 0.0
    everywhere = np.ones(len(devices.whole), dtype=np.bool_)
    unhosted = devices.whole[:, JOBS] == devices.whole[:, GUESTS]
    nodes = [devices.whole[:, NODE] == node for node in range(len(devices.nodes))] if need > 1 else []
    places = [*nodes, everywhere, unhosted]
    for kind in range(rules.kinds):
        for place in places:
            trial = np.empty(need, dtype=np.int64)
            found, load = least_used_of(kind, place, row, jobs, devices, rules, trial)
            pace = found < need or one_pace(trial, devices)
            if pace and (found > best or (found == need and load < best_load)):
                best, best_load = found, load
                out[:found] = trial[:found]
            if place is everywhere and pace:
                break
    return best


def least_used_of(
    kind: int, place: BoolArray, row: int, jobs: WalkJobs, devices: Devices, rules: GuestRules, out: IntArray
) -> tuple[int, float]:
    """The least used GPUs of a kind among those of `place` (a mask) into `out`: how many, and the sum of their use."""
    need = jobs.whole[row, GPUS]
    open_ = np.empty(len(devices.whole), dtype=np.bool_)
    there = np.empty(len(devices.nodes), dtype=np.int64)
    if not (jobs.whole[row, KINDS] >> kind) & 1:
        return 0, 0.0
    for gpu in range(len(open_)):
        node = devices.whole[gpu, NODE]
        usable = devices.nodes[node, KIND] == kind and devices.nodes[node, UP] and open_to_guests(gpu, devices, rules)
        usable = usable and crowded(gpu, row, jobs, devices) < rules.limit
        open_[gpu] = place[gpu] and usable and fits(gpu, row, True, jobs, devices, rules)
    for i in range(jobs.whole[row, LO], jobs.whole[row, HI]):
        open_[jobs.held[i]] = False
    for node in range(len(there)):
        there[node] = on_node(node, row, jobs, devices)
    found, load = 0, 0.0
    while found < need:
        pick, least = -1, 0.0
        for gpu in range(len(open_)):
            if open_[gpu] and there[devices.whole[gpu, NODE]] > 0:
                use = devices.amounts[gpu, LOAD] + crowded(gpu, row, jobs, devices)
                use += PER_GUEST * devices.whole[gpu, GUESTS]
                if pick < 0 or use < least:
                    pick, least = gpu, use
        if pick < 0:
            break
        open_[pick] = False
        there[devices.whole[pick, NODE]] -= 1
        out[found] = pick
        found += 1
        load += least
    return found, load


def release(gpus: IntArray, lo: int, hi: int, row: int, jobs: WalkJobs, devices: Devices, rules: GuestRules) -> None:
    """Take a guest off `gpus[lo:hi]` again."""
    for i in range(lo, hi):
        gpu = gpus[i]
        for r in range(2):
            devices.spare[devices.whole[gpu, NODE], r] += jobs.amounts[row, CORES + r]
        devices.whole[gpu, JOBS] -= 1
        devices.whole[gpu, GUESTS] -= 1
        devices.amounts[gpu, TAKEN] -= jobs.amounts[row, BYTES] + rules.context
        devices.amounts[gpu, LOAD:] -= jobs.amounts[row, USE:CORES]


def total(table: FloatArray, row: int) -> float:
    """The sum of a row."""
    out = 0.0
    for i in range(table.shape[1]):
        out += table[row, i]
    return out


def next_project(lists: Lists, projects: Projects, jobs: WalkJobs, at: IntArray) -> int:
    """The project with waiting jobs that uses least of its share; at equal ones whose job is first; -1 if none."""
    best, least = -1, 0.0
    for t in range(len(at)):
        if at[t] < lists.first[t + 1]:
            mine = total(projects.used, t) / projects.share[t]
            same = best >= 0 and mine == least
            earlier = same and jobs.whole[lists.queue[at[t]], POSITION] < jobs.whole[lists.queue[at[best]], POSITION]
            if best < 0 or mine < least or earlier:
                best, least = t, mine
    return best


def note(jobs: WalkJobs, row: int, status: int, gpus: IntArray, count: int) -> None:
    jobs.whole[row, STATUS], jobs.given[row] = status, np.sort(gpus[:count])


def promote(row: int, kind: int, projects: Projects, jobs: WalkJobs, devices: Devices, rules: GuestRules) -> int:
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
    projects.used[jobs.whole[row, PROJECT], kind] += hi - lo
    return int(hi - lo)


def admit_host(
    row: int, projects: Projects, jobs: WalkJobs, devices: Devices, rules: GuestRules, free: IntArray,
) -> None:  # fmt: skip
    """The turn of one job that wants to be a host: start, promote, reserve, or wait."""
    t, need, room, some, ever = jobs.whole[row, PROJECT], jobs.whole[row, GPUS], 0, False, -1
    allowed = np.zeros(rules.kinds, dtype=np.bool_)
    in_all = total(projects.used, t) + total(projects.claimed, t) + need <= projects.total[t]
    for kind in range(rules.kinds):
        usable = (jobs.whole[row, KINDS] >> kind) & 1 == 1
        asked = projects.used[t, kind] + projects.claimed[t, kind] + need
        allowed[kind] = usable and in_all and asked <= projects.quota[t, kind]
        some = some or allowed[kind]
        if usable and need <= min(projects.quota[t, kind], projects.total[t]) and ever < 0:
            ever = kind
        if allowed[kind]:
            room = max(room, free[kind])
    if jobs.whole[row, HI] > jobs.whole[row, LO]:
        kind = devices.nodes[devices.whole[jobs.held[jobs.whole[row, LO]], NODE], KIND]
        if allowed[kind]:
            free[kind] -= promote(row, kind, projects, jobs, devices, rules)
        return
    if not some:
        jobs.whole[row, STATUS] = OVER_QUOTA if ever >= 0 else ABOVE_QUOTA
        if ever >= 0 and not jobs.whole[row, LENDS]:
            projects.claimed[t, ever] += need
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
        projects.used[t, kind] += need
        free[kind] -= need
    elif kind >= 0 and not jobs.whole[row, LENDS]:
        note(jobs, row, HOLDS, gpus, got)
        for i in range(got):
            devices.whole[gpus[i], CLOSED] = True
        projects.claimed[t, kind] += need
        free[kind] -= got


def seat_running(lists: Lists, used: FloatArray, jobs: WalkJobs, devices: Devices, rules: GuestRules) -> None:
    """Put hosts, and guests that may not be moved, on their GPUs; `used` as in `Projects`."""
    for gpu in range(len(devices.whole)):
        devices.whole[gpu, CLOSED] = not devices.nodes[devices.whole[gpu, NODE], UP]
    for row in lists.hosts:
        lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
        take(jobs.held, lo, hi, row, True, jobs, devices, rules)
        used[jobs.whole[row, PROJECT], devices.nodes[devices.whole[jobs.held[lo], NODE], KIND]] += hi - lo
    for row in lists.guests:
        lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
        if jobs.whole[row, KEPT]:
            take(jobs.held, lo, hi, row, False, jobs, devices, rules)
        else:  # they count where hosts choose, but no host waits for them
            for i in range(lo, hi):
                devices.whole[jobs.held[i], GUESTS] += 1


def admit_hosts(
    lists: Lists, projects: Projects, jobs: WalkJobs, devices: Devices, rules: GuestRules
) -> IntArray:  # fmt: skip
    """Whose turn it is, as long as anybody can get anything; the rows of the queue in that order."""
    seat_running(lists, projects.used, jobs, devices, rules)
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
                t = next_project(lists, projects, jobs, at)
            if t < 0:
                break
            row = lists.queue[at[t]]
            at[t] += 1
        if not done[row]:
            done[row] = True
            order[turns] = row
            turns += 1
            promotable -= jobs.whole[row, HI] > jobs.whole[row, LO]
            admit_host(row, projects, jobs, devices, rules, free)
    for row in lists.queue:  # nothing was left when their turn would have come
        if not done[row]:
            order[turns] = row
            turns += 1
            if jobs.whole[row, HI] == jobs.whole[row, LO]:
                jobs.whole[row, STATUS] = BEHIND
    return order


def keep_guests(lists: Lists, jobs: WalkJobs, devices: Devices, rules: GuestRules, measured: FloatArray) -> None:
    """Guests stay where hosts leave room for them, the first ones first; then GPUs are as used as measured."""
    free = [row for row in lists.guests if jobs.whole[row, STATUS] != PROMOTED and not jobs.whole[row, KEPT]]
    for row in free:
        for i in range(jobs.whole[row, LO], jobs.whole[row, HI]):
            devices.whole[jobs.held[i], GUESTS] -= 1
    for row in free:
        lo, hi = jobs.whole[row, LO], jobs.whole[row, HI]
        if still_fits(jobs.held, lo, hi, row, jobs, devices, rules):
            take(jobs.held, lo, hi, row, False, jobs, devices, rules)
        else:
            jobs.whole[row, STATUS] = DISPLACED
            jobs.amounts[row, BYTES] = jobs.amounts[row, START_BYTES]
    begun = np.zeros(len(devices.whole), dtype=np.bool_)
    for gpus in jobs.given.values():
        begun[gpus] = True
    for gpu in range(len(devices.whole)):
        if not np.isnan(measured[gpu]) and not begun[gpu]:
            devices.amounts[gpu, LOAD] = measured[gpu]


def admit_guest(
    row: int, jobs: WalkJobs, devices: Devices, rules: GuestRules, count: IntArray
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


def admit_guests(lists: Lists, jobs: WalkJobs, devices: Devices, rules: GuestRules, measured: FloatArray) -> None:
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
