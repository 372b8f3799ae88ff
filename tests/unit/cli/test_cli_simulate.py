"""`plait simulate`."""

import csv
import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from plait.cli.experiments import demonstration
from plait.cli.experiments.outputs import Outputs, names_of_runs
from plait.core.errors import InputError

HEADER = "job_id,submit_s,gpus,duration_s,duration_kind,state"
WANTED = """
trace policy world seed cluster jobs finished failed avg_jct_s p50_jct_s p95_jct_s p99_jct_s makespan_s avg_queue_s
preemptions restarts gpu_utilisation wall_s load round_s overheads version
""".split()  # noqa: SIM905


def table(name):
    return list(csv.DictReader(Path(name).read_text().splitlines()))


@pytest.mark.parametrize(
    ("trace", "cluster", "policy", "average"),
    [
        ("muri/trace3.csv", "8x8", "srsf", 172683.743),
        ("tiresias/60_job.csv", "4x4", "fifo", 200.817),
        ("tiresias/60_job.csv", "4x4", "srtf", 192.117),
    ],
)
def test_published_numbers(plait, published, trace, cluster, policy, average):
    path = published(trace)
    answer = plait(
        "simulate",
        path,
        "--policy",
        policy,
        "--placement",
        "counting",
        "--world",
        "ideal",
        "-c",
        cluster,
        "--json",
        "-",
    )
    (result,) = json.loads(answer.out)
    assert result["avg_jct_s"] == pytest.approx(average, abs=0.001)
    assert result["jobs"] == result["finished"]
    assert result["trace"] == str(path)


def test_one_result_a_trace_policy_world_seed(plait, small):
    answer = plait.done(
        "simulate", small, small, "-p", "tiresias-l:thresholds=50/90,knob=2,srsf", "--world", "ideal,plait",
        "--seed", "3..4", "-c", "2x4", "--json", "r.json", "--csv", "r.csv", "--check",
    )  # fmt: skip
    results = json.loads(Path("r.json").read_text())
    assert len(results) == 16
    assert all(name in result for name in WANTED for result in results)
    keys = [(r["policy"], r["world"], r["seed"]) for r in results[:8]]
    tiresias = "tiresias-l:thresholds=50/90,knob=2"
    assert keys == [(p, w, s) for p in (tiresias, "srsf") for w in ("ideal", "plait") for s in (3, 4)]
    assert {r["overheads"] for r in results if r["world"] == "ideal"} == {"none"}
    assert [row["policy"] for row in table("r.csv")] == [r["policy"] for r in results]
    assert "srsf" in answer.out
    assert "wrote r.json" in answer.err


def test_processes_give_the_same_results_in_the_same_order(plait, small):
    def results(processes):
        answer = plait("simulate", small, "-p", "fifo,srsf", "-c", "2x4", "--json", "-", "--processes", processes)
        return [{k: v for k, v in r.items() if k != "wall_s"} for r in json.loads(answer.out)]

    assert results(1) == results(2)


def test_all_outputs(plait, small, tmp_path):
    plait.done(
        "simulate", small, "-p", "fifo,srsf", "-c", "2x4", "--report", "new/r.html", "--chrome-trace", "c.json",
        "--log", "l.jsonl.gz", "--jobs-csv", "j.csv", "--window", "10..40", "--jobs", 10, "--profile-noise", 0.1,
        "--spread-slowdown", 1.5, "--overheads", "none", "--round", 30,
    )  # fmt: skip
    found = sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file() and p != small)
    assert found == [
        "c-fifo.json", "c-srsf.json", "j-fifo.csv", "j-srsf.csv", "l-fifo.jsonl.gz", "l-srsf.jsonl.gz", "new/r.html",
    ]  # fmt: skip
    assert json.loads(gzip.decompress(Path("l-srsf.jsonl.gz").read_bytes()).splitlines()[0])["round_s"] == 30
    assert json.loads(Path("c-fifo.json").read_text())["traceEvents"]
    assert len(table("j-fifo.csv")) == 6


