"""`plait network`, and cluster files in `plait simulate`."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from plait.cli.app import app
from plait.cli.commands.network.bench import PARTS, BenchRequest, _result, show
from sampling import THOROUGH

FILE = """
nodes = "2x4@1"
[network]
topology = "leaf-spine"
oversubscription = 4
aggregators = 100
"""


def test_show_prints_a_row_a_tier(plait):
    answer = plait(
        "network", "show", "--cluster", "16x8@4",
        "--network", "leaf-spine:oversubscription=2,aggregators=20000,link_gbps=100",
    )  # fmt: skip
    assert answer.code == 0
    assert "16 nodes, 24 links" in answer.out
    leaf, spine = (line for line in answer.out.splitlines() if line.startswith("│"))
    cells = [cell.strip() for cell in leaf.strip("│").split("│")]
    assert cells == ["1", "4", "20,000", "-", "248", "1", "400", "-", "200", "2"]
    assert [cell.strip() for cell in spine.strip("│").split("│")][:3] == ["2", "2", "-"]


def test_show_lists_paths(plait, tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    answer = plait("network", "show", "-c", "c.toml", "--path", "n0,n1", "--json")
    found = json.loads(answer.out)
    assert [path["hops"] for path in found["paths"]] == [
        ["n0", "leaf0", "spine0", "leaf1", "n1"], ["n0", "leaf0", "spine1", "leaf1", "n1"],
    ]  # fmt: skip
    assert found["paths"][0]["gbps"] == 12.5
    assert found["paths"][0]["delay_us"] == 7.0
    assert found["network"]["switches"][0]["aggregators"] == 100


def test_topologies_are_listed_with_their_options(plait):
    out = plait("network", "topologies").out
    assert all(name in out for name in ("single-switch", "leaf-spine", "fat-tree", "rail", "oversubscription"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-c", "none.toml"], "cannot read the cluster file none.toml: No such file"),
        (["-c", "c.toml", "-n", "fat-tree"], "c.toml has a network (leaf-spine:oversubscription=4,aggregators=100); "),
        (["-c", "4x4", "-n", "fattree"], "network 'fattree': topology 'fattree' is unknown; did you mean 'fat-tree'"),
        (["--path", "n0"], "--path is 'n0', needs two different nodes"),
        (["--path", "n0,x"], "no node 'x' in this cluster of 16 nodes"),
    ],
)
def test_wrong_options(plait, tmp_path, options, words):
    (tmp_path / "c.toml").write_text(FILE)
    answer = plait("network", "show", *options)
    assert (answer.code, words in answer.err) == (2, True), answer.err


def test_rates_of_jobs_that_share_an_uplink(plait):
    options = ("-c", "8x8@4", "-n", "leaf-spine:oversubscription=4,spines=1", "--gradient-mb", "250")
    answer = plait("network", "rates", "n0,n1", "n2,n6", "n3>n7", "n5>n5", *options, "--json")
    rows = json.loads(answer.out)
    assert [row["gbps"] for row in rows] == [pytest.approx(100), pytest.approx(50), pytest.approx(50), None]
    assert [row["exchange_s"] for row in rows] == [pytest.approx(0.02), pytest.approx(0.04), pytest.approx(0.04), 0]
    assert [row["exchange"] for row in rows] == ["ring", "ring", "parameter server", "parameter server"]
    assert rows[1]["bottleneck"] in ("leaf0->spine0", "spine0->leaf1", "leaf1->spine0", "spine0->leaf0")
    table = plait("network", "rates", "n0..n3", *options).out
    assert "66.667" in table


def test_rates_with_aggregation_in_the_switch(plait):
    jobs = [f"n{9 * j}..n{9 * j + 7}>n{9 * j + 8}" for j in range(8)]
    options = ("-c", "72x8", "-n", "single-switch:aggregators=1024", "--memory-law", "hash", "--window", "245")
    rows = json.loads(plait("network", "rates", *jobs, *options, "--json").out)
    assert [round(row["gbps"], 1) for row in rows] == [14.7] * 8
    assert rows[0]["exchange"] == "aggregated (hash)"
    assert rows[0]["server_packets"] == pytest.approx(1 + 7 * (1 - rows[0]["aggregated"]))
    assert "share aggregated" in plait("network", "rates", *jobs, *options).out
    for aggregators, doubtful in ((256, True), (16_384, False)):
        more = ("-c", "72x8", "-n", f"single-switch:aggregators={aggregators}", "--memory-law", "hash")
        assert ("The law may be far off for n0..n7>n8," in plait("network", "rates", *jobs, *more).out) == doubtful


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (["n0,n99"], "job 'n0,n99': no node 'n99'"),
        (["n0,n0"], "job 'n0,n0': workers on nodes (0, 0): needs one or more, each on a node of its own; write e.g."),
        (["n3..n1"], "job 'n3..n1': n3 comes after n1"),
        (["n0>"], "job 'n0>': no node ''"),
        (["n0,n1", "--memory-law", "hash"], "job 'n0,n1' has no parameter server, which --memory-law needs"),
        (["n0,n1>n2", "--memory-law", "hash"], "no switch of the network aggregates; give aggregators, e.g."),
        (
            ["n0,n1>n2", "--memory-law", "hsh", "-n", "single-switch:aggregators=9"],
            "memory law 'hsh' is unknown; did you mean 'hash'?",
        ),
        (
            ["n0,n1>n2", "--memory-law", "hash", "-n", "single-switch:aggregators=9", "--window", "0"],
            "a window of 0 packets; needs at least 1",
        ),
        (["n0,n1", "--gradient-mb", "nan"], "--gradient-mb must be over 0, got nan"),
    ],
)
def test_wrong_jobs(plait, jobs, words):
    answer = plait("network", "rates", *jobs)
    assert (answer.code, words in answer.err) == (2, True), answer.err


#: Two jobs on two nodes each, which exchange for a tenth of a second of a link in each iteration.
WIDE = """job_id,submit_s,gpus,duration_s,iteration_s,gradient_bytes
a,0,8,400,0.4,1e9
b,0,8,400,0.4,1e9
"""


def test_simulated_jobs_share_the_links_of_a_network(plait, tmp_path):
    (tmp_path / "wide.csv").write_text(WIDE)
    (tmp_path / "c.toml").write_text('nodes = "4x4@4"\n[network]\ntopology = "single-switch"\nlink_gbps = 80\n')

    def run(*words):
        return json.loads(plait("simulate", "wide.csv", "-p", "fifo", "--world", "ideal", "--json", "-", *words).out)[0]

    free = run("-c", "4x4@4")
    assert (free["makespan_s"], "network" in free) == (400.0, False)
    apart = run("-c", "c.toml")  # each job on two nodes of its own: nothing is shared
    assert (apart["makespan_s"], apart["phases"], apart["overlap"]) == (400.0, "random", 0.0)
    slow = run("-c", "4x4@1", "--network", "leaf-spine:spines=1,oversubscription=1,link_gbps=80")
    assert slow["network"] == "leaf-spine:spines=1,oversubscription=1,link_gbps=80"
    assert slow["makespan_s"] == pytest.approx(400, rel=0.01)
    hidden = run("-c", "c.toml", "--overlap", "0.5", "--phases", "together")
    assert (hidden["makespan_s"], hidden["phases"], hidden["overlap"]) == (400.0, "together", 0.5)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--overlap", "0.5"], "--overlap is for clusters with a network; give --network"),
        (["--phases", "random"], "--phases is for clusters with a network; give --network"),
        (
            ["--network", "single-switch", "--overlap", "2"],
            "--overlap must be a part of the computation from 0 to 1, got 2",
        ),
        (["--network", "single-switch", "--phases", "toget"], "--phases 'toget' is unknown; did you mean 'together'?"),
        (["--network", "ring"], "topology 'ring' is unknown"),
    ],
)
def test_wrong_networks_of_a_simulation(plait, tmp_path, words, error):
    (tmp_path / "wide.csv").write_text(WIDE)
    answer = plait("simulate", "wide.csv", "-p", "fifo", *words)
    assert (answer.code, error in answer.err) == (2, True), answer.err


def test_logs_keep_the_network(plait, small, tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    assert plait("simulate", small, "-p", "srsf", "-c", "c.toml", "--log", "filed.jsonl").code == 0
    header = json.loads((tmp_path / "filed.jsonl").read_text().splitlines()[0])
    assert len(header["network"]["links"]) == 6


def test_a_policy_that_grants_memory_says_that_there_is_none(plait, tmp_path):
    (tmp_path / "t.csv").write_text("job_id,submit_s,gpus,duration_s\na,0,4,60\n")
    words = ("simulate", "t.csv", "-c", "2x2@1", "-p", "fifo,fifo:ina=switchml", "--network")
    empty = plait(*words, "leaf-spine:aggregators=100,reserved=100")
    assert (empty.code, "so fifo:ina=switchml grants none" in empty.err) == (0, True), empty.err
    assert "grants none" not in plait(*words, "leaf-spine:aggregators=100").err


# `plait network turns`: the figures of one group, and what is refused.

WHERE = ("-c", "8x4@2", "-n", "leaf-spine:oversubscription=4,link_gbps=10")


def test_a_job_alone_is_as_its_profile_says_and_turns_never_exchange_together(plait):
    rows = json.loads(plait("network", "turns", *WHERE, "--json", "vgg16@n0,n1", "bert@n0,n1", "gpt2@n2,n3").out)
    alone = plait("network", "turns", *WHERE, "--json", "vgg16@n0,n1")
    assert json.loads(alone.out)[0]["alone_s"] == pytest.approx(0.214)
    for row in rows:  # every group has a rack: links between them are idle
        assert row["in_turns_s"] == pytest.approx(row["turns_alone_s"])
        assert row["exchange_in_turns_s"] == pytest.approx(row["exchange_alone_s"])
        assert row["in_turns_s"] >= row["alone_s"] * (1 - 1e-9)
    assert rows[2]["in_turns_s"] == pytest.approx(rows[2]["alone_s"])


def test_groups_between_racks_slow_each_other_down_and_the_table_says_what_turns_are_worth(plait):
    jobs = ("vgg16@n0,n2", "bert@n0,n2", "vgg19@n1,n3", "gpt2@n1,n3")
    rows = json.loads(plait("network", "turns", *WHERE, "--json", *jobs).out)
    assert all(row["exchange_in_turns_s"] > 1.1 * row["exchange_alone_s"] for row in rows)
    assert all(row["in_turns_s"] > row["turns_alone_s"] for row in rows)
    table = plait("network", "turns", *WHERE, *jobs).out
    assert "iterations of all jobs together" in table


@pytest.mark.parametrize(
    ("jobs", "words"),
    [
        (["vgg16"], "job 'vgg16': write MODEL@NODES, e.g. vgg16@n0..n1; models: "),
        (["vgg@n0"], "vgg"),
        (["vgg16@n0,n1>n2"], "exchanges in a ring; leave out > and the server"),
        (["vgg16@n0,n1", "bert@n1,n2"], "two groups share some of their nodes"),
    ],
)
def test_wrong_jobs_are_named(plait, jobs, words):
    answer = plait("network", "turns", *WHERE, *jobs)
    assert (answer.code, words in answer.err) == (2, True), answer.err


# `plait network bench`: medians of what ranks printed, and a whole measurement.


def _rank(network_s: list[float], gloo_s: list[float]) -> dict:
    rounds = [
        {
            "network_s": a,
            "network_cpu_s": a / 2,
            "gloo_s": b,
            "gloo_cpu_s": b / 2,
            **{f"part_{n}": a / 6 for n in PARTS},
        }
        for a, b in zip(network_s, gloo_s, strict=True)
    ]
    counts = {"aggregated": 5, "sent": 100, "resent": 1, "results": 100, "timeouts": 2}
    return {"rounds": rounds, "difference": 1e-7, "counts": counts, "fallback": {"sums did not come back in time": 1}}


def test_a_round_is_as_slow_as_its_slowest_rank(capsys) -> None:
    ranks = [_rank([0.2, 0.1, 0.3], [0.01, 0.01, 0.01]), _rank([0.1, 0.4, 0.1], [0.02, 0.02, 0.02])]
    statistics = [{"stages_s": {"step": 0.5}}, {"stages_s": None}]
    found = _result(BenchRequest(mib=1.0, rounds=3), ranks, statistics)
    assert found["network"]["seconds"] == 0.3
    assert found["network"]["gbps"] == pytest.approx(8e-9 * (1 << 20) / 0.3)
    assert found["network"]["best_gbps"] == pytest.approx(8e-9 * (1 << 20) / 0.2)
    assert found["gloo"]["seconds"] == 0.02
    assert found["switch_cpu_s"] == {"step": 0.1}
    assert (found["resent"], found["timeouts"]) == (0.01, 4)
    show(found)
    out = capsys.readouterr().out
    assert "sent again 1.00 %, timeouts 4, buckets by gloo: 1 sums did not come back in time" in " ".join(out.split())


@pytest.mark.skipif(not THOROUGH, reason="five processes; PLAIT_SLOW=1 runs it")
@pytest.mark.parametrize("protocol", ["switchml", "esa"])
def test_a_measurement_goes_through_a_switch(protocol) -> None:
    pytest.importorskip("torch")
    words = ["network", "bench", "--mib", "0.25", "--rounds", "2", "--protocol", protocol, "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["network"]["gbps"] > 0
    assert found["gloo"]["gbps"] > 0
    assert found["largest_difference"] < 1e-6
