"""How long a silent node keeps its jobs: agents, the scheduler and `plait up` go by the same numbers."""

from plait.core.errors import InputError

#: Seconds of silence after which a node is lost, by default; as long as Slurm waits for its daemons.
LOST_S = 300.0
#: The lease of a node is this share of that by default.
LEASE_SHARE = 0.8
#: Seconds that a silent leader keeps its place, by default.
LEAD_S = 3.0
#: How much shorter it has to be: seconds for ending what runs, and a share for clocks that do not run alike.
SPARE_S, DRIFT = 0.2, 0.01


def check_lease(lost_s: float, lease_s: float) -> None:
    """Raise `InputError` unless work on a silent node has ended by itself before the node is called lost."""
    if not (lease_s > 0 and lost_s - lease_s >= SPARE_S + DRIFT * lost_s):
        raise InputError(
            f"the lease is {lease_s:g} s and a node is lost after {lost_s:g} s: the lease must be shorter, or a job "
            "could start elsewhere while it still runs on a node that does not answer; give --lease "
            f"{LEASE_SHARE * lost_s:g} (or none), or a longer --lost"
        )
