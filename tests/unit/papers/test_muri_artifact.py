"""The published artifact of Muri: its matching, group times, traces and numbers."""

import dataclasses
import json
import os
import subprocess
import sys
from itertools import combinations_with_replacement
from pathlib import Path

import networkx
import numpy as np
import pytest
import rustworkx
from artifact_jobs import PROFILES_MS, SIZES, job, of_profiles, profile_ms, trace_of

from artifact_traces import rows, write_trace
from plait.core.errors import InputError
from plait_papers.muri import published
from plait_papers.muri.artifact import speeds
from plait_papers.muri.artifact.engine import run
from plait_papers.muri.artifact.matching import tied_matching
from plait_papers.muri.artifact.settings import CHOICES, MEANINGS, POLICIES, SUMMARIES, read_setting
from plait_papers.muri.artifact.speeds import INTERFERENCE, Profiles, raw_time
from plait_papers.muri.artifact.trace import read
from plait_papers.muri.figures import FIGURES, KINDS, LABELS, METRICS, chosen


def symmetric(weights: np.ndarray) -> np.ndarray:
    upper = np.triu(weights, 1)
    return np.ascontiguousarray(upper + upper.T, dtype=np.float64)


def random_weights(kind: str, n: int, rng: np.random.Generator) -> np.ndarray:
    if kind == "uniform":
        return symmetric(rng.random((n, n)))
    if kind == "ties":
        return symmetric(rng.integers(0, 4, (n, n)))
    if kind == "classes":
        members = rng.integers(0, 8, n)
        return symmetric((0.1 + rng.random((8, 8)))[np.ix_(members, members)])
    return symmetric(rng.integers(1, 60, (n, n)) * (rng.random((n, n)) < 0.2))  # sparse, so often disconnected


GRAPHS = ("uniform", "ties", "classes", "sparse")


def weight_of(weights: np.ndarray, mates: np.ndarray) -> float:
    return sum(float(weights[u, v]) for u, v in enumerate(mates) if v > u)


def heaviest(weights: np.ndarray) -> tuple[float, float]:
    """Total weight by networkx and, in millionths, by rustworkx."""
    pairs = [(u, v) for u, v in zip(*np.nonzero(np.triu(weights)), strict=True)]
    graph = networkx.Graph()
    graph.add_weighted_edges_from((u, v, float(weights[u, v])) for u, v in pairs)
    other = rustworkx.PyGraph()
    other.add_nodes_from(range(len(weights)))
    other.add_edges_from([(int(u), int(v), round(1e6 * float(weights[u, v]))) for u, v in pairs])
    return (
        sum(float(weights[u, v]) for u, v in networkx.max_weight_matching(graph)),
        sum(float(weights[u, v]) for u, v in rustworkx.max_weight_matching(other, weight_fn=int)),
    )


