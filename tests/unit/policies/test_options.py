"""Options of policies: what cannot be is refused by name, and what is taken runs to its end."""

import math
import os
import re
from pathlib import Path

import numpy as np
import pytest

from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.core.highs import HAVE_HIGHS
from plait.core.jobs import JobBatch
from plait.placement import SkewAware
from plait.policies.catalog import CATALOG, COMMON, make_policy, rows
from plait.policies.gittins import Distribution, FixedIndex, LearntIndex
from plait.policies.options import PolicyOption, Range, number
from plait.policies.tiresias import Queues
from plait.sim.run import simulate
from plait.sim.world import make_world

CLUSTER = Cluster.parse("1x2")
#: what no number of seconds, jobs or shares should be, and what no list or word should be
ODD = ("0", "-1", "-0.5", "nan", "inf", "-inf", "1e400", "10" * 200, "some", "", "1e-9", "1/0", "3/-2", "5/1")
#: those that are most likely to do harm where they are taken; PLAIT_SLOW=1 tries them all
EXTREME = ("0", "inf", "1e-9")
THOROUGH = os.environ.get("PLAIT_SLOW") == "1"
EVERY = [(name, option) for name, row in CATALOG.items() for option in row.options]


def jobs() -> JobBatch:
    return JobBatch(
        {
            "id": list("abcd"),
            "submit_s": np.array([0.0, 0.0, 5.0, 40.0]),
            "gpus": np.array([1, 2, 1, 1]),
            "iterations": np.array([90.0, 60.0, 200.0, 30.0]),
            "iteration_s": np.ones(4),
        }
    )


@pytest.mark.parametrize(("name", "option"), [*EVERY, *(("fifo", option) for option in COMMON)])
def test_an_odd_value_is_refused_by_name_or_runs(name: str, option: str) -> None:
    if name == "sia" and not HAVE_HIGHS:
        pytest.skip("needs highspy")
    refused = 0
    for value in ODD:
        text = f"{name}:{option}={value}" + (",placement=skew" if option == "packlimit" else "")
        text += ",generations=2,population=4" * (name == "pollux-ga" and option not in ("generations", "population"))
        try:
            policy = make_policy(text)
        except InputError as error:
            refused += 1
            said = str(error)
            assert f"policy {name}: " in said
            assert option in said or option == "sizes"
            assert re.search(r"it takes|goes with|ascending|must be|cannot read|give a", said), said
            continue
        if THOROUGH or value in EXTREME:
            job_store = simulate(jobs(), CLUSTER, policy, make_world("ideal")).controller.job_store
            assert (job_store.departures, text) == (4, text)
    assert refused or option == "speeds"


@pytest.mark.parametrize(("name", "option"), EVERY)
def test_what_tune_may_choose_is_taken(name: str, option: str) -> None:
    declared = CATALOG[name].options[option]
    if declared.fit is not None:
        ends = (f"{declared.fit.low:g}", f"{declared.fit.high:g}") if declared.fit.spread else ()
        for value in (*ends, *declared.fit.also):
            declared.parse(name, option, value)


def test_messages_say_what_works() -> None:
    for text, said in {
        "tiresias-g:every=0": "policy tiresias-g: every is 0; it takes a whole number from 1 to 1000000000",
        "tiresias-g:quantum=-5": "quantum is -5; it takes a finite number of GPU-seconds >= 0 or inf",
        "tiresias-g:sizes=x,every=5": "every is 5; it goes with sizes that are learnt, without sizes=",
        "tiresias-l:floor_s=-1": "policy tiresias-l: floor_s is -1; it takes a finite number of seconds >= 0",
        "tiresias-l:knob=soon": "policy tiresias-l: knob is 'soon'; it takes a finite number > 0 or inf",
        "tiresias-l:packlimit=2": "policy tiresias-l: packlimit is 2; it takes a number from 0 to 1",
        "srsf:packlimit=0.2": "policy srsf: packlimit is 0.2; it goes with placement=skew",
        "srsf:placement=anywhere": "policy srsf: placement is 'anywhere'; it takes consolidated, ",
        "muri-l:guard=tight": "policy muri-l: guard is 'tight'; it takes a finite number >= 0, auto, on or off",
        "muri-l:order=remaining,max_jobs=5": "policy muri-l: max_jobs is 5; it takes a whole number from 1 to 4",
        "gandiva:packing=maybe": "policy gandiva: packing is 'maybe'; it takes on or off",
        "themis:lease_s=0": "policy themis: lease_s is 0; it takes a finite number of seconds >= 0.001",
        "sia:speeds=a=0": "policy sia: speeds, kind a is 0; it takes a finite number > 0",
    }.items():
        with pytest.raises(InputError, match=re.escape(said)):
            make_policy(text)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Queues(floor_s=-1.0), "floor_s must be a finite number of seconds >= 0, got -1"),
        (lambda: Queues(floor_s=math.nan), "floor_s"),
        (lambda: LearntIndex(every=0), "every is 0; it takes a whole number of departures >= 1"),
        (lambda: LearntIndex(quantum=-1.0), "quantum is -1"),
        (lambda: FixedIndex(Distribution.of_samples([1.0]), math.nan), "quantum is nan"),
        (lambda: SkewAware(packlimit=-0.1), "packlimit is -0.1; it takes a share"),
        (lambda: SkewAware(patience_s=math.nan), "patience_s is nan"),
    ],
)
def test_values_in_python_are_refused_too(make, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=said):
        make()


def test_packlimit_reaches_the_placement() -> None:
    assert make_policy("tiresias-l").place == SkewAware()  # type: ignore[attr-defined]
    assert make_policy("tiresias-g:packlimit=0.5").place == SkewAware(0.5)  # type: ignore[attr-defined]
    assert make_policy("srsf:placement=skew,packlimit=1").place == SkewAware(1.0)  # type: ignore[attr-defined]


def test_the_quantum_reaches_the_learnt_index() -> None:
    assert make_policy("tiresias-g:quantum=0,every=7").order.index == LearntIndex(7, 0)  # type: ignore[attr-defined]


def test_declared_once() -> None:
    assert number("x", 1, 5).takes == "a number from 1 to 5"
    assert PolicyOption("whatever").parse("mine", "o", "on") is True
    assert PolicyOption("whatever").parse("mine", "o", "2.5") == 2.5
    assert not Range(also=("a",)).spread
    for row in rows().values():
        assert all(isinstance(option, PolicyOption) and option.help for option in row.options.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("os:system:command=touch ran", "os:system is no policy: it has no method decide"),
        ("math:pi", "math:pi is no policy"),
        ("made_here:needs_rounds", "policy made_here:needs_rounds needs rounds: made_here:needs_rounds:rounds=..."),
        ("made_here:needs_rounds:rounds=3", "made_here:needs_rounds has no method decide"),
    ],
)
def test_what_makes_no_policy_is_refused_and_nothing_of_another_module_is_called(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "made_here.py").write_text("def needs_rounds(rounds):\n    return rounds\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=re.escape(why)):
        make_policy(text)
    assert not (tmp_path / "ran").exists()