def test_json_on_standard_output_is_only_json(plait, small):
    answer = plait("simulate", small, "-c", "2x4", "--json", "-")
    assert len(json.loads(answer.out)) == 3
    assert "Avg JCT" in answer.err


def test_placement_replaces_that_of_every_policy(plait, small):
    answer = plait.done("simulate", small, "-p", "srsf,gandiva", "-c", "2x4", "--placement", "random", "--json", "-")
    assert "gandiva places jobs in its own way" in answer.err
    assert {r["placement"] for r in json.loads(answer.out)} == {"random"}


def test_priorities_that_a_policy_ignores_are_named(plait, tmp_path):
    rows = ["job_id,submit_s,gpus,duration_s,duration_kind,state,priority", "a,0,1,50,exact,completed,0"]
    path = tmp_path / "urgent.csv"
    path.write_text("\n".join([*rows, "b,1,1,50,exact,completed,2"]) + "\n")
    answer = plait.done("simulate", path, "-p", "drf,fifo", "-c", "1x1")
    assert answer.err.count("ignores priorities") == 1
    assert "policy drf ignores priorities; policies that order by them: fifo, " in answer.err


def test_a_policy_in_the_current_folder(plait, small, tmp_path):
    (tmp_path / "mine_for_cli.py").write_text(
        "from plait import Plan, View, place\n"
        "class Smallest:\n"
        "    def decide(self, view: View) -> Plan:\n"
        "        return place(view, view.jobs.gpus.argsort(kind='stable'))\n"
    )
    answer = plait.done("simulate", small, "-p", "mine_for_cli:Smallest", "-c", "2x4", "--json", "-")
    assert json.loads(answer.out)[0]["policy"] == "mine_for_cli:Smallest"


def test_refused_jobs_are_named(plait, small):
    answer = plait("simulate", small, "-p", "srsf", "-c", "1x2", "--json", "-")
    (result,) = json.loads(answer.out)
    assert (result["refused"], result["finished"]) == (6, 6)
    for text in ("6 of 12 jobs refused; averages are over the 6 that finished", "  j2: needs 3 GPUs", "and 1 more"):
        assert text in answer.err


@pytest.mark.parametrize("words", [("simulate",), ("sweep", "out", "--trace")])
def test_a_run_in_which_no_job_finished_is_an_error_after_its_output(plait, tmp_path, words):
    (tmp_path / "t.csv").write_text(f"{HEADER}\na,0,64,10,exact,completed,\nb,1,64,10,exact,completed,\n")
    answer = plait(*words, "t.csv", "-p", "fifo", "-c", "1x2", "-c", "8x8", "--json", "r.json", "--seed", 0)
    assert answer.code == 4, answer.err
    assert "no job finished in 1 of 2 runs: t.csv under fifo on 1x2" in answer.err
    assert [run["finished"] for run in json.loads((tmp_path / "r.json").read_text())] == [0, 2]


def test_dropped_rows_are_counted(plait, tmp_path):
    rows = "a,0,1,10,exact,completed,\nb,1,0,10,exact,completed,4000\n"
    (tmp_path / "t.csv").write_text(f"{HEADER},cpu_milli\n{rows}")
    answer = plait("simulate", "t.csv", "-p", "fifo", "--json", "-")
    assert "1 row left out of the simulation: 1 without GPUs (the first is job 'b')" in answer.err
    assert json.loads(answer.out)[0]["dropped"] == 1