@pytest.mark.parametrize("kind", GRAPHS)
def test_total_weight_equals_two_libraries(kind: str) -> None:
    rng = np.random.default_rng(GRAPHS.index(kind))
    for n in [*range(1, 12), 17, 24, 31, 40]:
        for _ in range(6):
            weights = random_weights(kind, n, rng)
            ours = weight_of(weights, tied_matching(weights))
            assert heaviest(weights) == pytest.approx((ours, ours), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("kind", GRAPHS)
def test_mates_are_mutual_and_joined_by_an_edge(kind: str) -> None:
    rng = np.random.default_rng(7)
    for n in (0, 1, 2, 3, 9, 40, 90):
        weights = random_weights(kind, n, rng)
        mates = tied_matching(weights)
        assert len(mates) == n
        for u, v in enumerate(mates):
            assert v == -1 or (mates[v] == u and weights[u, v] > 0)


def test_equal_weights_take_the_pairs_in_order() -> None:
    assert tied_matching(symmetric(np.ones((4, 4)))).tolist() == [1, 0, 3, 2]
    assert tied_matching(symmetric(np.ones((3, 3)))).tolist() == [1, 0, -1]


def test_zero_and_negative_weights_and_the_diagonal_are_no_edges() -> None:
    weights = np.full((4, 4), -1.0)
    weights[0, 1] = weights[1, 0] = 0.0
    np.fill_diagonal(weights, 9.0)
    assert tied_matching(weights).tolist() == [-1] * 4


def test_last_bits_may_differ_by_direction() -> None:
    rng = np.random.default_rng(3)
    weights = random_weights("classes", 40, rng)
    shaken = np.where(rng.random(weights.shape) < 0.5, np.nextafter(weights, 2.0), weights)
    mates = tied_matching(shaken)
    assert all(v == -1 or mates[v] == u for u, v in enumerate(mates))
    assert weight_of(weights, mates) == pytest.approx(weight_of(weights, tied_matching(weights)))


def test_repeatable() -> None:
    weights = random_weights("classes", 60, np.random.default_rng(4))
    first = tied_matching(weights)
    assert all((tied_matching(weights.copy()) == first).all() for _ in range(5))


PLAIN = """
import json, sys, numpy as np
from plait_papers.muri.artifact.matching import tied_matching
assert not hasattr(tied_matching, "py_func")
print(json.dumps([tied_matching(np.array(w)).tolist() for w in json.load(sys.stdin)]))
"""


def test_plain_python_gives_the_same_mates() -> None:
    rng = np.random.default_rng(5)
    graphs = [random_weights(kind, int(rng.integers(2, 26)), rng) for kind in GRAPHS for _ in range(12)]
    plain = subprocess.run(
        [sys.executable, "-c", PLAIN],
        input=json.dumps([graph.tolist() for graph in graphs]),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(plain.stdout) == [tied_matching(graph).tolist() for graph in graphs]


# Group times of the artifact's world: its printed values, and the fast ones against the plain recurrence.

SHORT = {"shufflenet": "shufflenet_v2_x1_0"}
FACTOR = np.array(INTERFERENCE)
PRINTED = """
16 shufflenet+a2c+gpt2+vgg16 901 1301 1216.1281 1.999740 0.451597
8 shufflenet+a2c+gpt2+vgg16 851 1271 1148.6404 1.911342 0.444874
1 shufflenet+a2c+gpt2+vgg16 823 1220 1110.8473 1.688549 0.425036
8 shufflenet+a2c+gpt2 836 1271 1235.4680 1.601203 0.368484
8 a2c+a2c+gpt2+vgg16 591 1004 797.7044 2.240698 0.540426
8 dqn+dqn+dqn+shufflenet 870 1204 1174.2857 2.147058 0.461238
8 bert+gpt2+gpt2+gpt2 1424 1424 1922.0493 0.793708 0.212312
8 a2c+a2c 530 1004 694.4828 1.622286 0.371787
8 dqn+dqn 451 870 590.9655 1.748444 0.375233
8 a2c+gpt2 516.4 935 676.6621 1.488010 0.363919
8 dqn+gpt2 476.5 862 624.3793 1.537831 0.365203
8 gpt2+gpt2 838.6 936 1098.8552 0.807304 0.213222
8 bert+bert 334.5 452 438.3103 0.889233 0.258379
8 bert+gpt2 586.5 694 768.5172 0.830736 0.226117
8 bert+vgg16 242.5 367 317.7586 1.296865 0.353649
8 gpt2+vgg16 494.6 609 648.0966 1.019547 0.266781
8 resnet18+shufflenet 978 1553 1281.5172 1.557923 0.353877
8 resnet18+resnet18 1018 1568 1333.9310 1.537036 0.366586
8 shufflenet+gpt2 836 1245 1095.4483 1.291626 0.297732
8 shufflenet+vgg16 845 901 1107.2414 1.073447 0.239108
8 vgg16+vgg16 232 282 304.0000 1.429013 0.366776
1 a2c+vgg16 528 631 691.8621 0.915443 0.257638
""".strip().splitlines()


def group(jobs: int) -> tuple[np.ndarray, np.ndarray]:
    """The first jobs of a trace as one group."""
    members = np.zeros((1, 4), dtype=np.int64)
    members[0, :jobs] = range(jobs)
    return members, np.array([jobs])


@pytest.mark.parametrize("line", PRINTED)
def test_printed_group_times(line: str) -> None:
    size, names, raw, worst, time, speedup, gamma = line.split()
    models = [SHORT.get(name, name) for name in names.split("+")]
    trace = of_profiles(models, int(size))
    profiles, members = Profiles.from_trace(trace), group(len(models))
    ones = np.ones(5)
    assert 1000 * profiles.times(*members, ones)[0] == pytest.approx(float(raw), abs=1e-9)
    assert 1000 * profiles.times(*members, ones, worst=True)[0] == pytest.approx(float(worst), abs=1e-9)
    time_s = profiles.times(*members, FACTOR)[0]
    assert f"{1000 * time_s:.4f}" == time
    assert f"{trace.iteration_s.sum() / time_s:.6f}" == speedup
    left, right = group(len(models) - 1)
    pair = np.concatenate([left, np.array([[len(models) - 1, 0, 0, 0]])]), np.append(right, 1)
    assert f"{profiles.weights(*pair, 4, FACTOR)[0, 1]:.6f}" == gamma


@pytest.mark.parametrize("gpus", SIZES)
@pytest.mark.parametrize("worst", [False, True])
def test_fast_times_are_the_plain_ones(gpus: int, worst: bool) -> None:
    """All groups of 2, 3 and 4 of the 48 profiles, to the last bit, asked twice."""
    models = list(PROFILES_MS)
    profiles = Profiles.from_trace(of_profiles(models, gpus))
    groups = [c for p in (2, 3, 4) for c in combinations_with_replacement(range(len(models)), p)]
    members = np.array([[*c, 0, 0][:4] for c in groups])
    size = np.array([len(c) for c in groups])
    stages = [tuple(x / 1000 for x in profile_ms(m, gpus)[1:]) for m in models]
    plain = [raw_time([stages[i] for i in c], worst=worst) for c in groups]
    for _ in range(2):
        assert profiles.times(members, size, np.ones(5), worst=worst).tolist() == plain


def test_times_do_not_depend_on_the_order_of_members() -> None:
    profiles = Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
    members = np.array([[0, 3, 5, 7], [7, 5, 3, 0], [3, 7, 0, 5]])
    times = profiles.times(members, np.full(3, 4), FACTOR)
    assert times[0] == times[1] == times[2]


def test_what_is_remembered_gives_way_without_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "REMEMBERED", 2)
    few = Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
    monkeypatch.setattr(speeds, "REMEMBERED", 1 << 12)
    many = Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))
    members = np.array([[*c, 0][:4] for c in combinations_with_replacement(range(8), 3)])
    size = np.full(len(members), 3)
    assert few.times(members, size, FACTOR).tolist() == many.times(members, size, FACTOR).tolist()


