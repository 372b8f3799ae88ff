"""The gang rule: in a model with all interleavings, and between real processes."""

import signal
import threading
from collections.abc import Iterator

import pytest
from gate_process import Watch, until

from plait.core.resources import Resource
from plait.runtime.gates import GroupMember, TokenGate
from plait.runtime.group_files import OPENED

GPU, CPU, NETWORK = "2", "1", "3"
JOBS = [GroupMember(1, 0, 2), GroupMember(2, 1, 1)]

# --- the model: 2 jobs of 2 ranks, each rank on one of 2 nodes; a stage holds a collective, which needs both ranks ---
# A state is (programme counters of the four ranks, shared words); a step is one read or write of one rank.


def explore(start, steps) -> tuple[set, list]:
    """All states that can be reached, and those that end there without being done."""
    seen, todo, stuck = {start}, [start], []
    while todo:
        state = todo.pop()
        after = [s for rank in range(4) for s in steps(state, rank)]
        if not after and any(pc != "done" for pc in state[0]):
            stuck.append(state)
        for s in after:
            if s not in seen:
                seen.add(s)
                todo.append(s)
    return seen, stuck


def moved(state, rank, pc, **words):
    pcs, shared = state
    return (*pcs[:rank], pc, *pcs[rank + 1 :]), tuple(sorted((dict(shared) | words).items()))


def token_per_rank(state, rank) -> Iterator:
    """Each rank takes the token of its own node, then meets its peer in the collective, then gives it back."""
    pcs, words = state[0], dict(state[1])
    peer, token = rank ^ 1, f"token{rank % 2}"
    match pcs[rank]:
        case "idle" if words[token] is None:
            yield moved(state, rank, "collective", **{token: rank})
        case "collective" if pcs[peer] in ("collective", "met", "done"):
            yield moved(state, rank, "met")
        case "met":
            yield moved(state, rank, "done", **{token: None})


STAGES = 3


def gang(state, rank) -> Iterator:
    """The protocol of `plait.runtime.gates`, a word at a time, without its patience; rank 0 and 2 lead.

    Words: opened and asked and inside by job, the one token of the group, stages done by rank, meetings by rank.
    """
    pcs, w = state[0], dict(state[1])
    job, leads = rank // 2, rank % 2 == 0
    opened, asked, inside = f"opened{job}", f"asked{job}", f"inside{job}"
    n, met, peer_met = f"n{rank}", f"met{rank}", f"met{rank ^ 1}"
    match pcs[rank], leads:
        case "idle", True if w[asked] > w[opened] or w[inside]:  # gathered
            yield moved(state, rank, "gathered")
        case "gathered", True if w["token"] is None:
            yield moved(state, rank, "has", token=job)
        case "has", True:
            yield moved(state, rank, "collective", **{opened: w[opened] + 1, met: w[met] + 1})
        case "collective", True if w[peer_met] >= w[met]:
            yield moved(state, rank, "closing")
        case "closing", True if not w[inside]:
            yield moved(state, rank, "idle" if w[n] + 1 < STAGES else "done", token=None, **{n: w[n] + 1})
        case "idle", False:
            yield moved(state, rank, "asking", **{asked: w[asked] + 1})
        case "asking", False if w[opened] >= w[asked]:
            yield moved(state, rank, "entering", **{inside: 1})
        case "entering", False:
            yield moved(state, rank, "collective", **{asked: w[opened], met: w[met] + 1})
        case "collective", False if w[peer_met] >= w[met]:
            yield moved(state, rank, "idle" if w[n] + 1 < STAGES else "done", **{inside: 0, n: w[n] + 1})


def test_a_token_per_rank_locks_two_jobs_up():
    start = ("idle",) * 4, (("token0", None), ("token1", None))
    _, stuck = explore(start, token_per_rank)
    assert stuck
    assert all(set(pcs) <= {"idle", "collective"} for pcs, _ in stuck), "each holds a node and waits for its peer"


def test_granting_to_all_ranks_together_never_locks_up_nor_mixes_jobs():
    words = {f"{k}{j}": 0 for k in ("opened", "asked", "inside") for j in range(2)}
    words |= {f"{k}{r}": 0 for k in ("n", "met") for r in range(4)} | {"token": None}
    seen, stuck = explore((("idle",) * 4, tuple(sorted(words.items()))), gang)
    assert not stuck
    assert len(seen) > 500
    inside = {"has", "collective", "closing", "entering"}
    for pcs, _ in seen:
        assert not (any(pc in inside for pc in pcs[:2]) and any(pc in inside for pc in pcs[2:]))
    assert any(set(pcs) == {"done"} for pcs, _ in seen)


# --- real processes ---