def test_reserved_nodes_are_for_their_project(plait, tmp_path):
    rows = ["job_id,submit_s,gpus,duration_s,project", "a,0,1,60,vision", "b,0,1,60,speech", "c,0,1,60,speech"]
    (tmp_path / "t.csv").write_text("\n".join(rows) + "\n")
    command = ("simulate", tmp_path / "t.csv", "-p", "fifo-backfill", "-c", "2x1", "--reserve")
    plait(*command, "n0,n1=vision@0..1000", "--jobs-csv", "jobs.csv")
    lines = [line.split(",") for line in (tmp_path / "jobs.csv").read_text().splitlines()]
    starts = {line[1]: float(line[lines[0].index("first_start_s")]) for line in lines[1:]}
    assert (starts["a"], starts["b"], starts["c"]) == (0.0, 1000.0, 1000.0)
    for wrong, answer in (
        ("n0=vision", "write NODES=PROJECT@FROM..TO"), ("n0=vison@0..9", "did you mean 'vision'"),
        ("n7=vision@0..9", "no node 'n7'"), ("n0=vision@9..9", "needs an end after 9 s"),
    ):  # fmt: skip
        assert answer in plait(*command, wrong).err


def test_failures(plait, small, tmp_path):
    (tmp_path / "f.csv").write_text("at_s,node,state\n30,n0,down\n60,n0,up\n")
    (result,) = json.loads(
        plait("simulate", small, "-p", "srsf", "-c", "2x4", "--failures", "f.csv", "--json", "-").out
    )
    assert result["node_failures"] == "f.csv"
    assert result["restarts"] > 0
    drawn = plait(
        "simulate", small, "-p", "srsf", "-c", "2x4", "--node-mtbf", 0.02, "--node-mttr", 0.01, "--job-mtbf", 1,
        "--json", "-",
    )  # fmt: skip
    assert json.loads(drawn.out)[0]["node_mtbf_s"] == pytest.approx(72)
    both = plait("simulate", small, "--failures", "f.csv", "--node-mtbf", 1)
    assert (both.code, "not both" in both.err) == (2, True)


# -- bad input -------------------------------------------------------------------------------------------


def bad(text: str) -> str:
    return f"{HEADER}\na,0,1,10,exact,completed\n{text}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (bad("b,0,1,-10,exact,completed"), "bad.csv:3: column 'duration_s'"),
        (bad("a,0,1,10,exact,completed"), "bad.csv:3: column 'job_id': duplicate id"),
        (bad("b,0,-1,10,exact,completed"), "bad.csv:3: column 'gpus'"),
        (bad("b,0,1,nan,exact,completed"), "bad.csv:3: column 'duration_s'"),
        (f"{HEADER}\na,0,0,10,exact,completed\n", "bad.csv:2: column 'gpus': a job without GPUs"),
        (f"{HEADER},cpu_milli\na,0,0,10,exact,completed,1\n", "no job of this trace can be simulated"),
        (f"{HEADER},colour\na,0,1,10,exact,completed,red\n", "bad.csv:1: column 'colour': unknown column"),
        (f"{HEADER}\na,0,1,400000000000,exact,completed\n", "are these milliseconds?"),
        (HEADER.replace("duration_kind", "duraton_kind") + "\na,0,1,10,exact,completed\n", "bad.csv:1: column"),
        ("colour,size\nred,1\n", "no known format fits; name one with --format, in Python format="),
        ("", "the file is empty"),
    ],
)
def test_bad_traces(plait, tmp_path, text, message):
    (tmp_path / "bad.csv").write_text(text)
    answer = plait("simulate", "bad.csv", "--json", "out/r.json", "--report", "r.html", "--log", "l.jsonl")
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.startswith("plait: error: bad.csv")
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]


def test_a_zero_gpu_job_of_a_gpu_trace_names_its_line(plait, published, tmp_path):
    lines = published("muri/trace3.csv").read_text().splitlines()[:3]
    cells = lines[2].split(",")
    cells[1] = "0"
    (tmp_path / "bad.csv").write_text("\n".join([*lines[:2], ",".join(cells)]) + "\n")
    assert "bad.csv:3: column 'num_gpu': a job of this trace needs at least one GPU" in plait.refused(
        "simulate", "bad.csv", "-p", "fifo"
    )


