"""The other policies that choose sizes: exact program, published search, Optimus, Sia, and groups over sizes."""

from dataclasses import replace

import numpy as np
import pytest
from adaptive_cases import adaptive, controlled, estimate, fixed, nodes_of, sizes

from plait.control.messages import JobFinished, ReplanDue
from plait.core.errors import InputError
from plait.core.highs import HAVE_HIGHS
from plait.core.jobs import JobSpec
from plait.core.plan import Gate
from plait.core.resources import StageProfile
from plait.goodput.fitness import fitness
from plait.policies.catalog import make_policy
from plait.policies.optimus import Optimus, grants
from plait.policies.pollux import Pollux
from plait.policies.pollux_ga import PolluxGa
from plait.policies.sizing.pools import pools

needs_highs = pytest.mark.skipif(not HAVE_HIGHS, reason="needs highspy: the extra sim")


def merit(c: object) -> float:
    view = c.view()  # type: ignore[attr-defined]
    (pool,) = pools(view, due=np.zeros(len(view.jobs), dtype=bool), restart_s=30.0)
    return float(fitness(pool.worth(pool.held), -1.0))


@needs_highs
def test_among_all_sizes_there_is_a_better_one_than_on_the_ladder() -> None:
    """By more than a tenth on nodes of 5, where it is worth its restarts, and by less on nodes of 4."""
    for nodes, jobs, taken in (("2x5", 4, True), ("4x4", 5, False)):
        specs = [adaptive(f"j{i}", most=8) for i in range(jobs)]
        fits = {i: estimate(var=500.0) for i in range(jobs)}
        ladder, every = (controlled(Pollux(exact=exact), nodes, specs, fits) for exact in (False, True))
        assert merit(every) > merit(ladder) * (1.1 if taken else 1.0)
        assert {3, 6} & set(sizes(every).values())
        auto = controlled(Pollux(exact="auto"), nodes, specs, fits)
        assert sizes(auto) == sizes(every if taken else ladder)


METHODS = (
    ("off", "(dynamic programming)"),
    ("on", "(integer program)"),
    ("auto", "(dynamic programming; an integer program over all sizes gains less than 10%)"),
)


@needs_highs
def test_who_waits_is_told_which_method_was_used() -> None:
    specs = [fixed(f"j{i}", 3) for i in range(3)]
    for exact, method in METHODS:
        c = controlled(make_policy(f"pollux:exact={exact}"), "2x4", specs)
        assert "needs 3 GPUs together; of 8 GPUs 2 are free" in c.plan.reasons[2]
        assert method in c.plan.reasons[2]
        assert c.plan.reasons[2].endswith("next chosen at 60 s")
    c = controlled(make_policy("pollux:exact=auto"), "1x4", specs)  # too few GPUs for sizes to matter
    assert "(dynamic programming)" in c.plan.reasons[2]


def test_the_published_search_repeats_itself_and_is_no_better_than_exact() -> None:
    specs = [adaptive(f"j{i}", most=8) for i in range(6)]
    fits = {i: estimate(var=float(10**i)) for i in range(6)}
    short = PolluxGa(generations=5, population=20, seed=3)
    first, again = (controlled(short, "3x4", specs, fits) for _ in range(2))
    assert first.running.gpus.tolist() == again.running.gpus.tolist()
    assert merit(first) <= merit(controlled(Pollux(), "3x4", specs, fits)) + 1e-12
    with pytest.raises(InputError, match="generations is 0; it takes a whole number from 1 to 10000"):
        PolluxGa(generations=0)


@pytest.mark.parametrize(
    ("option", "takes"),
    [
        ("generations=inf", "generations is inf; it takes a whole number from 1 to 10000"),
        ("population=1e400", "population is inf; it takes a whole number from 2 to 10000"),
        ("population=100000000", "population is 100000000; it takes a whole number from 2 to 10000"),
        ("seed=inf", "seed is inf; it takes a whole number from 0 to 9223372036854775807"),
        ("seed=nan", "seed is nan; it takes a whole number from 0"),
        ("generations=2.5", r"generations is 2\.5; it takes a whole number"),
    ],
)
def test_the_published_search_refuses_options_without_end(option: str, takes: str) -> None:
    with pytest.raises(InputError, match=f"policy pollux-ga: {takes}"):
        make_policy(f"pollux-ga:{option}")


