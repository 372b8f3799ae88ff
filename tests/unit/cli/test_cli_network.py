"""`plait network`, and cluster files in `plait simulate`."""

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
    answer = plait.done(
        "network", "show", "--cluster", "16x8@4",
        "--network", "leaf-spine:oversubscription=2,aggregators=20000,link_gbps=100",
    )  # fmt: skip
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
            "--overlap must be a part of the computation from 0 to 1, or layers, got 2",
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