def test_rank_0_takes_the_token_for_all(group, play):
    made = group("tokens", JOBS)
    watch = Watch(made)
    lead, peer, other = play(made, 1, 0), play(made, 1, 1), play(made, 2)
    other.ask(f"enter {GPU}")
    peer.say(f"enter {GPU}")
    lead.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 1)
    assert peer.quiet()
    assert lead.quiet()
    other.ask(f"leave {GPU}")
    assert (lead.hear(), peer.hear()) == ("in 2", "in 2")
    other.say(f"enter {GPU}")
    until(lambda: watch.waiting(2) == 1)
    lead.say(f"leave {GPU}")
    assert other.quiet(), "rank 1 is still on it"
    peer.say(f"leave {GPU}")
    assert (lead.hear(), peer.hear(), other.hear()) == ("out 2", "out 2", "in 2")


def test_storage_and_cpu_are_for_each_rank(group, play):
    made = group("tokens", JOBS)
    watch = Watch(made)
    lead, peer = play(made, 1, 0), play(made, 1, 1)
    assert lead.ask(f"enter {CPU}") == "in 1"
    peer.say(f"enter {CPU}")
    until(lambda: watch.waiting(1) == 1)
    lead.ask(f"leave {CPU}")
    assert peer.hear() == "in 1"


@pytest.mark.parametrize("gate", ["tokens", "barrier"])
def test_jobs_of_several_ranks_get_through(group, play, tmp_path, gate):
    made = group(gate, [GroupMember(1, 0, 2), GroupMember(2, 2, 2)])
    processes = [play(made, job, rank) for job in (1, 2) for rank in (0, 1)]
    for p in processes:
        p.say(f"work 20 {tmp_path} {GPU}{NETWORK}")
    said = [p.hear() for p in processes]
    assert all(line.startswith("met ") for line in said)
    opened = [Watch(made).member(i, OPENED + Resource.NETWORK) for i in range(2)]
    assert opened == [20, 20]


def test_a_peer_goes_on_when_its_rank_0_is_killed(group, play):
    made = group("tokens", JOBS)
    lead, peer, other = play(made, 1, 0), play(made, 1, 1), play(made, 2)
    peer.say(f"enter {GPU}")
    lead.say(f"enter {GPU}")
    assert (lead.hear(), peer.hear()) == ("in 2", "in 2")
    lead.kill()
    assert other.ask(f"enter {GPU}") == "in 2"
    peer.ask(f"leave {GPU}")
    assert peer.ask(f"enter {GPU}") == "in 2"


def test_rank_0_does_not_wait_for_a_peer_that_was_killed(group, play):
    made = group("tokens", JOBS)
    lead, peer = play(made, 1, 0), play(made, 1, 1)
    peer.say(f"enter {GPU}")
    lead.say(f"enter {GPU}")
    assert (lead.hear(), peer.hear()) == ("in 2", "in 2")
    lead.say(f"leave {GPU}")
    peer.kill()
    assert lead.hear() == "out 2"


@pytest.mark.parametrize("alone", [0, 1])
def test_a_stage_of_one_rank_alone_costs_patience_and_the_next_ones_go_together(group, play, alone):
    made = group("tokens", JOBS)
    ranks = [play(made, 1, 0), play(made, 1, 1)]
    for _ in range(2):  # an evaluation on one rank, say
        assert ranks[alone].ask(f"enter {GPU}") == "in 2"
        assert ranks[alone].ask(f"leave {GPU}") == "out 2"
    for _ in range(3):
        for p in ranks:
            p.say(f"enter {GPU}")
        assert [p.hear() for p in ranks] == ["in 2"] * 2
        for p in ranks:
            p.say(f"leave {GPU}")
        assert [p.hear() for p in ranks] == ["out 2"] * 2


def test_a_stopped_peer_holds_its_own_job_only_for_so_long(group, play):
    made = group("tokens", JOBS, lease_s=0.1)
    lead, peer, other = play(made, 1, 0), play(made, 1, 1), play(made, 2)
    peer.say(f"enter {GPU}")
    lead.say(f"enter {GPU}")
    assert (lead.hear(), peer.hear()) == ("in 2", "in 2")
    peer.signal(signal.SIGSTOP)
    other.say(f"enter {GPU}")
    assert lead.ask(f"leave {GPU}") == "out 2"
    assert other.hear() == "in 2"


def test_two_ranks_as_threads_of_a_test_agree(group):
    made = group("tokens", [GroupMember(1, 0, 2)])
    gates = [TokenGate(made, 0, rank) for rank in (0, 1)]
    order: list[str] = []

    def rank(r):
        for i in range(20):
            gates[r].enter(Resource.GPU)
            order.append(f"{i}")
            gates[r].leave(Resource.GPU)

    threads = [threading.Thread(target=rank, args=(r,)) for r in (0, 1)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert order == [f"{i}" for i in range(20) for _ in (0, 1)]