def test_whole_numbers_that_no_float_holds_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"policy pollux: p is 1000+\.\.\. \(402 characters\) it takes a finite number"
    ):
        make_policy(f"pollux:p=1{'0' * 400}")


def test_a_seed_may_be_written_as_a_float() -> None:
    assert sizes(controlled(PolluxGa(generations=2, population=4, seed=1e3), "1x2", [fixed("j", 1)])) == {0: 1}  # type: ignore[arg-type]


def test_optimus_grants_what_saves_most_time() -> None:
    long, short = np.array([1000.0, 500, 400, 350]), np.array([100.0, 50, 40, 35])
    assert grants(np.stack([long, short]), np.ones(2, int), np.full(2, 4), 5, np.arange(2)).tolist() == [4, 1]
    assert grants(np.stack([long, short]), np.array([1, 4]), np.full(2, 4), 4, np.arange(2)).tolist() == [4, 0]
    longer = replace(adaptive("long", most=4), iterations=1e7)
    c = controlled(Optimus(), "1x4", [longer, adaptive("short", most=4)], dict.fromkeys((0, 1), estimate(var=1e4)))
    assert sizes(c) == {0: 3, 1: 1}


@needs_highs
def test_sia_gives_fast_gpus_to_those_that_use_them_and_keeps_to_what_jobs_may_use() -> None:
    specs = [adaptive("a", most=4), adaptive("b", most=4, gpu_kinds=("slow",)), fixed("c", 4)]
    fits = dict.fromkeys((0, 1), estimate(var=1e4))
    c = controlled(make_policy("sia:speeds=fast=3/slow=1"), "1x4:slow,1x4:fast", specs[:2], fits)
    assert (nodes_of(c, 0), nodes_of(c, 1)) == ([1], [0])
    c = controlled(make_policy("sia"), "2x4", specs[:1], {0: estimate(var=1e4)})
    assert sizes(c) == {0: 4}
    with pytest.raises(InputError, match=r"speeds, kind fast is 0; it takes a finite number > 0"):
        make_policy("sia:speeds=fast=0")


@needs_highs
def test_sia_uses_how_weights_compare_and_refuses_exponents_that_no_number_holds() -> None:
    fits = {i: estimate(var=20.0 * 10**i) for i in range(3)}
    same, tiny = (
        sizes(controlled(make_policy("sia"), "2x4", [adaptive(f"j{i}", weight=w) for i in range(3)], fits))
        for w in (1.0, 1e-7)
    )
    assert tiny == same
    for p in ("400", "-400"):
        with pytest.raises(InputError, match=r"policy sia: p is -?400; it takes a number from -48 to 48"):
            make_policy(f"sia:p={p}")


def profiled(name: str, cpu_s: float, gpu_s: float) -> JobSpec:
    return JobSpec(id=name, iterations=1e6, profile=StageProfile.of(cpu=cpu_s, gpu=gpu_s))


def test_groups_over_sizes_run_everybody_while_alone_some_would_wait() -> None:
    specs = [profiled("a", 0.9, 0.1), profiled("b", 0.1, 0.9), profiled("c", 0.9, 0.1), profiled("d", 0.1, 0.9)]
    assert len(sizes(controlled(Pollux(), "1x2", specs))) == 2
    c = controlled(make_policy("pollux:group=interleave"), "1x2", specs)
    together = [({m.job % 2 for m in group.members}, group.gate) for group in c.running]
    assert together == [({0, 1}, Gate.BARRIER)] * 2
    before = c.running.gpus.tolist(), c.running.jobs.tolist()
    c.handle(ReplanDue(60.0))
    assert (c.running.gpus.tolist(), c.running.jobs.tolist()) == before
    c.handle(JobFinished(70.0, np.array([0]), np.array([70.0])))
    c.handle(ReplanDue(70.0))
    assert sorted(c.running.jobs.tolist()) == [1, 2, 3]
    with pytest.raises(InputError, match="exact looks at all sizes, so it goes with group=none"):
        make_policy("pollux:group=interleave,exact=on")
    with pytest.raises(InputError, match="group is 'pairs'; it takes none or interleave"):
        make_policy("pollux:group=pairs")
