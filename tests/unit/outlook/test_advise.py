"""Advice from histories that a simulation made, so that the policy that was used is known."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from plait.cli.commands.advise import AdviseRequest, answer
from plait.control.prices import Prices
from plait.core.cluster import Cluster
from plait.core.errors import InputError
from plait.outlook.advice import AdviceRequest, Change, advise, changes, losers, parts, quotas, resized, sizes
from plait.outlook.choices import (
    Alternative,
    Simulations,
    Unfaithful,
    blocks,
    history_world,
    in_rounds,
    mean_jct_s,
    planned,
    round_of,
)
from plait.outlook.page import LEFT_EARLY, advice_page, summary_rows
from plait.outlook.past import first_jobs, past_of, past_of_log
from plait.policies.catalog import make_policy
from plait.sim.run import simulate
from plait.sim.studies.cases import Case, run_case
from plait.sim.world import LAUNCH
from plait.traces.assign import assign_tenants
from plait.traces.formats.registry import read_trace
from plait.traces.load import load_jobs
from plait.traces.synthetic import generate
from plait.traces.validate import checked_table

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
CLUSTER = Cluster.parse("2x8")
POLICIES = ("fifo-backfill", "las", "srsf")


def made(policy, jobs=260, seed=1, cluster=CLUSTER):
    """What a cluster under `policy` would have recorded, as a table."""
    table = assign_tenants(generate("philly", jobs, cluster.gpus, 0.9, seed), seed=seed, tenants=3)
    work = load_jobs(table).jobs
    run = simulate(work, cluster, make_policy(policy), history_world())
    store = run.controller.job_store.columns
    return checked_table(
        {
            "job_id": work.id, "submit_s": work.submit_s, "gpus": work.gpus.astype(np.int32),
            "duration_s": work.iterations * work.iteration_s,
            "duration_kind": np.full(jobs, "exact", dtype=object),
            "observed_start_s": store["first_start_s"][:jobs], "observed_end_s": store["end_s"][:jobs],
            "user": work.column("user"), "project": work.column("project"),
        }
    )  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return made("fifo")


@pytest.fixture(scope="module")
def advice(table):
    prices = Prices.parse(["2"])
    return advise(
        past_of(table, CLUSTER),
        AdviceRequest(policies=("fifo", *POLICIES), nodes=("+1",), quotas=("tenant-1=16",), prices=prices),
    )


def test_the_policy_that_was_used_is_found_and_simulated_as_it_happened(advice):
    assert advice.fit.choice.policy in ("fifo", "fifo-backfill:reserve_after_s=3600")
    assert not advice.fit.given
    assert abs(advice.fit.error) < 0.005
    assert len(advice.fit.others) == 6


def test_choices_are_compared_on_the_same_jobs_and_ranked(advice):
    found = advice.of_kind("policy")
    assert [one.choice.policy for one in found if one.choice.policy in POLICIES] != []
    assert [one.change for one in found] == sorted(one.change for one in found)
    assert all(one.jobs == 260 and one.final for one in found)
    assert all(one.low <= one.change <= one.high for one in found)
    assert {one.choice.cluster.gpus for one in advice.of_kind("size")} == {24}
    assert len(advice.of_kind("quota")) == 1


def test_tables_have_what_was_used_and_other_figures_only_of_the_same_jobs(advice):
    last = advice.of_kind("policy")[-1]
    early = replace(last, final=False, jobs=57, before={**last.before, "gpu_h": 1.0})
    effects = (*(one for one in advice.effects if one.choice != early.choice), early)
    cut = replace(advice, effects=effects)
    base, *rows = summary_rows(cut)
    assert base["choice"] == f"{advice.fit.choice.policy}, as it was"
    assert base["mean"] == f"{advice.effects[0].before['mean_jct_s'] / 3600:.2f}"
    assert base["cost"]
    last = next(row for row in rows if row["jobs"] == "57 of 260")
    assert [last[name] for name in ("mean", "p99", "idle", "cost")] == [""] * 4
    assert last["change"] == f"{early.change:+.1%}"
    assert all(row["cost"] for row in rows if row is not last)
    assert LEFT_EARLY in advice_page(cut, "march.txt")
    assert LEFT_EARLY not in advice_page(advice, "march.txt")


def test_nobody_loses_most_where_everybody_takes_as_long_as_before(advice):
    """A change that rounds to 0 %, and one of too few jobs, is no loss."""
    one = next(each for each in advice.of_kind("policy") if each.final)
    cases = (
        ((Change("a", 40, 100.0, 100.4), Change("b", 40, 100.0, 90.0)), "nobody"),
        ((Change("a", 2, 100.0, 200.0), Change("b", 40, 100.0, 110.0)), "b +10%"),
    )
    for projects, shown in cases:
        changed = replace(advice, effects=(replace(one, projects=projects),))
        assert summary_rows(changed)[-1]["worst"] == shown


def test_who_loses_is_shown_for_the_policy_that_is_recommended(advice):
    finals = [one for one in advice.of_kind("policy") if one.final]
    best = next(one for one in finals if not one.choice.oracle)
    assert finals[0].choice.oracle
    page = advice_page(advice, "march.txt")
    owners = page[page.index("Who loses and who gains, by project") :]
    assert f">{best.choice.policy} <span" in owners
    assert f">{finals[0].choice.policy} <span" not in owners


@pytest.mark.parametrize(
    ("policy", "oracle"),
    [("srsf", True), ("srsf:knows=predicted", False), ("muri-s:knows=predicted", True), ("tiresias-l", False)],
)
def test_predicted_durations_need_nothing_of_users(policy, oracle):
    assert Alternative("policy", policy, policy, CLUSTER).oracle == oracle


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install chromium to render the page")
def test_tables_fit_a_window_of_1200_pixels(advice, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here; pip install playwright")
    page = tmp_path / "advice.html"
    long = "fifo-backfill:reserve_after_s=86400"
    named = [replace(one, choice=replace(one.choice, label=long)) for one in advice.effects]
    page.write_text(advice_page(replace(advice, effects=tuple(named)), "march.txt"), encoding="utf-8")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.goto(page.as_uri())
        sizes = tab.evaluate("[...document.querySelectorAll('.scroll')].map(one => [one.scrollWidth, one.clientWidth])")
        browser.close()
    assert len(sizes) >= 4
    assert all(needed <= there for needed, there in sizes), sizes


def test_each_number_says_of_which_jobs_it_is(table):
    found = advise(past_of(table, CLUSTER), AdviceRequest(policy="fifo", policies=POLICIES, nodes=("+1",), budget=1000))
    first, _, third = found.sentences
    best = min(
        (one for one in found.of_kind("policy") if one.final and not one.choice.oracle), key=lambda one: one.change
    )
    assert 0 < best.jobs < 260
    order = [(not found.whole_sample(one), one.change) for one in found.of_kind("policy")]
    assert order == sorted(order)
    assert f"of {best.jobs} of 260 jobs" in first
    ended_s = found.past.jct_s
    assert f"{best.jobs} jobs of 260, with a recorded mean of {best.recorded_s / 3600:.2f} h" in third
    assert f"of all that ended: {ended_s.mean() / 3600:.2f} h" in third
    assert found.fit.jobs == 260 or f"of {found.fit.jobs} of 260 jobs" in third


def test_the_one_kind_that_jobs_name_is_that_of_a_cluster_without_one(table):
    kinds = np.array(["a100" if i % 2 else None for i in range(len(table))], dtype=object)
    named = checked_table({**table.columns, "gpu_kinds": kinds})
    past = past_of(named, CLUSTER)
    assert past.cluster == Cluster.parse("2x8:a100")
    assert "GPUs are taken as a100, the one kind that jobs name" in past.remarks
    assert past_of(named, Cluster.parse("2x8:v100")).cluster.kinds == ("v100",)
    with pytest.raises(InputError, match=r"no GPU is a 'a100'; known: gpu; .* e\.g\. --cluster 2x8:a100"):
        advise(past_of(table, CLUSTER), AdviceRequest(prices=Prices.parse(["a100=3", "gpu=1"])))


def test_a_wrong_price_is_refused_before_the_history_is_read(tmp_path):
    for price in ("a100=nan", "-1", "a100"):
        with pytest.raises(InputError, match="write money per GPU-hour"):
            answer(AdviseRequest(tmp_path / "missing.txt", price=[price]))


def test_a_history_says_who_gains_and_who_loses_and_what_it_costs(advice):
    best = advice.of_kind("policy")[0]
    for owners in (best.users, best.projects):
        assert sum(one.jobs for one in owners) == best.jobs
        total = sum(one.jobs * one.after_s for one in owners) / best.jobs
        assert total == pytest.approx(best.figures["mean_jct_s"])
    hours = best.figures["gpu_h"] / 16
    assert best.figures["cost"] == pytest.approx(16 * 2 * hours)
    assert 0 < best.figures["idle_gpu_h"] < best.figures["gpu_h"]


def test_the_recommendation_is_three_sentences_of_a_policy_that_can_be_used(advice):
    first, second, third = advice.sentences
    assert first.startswith("Use ")
    assert "srsf" not in first
    assert "95 % interval" in first
    assert "project" in second
    assert "user" in second
    assert "260 jobs of 260" in third


def test_json_and_page(advice):
    text = json.dumps(advice.to_json(), allow_nan=False)
    assert json.loads(text)["fit"]["error"] == pytest.approx(advice.fit.error)
    page = advice_page(advice, "march.txt")
    for words in (
        "Advice from march.txt",
        "Policies",
        "Cluster sizes",
        "Quotas",
        "by project",
        advice.sentences[1][:20],
    ):
        assert words in page


def test_the_same_arguments_give_the_same_advice(table):
    past = first_jobs(past_of(table, CLUSTER), 80)
    asked = AdviceRequest(policy="fifo", policies=("fifo-backfill",), nodes=("+1",))
    assert advise(past, asked).to_json() == advise(past, asked).to_json()


def test_a_past_that_cannot_be_simulated_gets_no_advice_but_what_may_be_missing(table):
    with pytest.raises(Unfaithful, match=r"no advice: las .as given.") as found:
        advise(past_of(table, CLUSTER), AdviceRequest(policy="las", policies=POLICIES))
    assert found.value.exit_code == 4
    states = np.where(np.arange(len(table)) % 9 == 0, "node_fail", "completed").astype(object)
    failed = checked_table({**table.columns, "state": states})
    with pytest.raises(Unfaithful, match="node failures: 29 jobs ended by one"):
        advise(past_of(failed, Cluster.parse("4x8")), AdviceRequest(policy="fifo", policies=POLICIES))


def test_where_nothing_is_better_the_advice_is_to_stay():
    past = past_of(made("srsf"), CLUSTER)
    first, second, _ = advise(
        past, AdviceRequest(policy="srsf", policies=("fifo", "fifo-backfill"), nodes=("+1",))
    ).sentences
    assert first.startswith("Stay with srsf")
    assert "+1 node" in second


def test_a_history_without_starts_and_ends_is_refused():
    with pytest.raises(InputError, match="no recorded starts and ends"):
        past_of(generate("philly", 20, 16, seed=1), CLUSTER)


def test_the_cluster_is_the_peak_of_gpus_in_use(table):
    past = past_of(table)
    assert past.cluster.gpus == 16
    assert any(remark.startswith("cluster inferred") for remark in past.remarks)


def test_jobs_that_follow_each_other_are_not_at_once():
    columns = {
        "job_id": np.array(["a", "b", "c"], dtype=object),
        "submit_s": np.zeros(3),
        "gpus": np.array([4, 4, 2], np.int32),
        "duration_s": np.full(3, 10.0),
        "duration_kind": np.full(3, "exact", dtype=object),
        "observed_start_s": np.array([0.0, 10, 10]),
        "observed_end_s": np.array([10.0, 20, 20]),
        "nodes": np.array([1.0, 2, 1]),
    }
    assert str(past_of(checked_table(columns)).cluster) == "2x4"


def test_a_quota_within_which_a_job_could_never_run_is_refused(table):
    past = past_of(table, CLUSTER)
    with pytest.raises(InputError, match=r"asked for 16 GPUs, and could never run within 8; give at least 16"):
        quotas(past, "fifo", ["*=8"])
    with pytest.raises(InputError, match="no job is of project 'tenant-9'"):
        quotas(past, "fifo", ["tenant-9=16"])


def test_a_choice_under_which_jobs_never_run_is_last(table):
    past = past_of(table, CLUSTER)
    never = Alternative("policy", "never", "fifo:quota=*=8", CLUSTER)
    (outcome,) = Simulations(past).of([never], 260)
    assert mean_jct_s(outcome) == float("inf")
    assert outcome.unfinished == int((past.jobs.gpus > 8).sum()) > 0  # those that the quota refuses


def test_a_log_of_plait_is_a_history(tmp_path):
    jobs = load_jobs(generate("philly", 60, 16, 0.9, 1)).jobs
    log = tmp_path / "run.log.gz"
    run_case(Case("t", jobs, "fifo-backfill", CLUSTER, history_world(), log=str(log)))
    past = past_of_log(log, make_policy)
    assert (past.policy, past.cluster.gpus, len(past.jobs)) == ("fifo-backfill", 16, 60)
    found = advise(past, AdviceRequest(policies=("fifo",), nodes=()))
    assert found.fit.given
    assert abs(found.fit.error) < 1e-9


# -- histories with a known answer ----------------------------------------------------------------------


def recorded(jobs, start_s):
    """A table of (id, submission, GPUs, seconds, project) with these starts."""
    ids, submit_s, gpus, run_s, projects = (list(column) for column in zip(*jobs, strict=True))
    return checked_table(
        {
            "job_id": np.array(ids, dtype=object), "submit_s": np.array(submit_s, float),
            "gpus": np.array(gpus, np.int32), "duration_s": np.array(run_s, float),
            "duration_kind": np.full(len(ids), "exact", dtype=object),
            "observed_start_s": np.array(start_s, float),
            "observed_end_s": np.array(start_s, float) + np.array(run_s, float),
            "project": np.array(projects, dtype=object),
        }
    )  # fmt: skip


def blocked_head(rounds=20):
    """Many times: 4 GPUs for an hour, then 8 GPUs (which wait), then 4 GPUs for 10 min (blocked without backfill)."""
    jobs, starts = [], []
    for i in range(rounds):
        at_s = 20_000.0 * i
        jobs += [(f"long-{i}", at_s, 4, 3600, "a"), (f"wide-{i}", at_s + 1, 8, 3600, "a")]
        jobs += [(f"short-{i}", at_s + 2, 4, 600, "b")]
        starts += [at_s, at_s + 3600, at_s + 7200]
    return recorded(jobs, starts)


def test_backfill_saves_a_known_part_and_a_node_more_another():
    past = past_of(blocked_head(), Cluster.parse("1x8"))
    found = advise(
        past, AdviceRequest(policy="fifo", policies=("fifo-backfill",), nodes=("+1",), prices=Prices.parse(["2"]))
    )
    assert abs(found.fit.error) < 1e-3
    before_s, backfilled_s, doubled_s = 3600 + 7199 + 7798, 3600 + 7199 + 600, 3600 + 3600 + 600
    (policy,) = found.of_kind("policy")
    assert policy.change == pytest.approx(backfilled_s / before_s - 1, abs=1e-3)
    assert policy.low == policy.high == pytest.approx(policy.change)  # every part of the past says the same
    by_project = {one.name: one.ratio for one in policy.projects}
    assert by_project == {"a": pytest.approx(0), "b": pytest.approx(600 / 7798 - 1, abs=1e-3)}
    larger = next(one for one in found.of_kind("size") if one.choice.policy == "fifo")
    assert larger.change < doubled_s / before_s + 0.24 - 1  # the third waits for half an hour at most
    assert larger.figures["idle_gpu_h"] > policy.figures["idle_gpu_h"]
    assert larger.figures["cost"] > 1.9 * larger.before["cost"]
    assert found.sentences[0].startswith("Use fifo-backfill instead of fifo")
    assert "none takes noticeably longer" in found.sentences[1]


def test_a_quota_protects_one_project_and_the_advice_says_whom_it_costs():
    jobs, starts = [], []
    for i in range(20):
        at_s = 20_000.0 * i
        jobs += [(f"crowd-{i}-{k}", at_s + k, 2, 3600, "crowd") for k in range(8)] + [
            (f"few-{i}", at_s + 9, 2, 60, "few")
        ]
        starts += [at_s + k for k in range(4)] + [at_s + 3600 + k for k in range(4)] + [at_s + 7200]
    past = past_of(recorded(jobs, starts), Cluster.parse("1x8"))
    found = advise(past, AdviceRequest(policy="fifo", policies=("sjf",), nodes=(), quotas=("crowd=6",)))
    (quota,) = found.of_kind("quota")
    ratios = {one.name: one.ratio for one in quota.projects}
    assert ratios["few"] == pytest.approx(60 / 7251 - 1, abs=0.01)
    assert ratios["crowd"] > 0.1
    assert quota.projects[0].name == "crowd"


# -- rounds and blocks -----------------------------------------------------------------------------------


def test_rounds_keep_to_the_budget():
    for choices, always, jobs, budget in ((20, 4, 100_000, 150_000), (7, 1, 5000, 20_000), (1, 0, 100_000, 30_000)):
        plan = planned(choices, always, jobs, budget)
        assert plan.simulated <= budget
        assert plan.rounds[0][0] >= choices
        assert all(a[1] <= b[1] for a, b in zip(plan.rounds, plan.rounds[1:], strict=False)) or always


def test_blocks_begin_as_the_cluster_was(table):
    past = past_of(table, CLUSTER)
    (block,) = blocks(past, 120)
    assert len(past.jobs) > len(block.jobs) >= 120
    begin_s = float(block.jobs.submit_s[0])
    there = [i for i in range(len(past.jobs)) if past.jobs.submit_s[i] < begin_s < past.end_s[i]]
    assert sorted(block.rows[: len(there)].tolist()) == there
    ran = [i for i in there if past.start_s[i] <= begin_s]
    left_s = (block.jobs.iterations * block.jobs.iteration_s)[: len(ran)]
    assert left_s == pytest.approx(np.maximum(past.end_s[ran] - begin_s, 0), rel=1e-5, abs=1)
    assert not block.counts[: len(there)].any()
    outcome = Simulations(past).of([Alternative("", "", "fifo", CLUSTER)], 120)[0]
    recorded = past.jct_s[outcome.rows].mean()
    assert outcome.jct_s.mean() == pytest.approx(recorded, rel=0.15)


def test_the_best_are_in_the_last_round(table):
    past = past_of(table, CLUSTER)
    names = ("fifo", "las", "srsf", "yarn-cs", "sjf", "2d-las")
    rivals = [Alternative("policy", name, name, CLUSTER) for name in names]
    found = in_rounds(planned(len(rivals), 0, len(past.jobs), 1000), rivals, (), mean_jct_s, Simulations(past).of)
    last = max(number for number, _ in found.values())
    assert last == 2
    kept = {one.policy for one, (number, _) in found.items() if number == last}
    assert len(kept) == 3
    assert kept <= {"srsf", "las", "2d-las", "sjf"}
    assert set(found) == set(rivals)


def test_a_long_past_is_simulated_in_rounds_that_cost_little(table):
    past = past_of(table, CLUSTER)
    assert round_of(past, 10 * len(past.jobs)) == 0
    round_s = round_of(past, len(past.jobs))
    assert 0 < round_s <= 0.01 * past.jct_s.mean()
    fifo = Alternative("", "", "fifo", CLUSTER)
    (exact,), (coarse,) = (Simulations(past, round_s=each_s).of([fifo], 260) for each_s in (0.0, round_s))
    assert exact.jct_s.mean() < coarse.jct_s.mean() < 1.01 * exact.jct_s.mean()


def test_nothing_is_simulated_twice(table):
    past = past_of(table, CLUSTER)
    told = []
    with Simulations(past, ended=told.append) as simulations:
        used, again = (Alternative(kind, kind, "fifo", CLUSTER) for kind in ("", "policy"))
        first = simulations.of([used, again], 260)
        assert simulations.of([again], 9999) == [first[0]]
        assert first[1] is first[0]
        assert (simulations.jobs, told) == (260, [260])


def test_processes_give_the_same_outcomes(table, monkeypatch):
    monkeypatch.setattr("plait.outlook.choices.WORTH_PROCESSES", 0)
    past = first_jobs(past_of(table, CLUSTER), 60)
    choices = [Alternative("", name, name, CLUSTER) for name in ("fifo", "las")]
    with Simulations(past, processes=2) as simulations:
        over = simulations.of(choices, 60)
    for one, other in zip(over, Simulations(past).of(choices, 60), strict=True):
        assert one.jct_s.tolist() == other.jct_s.tolist()


# -- parts -----------------------------------------------------------------------------------------------


def test_first_starts_are_free_since_recorded_times_have_them():
    for _, rows in history_world().overheads.rows:
        assert all(row[LAUNCH + 1] == 0 for row in rows)
    assert any(row[3] > 0 for _, rows in history_world().overheads.rows for row in rows)


def test_weeks_of_a_long_past_and_parts_of_a_short_one():
    weeks = parts(np.arange(10) * 7 * 86400.0)
    assert weeks.tolist() == list(range(10))
    short = parts(np.arange(100) * 60.0)
    assert np.bincount(short).tolist() == [5] * 20


def test_who_loses_most_is_first_and_few_jobs_do_not_make_a_loser():
    owners = np.array(["a"] * 6 + ["b"] * 6 + ["c"], dtype=object)
    before, after = np.full(13, 100.0), np.array([150.0] * 6 + [50.0] * 6 + [900.0])
    found = changes(owners, before, after)
    assert [one.name for one in found] == ["c", "a", "b"]
    assert [one.name for one in losers(found)] == ["a"]


@pytest.mark.parametrize("text", ["0", "-2", "many", "+1%x"])
def test_sizes_that_are_none_are_refused(table, text):
    with pytest.raises(InputError, match="nodes"):
        sizes(past_of(table, CLUSTER), "fifo", [text])


def test_more_nodes_are_as_the_last_and_fewer_leave_the_first():
    mixed = Cluster.parse("2x8:v100,1x4:a100")
    assert [node.gpus for node in resized(mixed, 2).nodes] == [8, 8, 4, 4, 4]
    assert resized(mixed, -1).kinds == ("v100",)


def test_sacct_becomes_advice(table, tmp_path, capsys):
    lines = ["JobID|User|Account|Submit|Start|End|State|AllocTRES|NNodes"]
    for row in table.rows():
        stamps = "|".join(
            str(1_700_000_000 + round(row[name])) for name in ("submit_s", "observed_start_s", "observed_end_s")
        )
        nodes = -(-row["gpus"] // 8)
        lines.append(
            f"{row['job_id']}|{row['user']}|{row['project']}|{stamps}|COMPLETED|gres/gpu={row['gpus']}|{nodes}"
        )
    history = tmp_path / "march.txt"
    history.write_text("\n".join(lines))
    assert read_trace(history).meta["format"] == "sacct"
    answer(
        AdviseRequest(
            history, candidates="fifo-backfill,las", nodes="", json=str(tmp_path / "a.json"), price=["2"], processes=1,
            report=tmp_path / "a.html",
        )
    )  # fmt: skip
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["gpus"] == 16
    assert abs(found["fit"]["error"]) < 0.01
    assert "<h2" in (tmp_path / "a.html").read_text()
    assert "instead of" in capsys.readouterr().out