def test_truncated_gzip(plait, tmp_path, small):
    whole = gzip.compress(small.read_bytes())
    small.unlink()
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    assert "damaged or truncated" in plait.refused("simulate", "t.csv.gz", "--json", "r.json")
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv.gz"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "srsff"], "did you mean 'srsf'?"),
        (["-p", "srsf:placment=spread"], "did you mean 'placement'?"),
        (["-p", "no_such_module:Policy"], "No module named 'no_such_module'"),
        (["-p", ""], "no policy given"),
        (["--world", "idael"], "did you mean 'ideal'?"),
        (["--placement", "spraed"], "did you mean 'spread'?"),
        (["--format", "murri"], "did you mean 'muri'?"),
        (["--cluster", "8by8"], "cannot read cluster '8by8'"),
        (["--cluster", "trace"], "does not describe its cluster"),
        (["--seed", "a"], "seed 'a' is not a whole number"),
        (["--seed", "4..2"], "give N..M with 0 <= N <= M"),
        (["--window", "9..2"], "is empty"),
        (["--window", "soon"], "is not A..B"),
        (["--jobs", "0"], "--jobs must be at least 1"),
        (["--overheads", "none.csv"], "cannot read overheads"),
        (["--failures", "none.csv"], "cannot read failures"),
        (["--spread-slowdown", "0.5"], "--spread-slowdown must be at least 1"),
        (["--profile-noise", "2"], "profile noise must be between 0 and 1"),
        (["--node-mtbf", "0"], "node_mtbf_s must be > 0"),
        (["--round", "-1"], "round_s must be >= 0"),
        (["--processes", "0"], "processes must be at least 1"),
        (["--censored", "maybe"], "use as_is, drop or extend"),
        (["--assign-models", "unifrm"], "did you mean 'uniform'?"),
        (["--json", "small.csv/r.json"], "cannot write small.csv/r.json"),
        (["--json", "."], "it is a directory"),
        (["--json", "x", "--csv", "x"], "two outputs would go to x"),
        (["--report", "-"], "cannot go to standard output"),
    ],
)
def test_bad_options(plait, small, tmp_path, options, message):
    answer = plait("simulate", "small.csv", "--csv", "made/r.csv", *options)
    if "--csv" in options:
        answer = plait("simulate", "small.csv", *options)
    assert (answer.code, message in answer.err) == (2, True), answer.err
    assert [p.name for p in tmp_path.iterdir()] == ["small.csv"]


def test_a_missing_file(plait):
    answer = plait("simulate", "nowhere.csv")
    assert (answer.code, answer.err) == (2, "plait: error: nowhere.csv: no such file\n")


def test_a_run_that_cannot_end_writes_nothing(plait, small, tmp_path):
    (tmp_path / "lazy_for_cli.py").write_text(
        "from plait import Plan, Groups\nfrom plait.core.plan import NO_GROUPS\n"
        "class Lazy:\n    def decide(self, view):\n        return Plan(NO_GROUPS)\n"
    )
    assert "can never finish under policy" in plait.refused(
        "simulate", small, "-p", "fifo,lazy_for_cli:Lazy", "--json", "r.json", "--log", "l.jsonl", code=4
    )
    assert not {"r.json", "l-fifo.jsonl"} & {p.name for p in tmp_path.iterdir()}


def test_an_error_in_a_worker_arrives_with_its_code(plait, small, tmp_path):
    (tmp_path / "idle_for_cli.py").write_text(
        "from plait.core.plan import NO_GROUPS, Plan\n"
        "class Idle:\n    def decide(self, view):\n        return Plan(NO_GROUPS)\n"
    )
    answer = plait("simulate", small, "-p", "fifo,idle_for_cli:Idle", "--processes", 2, "--json", "r.json")
    assert answer.code == 4, answer.err
    assert "can never finish" in answer.err