def test_weights_sum_the_members_of_u_then_of_v() -> None:
    """Both orders of a pair, each to its last bit; nothing where the two are too many together."""
    profiles = Profiles.from_trace(of_profiles(list(PROFILES_MS), 4))
    members = np.array([[0, 1, 0, 0], [2, 0, 0, 0], [3, 4, 0, 0], [5, 6, 7, 0]])
    size = np.array([2, 1, 2, 3])
    weights = profiles.weights(members, size, 4, FACTOR)
    for u in range(4):
        for v in range(4):
            jobs = [*members[u, : size[u]], *members[v, : size[v]]]
            if u == v or len(jobs) > 4:
                assert weights[u, v] == 0
                continue
            busy = 0.0
            for j in jobs:
                busy += profiles.total[profiles.of[j]]
            raw = raw_time([tuple(profiles.stages[profiles.of[j]]) for j in jobs])
            assert weights[u, v] == busy / (raw * FACTOR[len(jobs)] * 4)
    assert (weights > 0).sum() == 8


def test_too_many_profiles_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speeds, "BITS", 3)
    with pytest.raises(InputError, match="8 different stage profiles in one trace; at most 7 work"):
        Profiles.from_trace(of_profiles(list(PROFILES_MS), 8))


# Reading the artifact's traces: what is taken how, and what is refused where.

HEADER = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority"
)
LATE = "0,8,1534000,1463,vgg16,16,281000,28000,214,82,75,66,1"
EARLY = "1,32,0,10956,gpt2,4,5095000,91000,514,0.7,414,216,0"
OTHER = "2,4,1534000,5,lenet,4,1000,0,200,1,2,3,0"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "trace.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return path


