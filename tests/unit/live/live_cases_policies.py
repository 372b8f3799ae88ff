"""Policies that cannot decide, that change sizes, and that share GPUs with guests."""

from dataclasses import replace

from plait.core.network_grants import NetworkGrant
from plait.core.plan import Group, Member, Plan, Reservation
from plait.core.policy import View
from plait.policies.catalog import make_policy


class Broken:
    """Fails whenever it is asked."""

    name = "broken"

    def decide(self, view: View) -> Plan:
        raise ZeroDivisionError("no plan")


class Breathing:
    """Jobs get their most GPUs while all fit so, else their fewest."""

    name = "breathing"

    def decide(self, view: View) -> Plan:
        jobs = view.jobs
        most = int(jobs.max_gpus.sum()) <= view.cluster.gpus_up
        sized = jobs.subset(jobs.number, gpus=jobs.columns["max_gpus" if most else "min_gpus"])
        return replace(make_policy("fifo-backfill").decide(replace(view, jobs=sized)), settled=False)


class Secret:
    """Puts the third job as a guest beside the first, and reserves a GPU for the second."""

    name = "secret"

    def decide(self, view: View) -> Plan:
        """Guests only when three jobs are there."""
        jobs = view.jobs.number.tolist()
        groups = [Group((Member(job),), (0,), guest=place > 0) for place, job in enumerate(jobs[::2])]
        return Plan.of(groups, dict.fromkeys(jobs[1:2], "waits"), reservations=tuple(held(jobs)))


def held(jobs: list[int]) -> list[Reservation]:
    """A reservation for the second of these jobs."""
    return [Reservation(job, (1,)) for job in jobs[1:2]]


class SecretGrants:
    """Runs the first job, and grants it memory of a switch without having said so."""

    name = "secret-grants"

    def decide(self, view: View) -> Plan:
        jobs = view.jobs.number.tolist()[:1]
        return Plan.of([Group((Member(job),), (0,)) for job in jobs], grants=tuple(NetworkGrant(j, "s") for j in jobs))


class Granting(SecretGrants):
    """Says that it grants memory of switches."""

    name = "granting"
    grants = True


class Open(Secret):
    name = "open"
    guests = True
