"""A fork server, players at a gate, a group to put them in, and a page of a rank; everything is gone after the test."""

import pytest
from attempts import Forker, the_forker
from gate_process import Player

from plait.runtime.gates import GroupMember, make_group
from plait.runtime.page import Page


@pytest.fixture(scope="module")
def forker() -> Forker:
    """Starts jobs' processes; the same one for all tests."""
    return the_forker()


@pytest.fixture
def play():
    """Start a process of a job in a group; it is ended after the test."""
    started: list[Player] = []

    def start(group, job, rank=0):
        started.append(Player(group, job, rank))
        return started[-1]

    yield start
    for player in started:
        player.end()


@pytest.fixture
def group(tmp_path):
    """A group of jobs 1, 2, ... with turns 0, 1, ..."""

    def make(gate, members=3, *, version=1, **options):
        jobs = [GroupMember(1 + i, i) for i in range(members)] if isinstance(members, int) else members
        return make_group(tmp_path / "g", gate, jobs, version=version, **options)

    return make


@pytest.fixture
def sides(tmp_path):
    """The agent's and the job's view of one page."""
    agent = Page.create(tmp_path / "page.bin")
    job = Page.open(tmp_path / "page.bin")
    yield agent, job
    agent.close()
    job.close()