def test_columns_in_seconds_sorted_by_submission(tmp_path: Path) -> None:
    trace = read(written(tmp_path, LATE, EARLY, OTHER))
    assert trace.row.tolist() == [1, 0, 2]  # the file's order among equal times
    assert trace.model == ("gpt2", "vgg16", "lenet")
    assert trace.submit_s.tolist() == [0, 1534, 1534]
    assert trace.iteration_s.tolist() == [514 * 1.015 / 1000, 214 * 1.015 / 1000, 200 * 1.015 / 1000]
    assert (trace.data_s[0], trace.gpu_s[0], trace.network_s[0]) == (0.7 / 1000, 0.414, 0.216)
    assert trace.iterations.tolist() == [10956, 1463, 5]
    assert trace.duration_s.tolist() == [5095, 281, 1]
    assert trace.priority.tolist() == [0, 1, 0]
    assert trace.overhead_s.tolist() == [10, 9, 10]  # 10 for a model nobody measured


def test_only_the_first_rows(tmp_path: Path) -> None:
    path = written(tmp_path, LATE, EARLY, "not a job")
    assert read(path, 2).row.tolist() == [1, 0]
    with pytest.raises(InputError, match=r"trace.csv:4: expected 13 fields, found 1"):
        read(path)
    with pytest.raises(InputError, match="jobs must be at least 1, got 0"):
        read(path, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (",8,", ",12,", "column 'num_gpu': no start overhead for this many GPUs .got '12'.; known: 1, 2, 4, 8, 16, 32"),
        (",8,", ",64,", "column 'num_gpu': no start overhead"),
        (",1463,", ",0,", "column 'iterations': must be more than 0"),
        (",214,", ",-1,", "column 'iteration_time': must not be negative"),
        (",75,", ",x,", "column 'resource_time_1': must be a finite number"),
        (",66,1", ",66,2", "column 'priority': unknown value"),
        ("1534000", "", "column 'submit_time': a value is needed here"),
    ],
)
def test_bad_cells_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=f"trace.csv:3: {message}"):
        read(written(tmp_path, EARLY, LATE.replace(old, new, 1)))


def test_a_job_that_uses_nothing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace\.csv:3: column 'resource_time_0': at least one of the three stages"):
        read(written(tmp_path, EARLY, LATE.replace(",82,75,66,", ",0,0,0,")))


def test_files_that_are_no_trace(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"trace\.csv: the trace has no jobs"):
        read(written(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path / "none.csv")
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"other\.csv:1: column 'job_id': a required column is missing"):
        read(other)