def test_outputs_appear_together(tmp_path):
    with Outputs() as outputs:
        outputs.path(tmp_path / "sub" / "a").write_text("1")
        outputs.path(tmp_path / "b").write_text("2")
        assert not (tmp_path / "b").exists()
        assert outputs.commit() == [tmp_path / "sub" / "a", tmp_path / "b"]
    assert (tmp_path / "sub" / "a").read_text() == "1"

    def full(path):
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot write .*c: No space left"), Outputs() as outputs:
        outputs.fill(outputs.path(tmp_path / "new" / "c"), full)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "sub"]


def test_names_of_runs(tmp_path):
    runs = [("a:x=1/2", "w", "0"), ("a:x=1/2", "w", "1")]
    assert [p.name for p in names_of_runs(tmp_path / "l.gz", runs)] == ["l-0.gz", "l-1.gz"]
    long = "srtf:quota=" + "+".join(f"project-{i}=8" for i in range(30))  # more than the name of a file can have
    assert [p.name for p in names_of_runs(tmp_path / "l.gz", [(long,), ("fifo",)])] == ["l-0.gz", "l-1.gz"]
    same = [("a", "w"), ("a", "w")]
    assert [p.name for p in names_of_runs(tmp_path / "l.gz", same)] == ["l-0.gz", "l-1.gz"]


def test_interrupting_a_process(small, tmp_path):
    code = (
        "import os, signal, plait.cli.experiments.simulation as runs\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where tests run in the background
        "def stop(*a, **k): os.kill(os.getpid(), signal.SIGINT)\n"
        "runs.run_case = stop\n"
        "from plait.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "simulate", str(small), "--json", "r.json"], capture_output=True, text=True,
        check=False, timeout=60, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["small.csv"]


def test_load_is_stated(plait, small):
    (result,) = json.loads(plait("simulate", small, "-p", "fifo", "-c", "2x4", "--json", "-").out)
    assert result["load"] == pytest.approx(result["gpu_useful"] * result["span_s"] / 55, rel=1e-3)
    assert math.isfinite(result["wall_s"])


def test_the_cluster_of_the_trace(plait, published):
    folder = published("openb2023")
    answer = plait.done(
        "simulate", folder / "openb_pod_list_default.csv", "--nodes", folder / "openb_node_list_gpu_node.csv",
        "--cluster", "trace", "-p", "fifo", "--jobs", 20, "--json", "-",
    )  # fmt: skip
    assert json.loads(answer.out)[0]["cluster"].startswith("of the trace: 1213 nodes")


def test_the_same_run_gives_the_same_log(plait, small):
    for name, processes in (("a", 1), ("b", 1), ("c", 2)):
        plait("simulate", small, "-p", "srsf,fifo", "-c", "2x4", "--log", f"{name}.jsonl", "--processes", processes)
    logs = [Path(f"{name}-srsf.jsonl").read_bytes() for name in "abc"]
    assert logs[0] == logs[1] == logs[2]


def test_a_trace_without_durations_says_what_to_do(plait, published):
    answer = plait("simulate", published("gavel/msr-ed69ec.trace"), "-p", "fifo")
    assert (answer.code, "plait trace convert" in answer.err) == (2, True)


def test_models_of_unknown_tensor_sizes_are_named_once(plait, tmp_path):
    path = tmp_path / "models.csv"
    rows = [f"j{i},{i},2,60,exact,completed,{'vgg16' if i % 3 else 'my-model'}" for i in range(9)]
    path.write_text("\n".join(["job_id,submit_s,gpus,duration_s,duration_kind,state,model", *rows]) + "\n")
    said = plait("simulate", path, "-p", "tiresias-l,tiresias-l:packlimit=0.9,fifo", "-c", "2x2").err
    assert said.count("tensor sizes of my-model are unknown: placement=skew keeps these jobs together") == 1
    assert "tensor sizes" not in plait("simulate", path, "-p", "fifo", "-c", "2x2").err


def test_models_on_shared_gpus_come_from_a_table_and_their_figures_are_in_the_results(plait, tmp_path) -> None:
    """Guests of 8 GB start with half of it beside hosts of 8 GB on GPUs of 16."""
    table = tmp_path / "models.csv"
    table.write_text("model,memory_gb,persistent_gb,curve,quantum_ms\n*,8,2,sr,4\n")
    rows = [f"j{i},0,{1 + i % 2},1000,exact,completed" for i in range(16)]
    (tmp_path / "pairs.csv").write_text("\n".join([HEADER, *rows]) + "\n")
    asked = (
        "simulate", "pairs.csv", "-p", "antman:least_memory=0.5", "-c", "1x8", "--opportunistic-share", "0.5",
        "--assign-models", "uniform", "--world", "ideal", "--json", "-",
    )  # fmt: skip
    done = plait.done(*asked, "--guest-models", table, "--gpu-memory", "16", "--check")
    [row] = json.loads(done.out)
    assert row["guest_models"] == str(table)
    assert row["opportunistic_kills"] == row["conversions"] == 0
    assert row["spill_gb_h"] > 0
    plain = plait(*asked)
    assert "spill_gb_h" not in json.loads(plain.out)[0]


def test_jobs_that_state_no_gpu_memory_share_gpus_of_known_memory_and_this_is_said_once(plait, tmp_path) -> None:
    (tmp_path / "jobs.csv").write_text(
        "\n".join([HEADER, *(f"j{i},0,1,1000,exact,completed" for i in range(16))]) + "\n"
    )
    asked = ("simulate", "jobs.csv", "-p", "fifo,muri-s,plait,gandiva", "-c", "1x2", "--assign-models", "uniform")
    limited, free = (plait(*asked, *more, "--check", "--json", "-") for more in (("--gpu-memory", "16"), ()))
    assert [row["avg_jct_s"] for row in json.loads(limited.out)] == [row["avg_jct_s"] for row in json.loads(free.out)]
    said = "16 of 16 jobs state no GPU memory and count as fitting next to any other under muri-s, plait, gandiva"
    assert " ".join(limited.err.split()).count(said) == 1
    assert "GPU memory" not in free.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--guest-models", "none.csv"), "cannot read the table of models: No such file or directory"),
        (("--gpu-memory", "0"), "--gpu-memory must be over 0 GB, got 0"),
        (("--guest-models", "low.csv"), "low.csv:2: model x: its memory of 1 GB is less than the 2 GB"),
    ],
)
def test_bad_tables_of_models_are_refused(plait, small, tmp_path, options, said) -> None:
    (tmp_path / "low.csv").write_text("model,memory_gb,persistent_gb\nx,1,2\n")
    answer = plait("simulate", small, "-p", "antman", *options)
    assert answer.code != 0
    assert said in " ".join(answer.err.split())


# `plait simulate` on several clusters: one table with the differences; and demos that keep each other's reports.


def test_clusters_are_compared_in_one_table_with_the_differences(plait, small, tmp_path):
    answer = plait.done(
        "simulate", small, "-p", "fifo,srsf", "-c", "1x4", "-c", "2x4", "--json", "out.json", "--csv", "o.csv"
    )
    rows = [line for line in answer.out.splitlines() if "fifo" in line or "srsf" in line]
    assert [row.split()[1:4] for row in rows] == [
        ["fifo", "·", "1x4"], ["srsf", "·", "1x4"], ["fifo", "·", "2x4"], ["srsf", "·", "2x4"],
    ]  # fmt: skip
    assert "(-" not in rows[0]
    assert "(-" in rows[2]
    assert "in brackets: the change from the first cluster" in answer.out
    figures = {
        (run["policy"], run["cluster"]): run["avg_jct_s"] for run in json.loads((tmp_path / "out.json").read_text())
    }
    change = figures["fifo", "2x4"] / figures["fifo", "1x4"] - 1
    assert f"({change:+.0%})".replace("%", " %") in rows[2]


def test_files_of_runs_on_several_clusters_have_names_of_their_own(plait, small, tmp_path):
    clusters, files = ("-c", "1x4", "-c", "2x4"), ("--jobs-csv", "jobs.csv", "--report", "r.html")
    assert plait("simulate", small, "-p", "fifo", *clusters, *files).code == 0
    assert sorted(path.name for path in tmp_path.glob("jobs*.csv")) == ["jobs-1x4.csv", "jobs-2x4.csv"]
    page = (tmp_path / "r.html").read_text()
    assert "In brackets: the change from the first cluster." in page
    assert "<title>1 policy on" in page