def test_other_stage_times_for_the_same_jobs() -> None:
    trace = trace_of(job(), job(submit_s=3))
    noisy = dataclasses.replace(trace, data_s=trace.data_s + 0.5)
    assert noisy.data_s.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpus": np.array([8])}, "column gpus has 1 jobs, row has 2"),
        ({"submit_s": np.array([3.0, 0.0])}, "must be sorted by submit_s"),
        ({"iterations": np.array([1.0, 0.0])}, "iterations of a job must be more than 0, got 0"),
        ({"gpus": np.array([8, 3])}, "no start overhead for a job on 3 GPUs; known: 1, 2, 4, 8, 16, 32"),
    ],
)
def test_columns_that_cannot_be(change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(trace_of(job(), job(submit_s=3)), **change)


def test_antman_names_a_guaranteed_job_of_one_stage(tmp_path: Path) -> None:
    lines = rows(6)
    fields = lines[2].split(",")
    fields[9:12] = ["0", "120", "0"]
    fields[12] = "0"
    lines[2] = ",".join(fields)
    trace = read(write_trace(tmp_path / "t.csv", lines))
    with pytest.raises(InputError, match="cannot run row 2: a guaranteed job needs at least two stages"):
        run(trace, "antman")
    assert len(run(trace, "srtf").end_s) == 6


# The published numbers agree with each other, and the figures with them.

CELLS = [v for v in published.values() if v.figure in FIGURES]


def test_every_value_says_where_it_is_from() -> None:
    for value in published.values():
        assert value.value >= 0
        assert value.mark in published.MARKS
        assert value.source
        assert value.figure in {*FIGURES, "8", "tables", ""}
    assert all(ratio.mark in published.MARKS for ratio in published.ratios())


def test_no_value_is_there_twice() -> None:
    keys = [(v.figure, v.trace, v.bar, v.metric, v.policy) for v in published.values()]
    assert len(set(keys)) == len(keys)


def test_policies_are_settings_of_the_world_in_one_spelling() -> None:
    texts = {v.policy for v in published.values()}
    texts |= {p for f in FIGURES.values() for b in f.bars for p in (b.policy, b.consistent) if p}
    for text in texts:
        assert read_setting(text).text == text


def test_cells_equal_the_run_of_their_setting() -> None:
    checked = 0
    for cell in CELLS:
        run = published.reference(cell.trace, cell.policy, cell.metric)
        if cell.policy != "themis":
            assert run.value == cell.value
            checked += 1
    assert checked > 60


def test_ratios_are_those_of_the_cells() -> None:
    checked = 0
    for ratio in published.ratios():
        over = published.cell(ratio.figure, ratio.trace, ratio.over, ratio.metric)
        under = published.cell(ratio.figure, ratio.trace, ratio.under, ratio.metric)
        if over and under:
            assert over.value / under.value == pytest.approx(ratio.low, abs=0.0051)
            assert ratio.low == ratio.high
            checked += 1
    assert checked > 40


def test_traces_lie_in_the_range_over_all_traces() -> None:
    for ratio in published.ratios():
        over_all = published.ratio(ratio.figure, "", ratio.metric, ratio.over)
        if ratio.trace and over_all:
            assert over_all.low <= ratio.low <= over_all.high


def test_a_trace_without_its_own_ratio_has_the_range() -> None:
    held_back = published.ratio("9", "trace2", "avg_jct_s", "SRTF")
    assert (held_back.trace, held_back.low, held_back.high) == ("", 1.5, 2.26)
    assert published.ratio("9", "trace2", "avg_jct_s", "Muri-S") is None


def test_every_cell_has_its_bar() -> None:
    for cell in CELLS:
        figure = FIGURES[cell.figure]
        assert cell.trace in figure.traces
        assert cell.metric in figure.metrics
        assert cell.bar in {bar.name for bar in figure.bars}


def test_figures_are_sound() -> None:
    for figure in FIGURES.values():
        names = {bar.name for bar in figure.bars}
        assert all(bar.over in names for bar in figure.bars)
        assert set(figure.traces) <= set(LABELS)
        assert set(figure.metrics) <= set(METRICS)


def test_the_published_setting_may_differ_by_metric() -> None:
    figure = FIGURES["10"]
    muri = figure.bars[-1]
    settings = {metric: figure.setting(muri, "trace3", metric) for metric in figure.metrics}
    assert settings == {"avg_jct_s": "muri-l", "makespan_s": "muri-l", "p99_jct_s": "muri-l:unpack=off"}
    assert figure.setting(muri, "trace2", "avg_jct_s") == "muri-l:unpack=off"


def test_chosen_figures() -> None:
    assert chosen(None) == KINDS
    assert chosen("tables, 9") == ("9", "tables")
    with pytest.raises(
        InputError, match=r"unknown figure '7'; known: 9, 10, 11, 12, 13, 14, 8, tables, testbed, table1"
    ):
        chosen("7")


def test_every_policy_and_option_is_explained() -> None:
    assert tuple(SUMMARIES) == POLICIES
    assert set(MEANINGS) == {*CHOICES, "shares"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fifo", "no policy 'fifo'; known: srtf"),
        ("muri-x", r"did you mean 'muri-.'\?; it has srtf, srsf"),
        ("srtf:unpack=off", "srtf takes no options"),
        ("themis:shares=all", "shares of themis cannot be 'all'; known: fair, centre, equal"),
        ("muri-s:unpack", "'unpack' is not option=value"),
        ("muri-s:unpck=off", "did you mean 'unpack'"),
        ("muri-l:max_jobs=9", "max_jobs of muri-l cannot be '9'"),
        ("muri-s:order=discretised", "muri-s has no queues"),
    ],
)
def test_wrong_settings(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_setting(text)