def test_one_cluster_of_several_kinds_is_said(plait, small):
    answer = plait.done("simulate", small, "-p", "fifo", "-c", "1x4:a,1x4:b")
    said = "1x4:a,1x4:b is one cluster of 2 kinds of nodes; to compare clusters give each by itself: -c 1x4:a -c 1x4:b"
    assert said in answer.err
    assert "is one cluster" not in plait("simulate", small, "-p", "fifo", "-c", "2x4").err


def test_a_published_world_has_one_cluster(plait, small):
    assert "world muri-artifact has its own cluster" in plait.refused(
        "simulate", small, "-p", "fifo", "--world", "muri-artifact", "-c", "1x4", "-c", "2x4"
    )


def test_the_live_demo_leaves_the_report_of_the_simulated_one(tmp_path, capsys):
    (tmp_path / "report.html").write_text("simulated")
    demonstration.write([], tmp_path)
    assert (tmp_path / "report.html").read_text() == "simulated"
    assert (tmp_path / "live.html").exists()
    assert "live.html" in capsys.readouterr().out


# `plait simulate` with jobs that adapt their batch: from a generated trace to figures, a log and its replay.


@pytest.fixture
def adaptive(plait):
    """Six adaptive jobs, of two models."""
    assert plait("trace", "generate", "jobs.csv", "--preset", "pollux", "--jobs", 6, "--gpus", 8).code == 0
    return "jobs.csv"


def test_a_trace_without_durations_is_simulated_and_its_log_replays(plait, adaptive):
    answer = plait.done(
        "simulate", adaptive, "--world", "pollux", "-c", "2x4", "-p", "tiresias-l", "--log", "l.jsonl", "--json", "-",
        "--check", "--jobs", 4, "--report", "r.html",
    )  # fmt: skip
    (result,) = json.loads(answer.out)
    assert result["finished"] == 4
    assert result["gpu_useful"] is result["lost_gpu_h"] is None  # jobs run at sizes that they did not ask for
    with open("r.html") as report:
        assert "Offered load, by requested GPUs" in report.read()
    with open("l.jsonl") as log:
        rows = [json.loads(line) for line in log]
    reports = [row for row in rows if "GoodputReported" in json.dumps(row)]
    assert reports
    replayed = plait.done("replay", "l.jsonl", "--verify")
    assert "every decision is the same" in replayed.out + replayed.err


def test_elastic_jobs_ask_for_no_more_than_the_cluster_has(plait, adaptive):
    answer = plait.done(
        "simulate", adaptive, "--world", "pollux", "-c", "1x2", "-p", "fifo", "--jobs", 3, "--json", "-"
    )
    assert json.loads(answer.out)[0]["finished"] == 3


def test_rounds_delay_decisions_and_not_what_jobs_do(plait, adaptive):
    runs = {}
    for round_s in (0, 60):
        answer = plait.done(
            "simulate", adaptive, "--world", "pollux", "-c", "16x4", "-p", "fifo", "--round", round_s, "--json", "-",
            "--jobs-csv", f"{round_s}.csv",
        )  # fmt: skip
        runs[round_s] = json.loads(answer.out)[0]["avg_jct_s"]
    assert 0 <= runs[60] - runs[0] <= 60  # nobody waits for GPUs; each only for the next round


def test_models_of_an_adaptive_trace_are_its_own(plait):
    assert "draws models of its own" in plait.refused(
        "trace", "generate", "x.csv", "--preset", "pollux", "--assign-models", "uniform"
    )


def test_worlds_lists_the_world_for_them(plait):
    assert "pollux" in plait("worlds").out
