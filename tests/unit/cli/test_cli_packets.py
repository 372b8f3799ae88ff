"""`plait network simulate`: the table, JSON, the report, and what is said of wrong options."""

import json
import re

import pytest

SMALL = ("network", "simulate", "--jobs", "2", "--workers", "3", "--mib", "0.05", "--window", "16")


def test_runs_of_several_systems_are_rows(plait):
    answer = plait.done(*SMALL, "-p", "switchml,atp", "-a", "64")
    rows = [line for line in answer.out.splitlines() if "switchml" in line or "atp" in line]
    assert len(rows) == 2
    assert "job 0" not in answer.out
    assert "job 1" in plait(*SMALL, "-a", "64").out


def test_json_has_runs_and_jobs(plait):
    words = ("-p", "esa", "-a", "30", "--racks", "2", "--loss", "0.01", "--seed", "3", "--json", "--iterations", "2")
    answer = plait(*SMALL, *words)
    (run,) = json.loads(answer.out)
    assert (run["protocol"], len(run["jobs"]), len(run["jobs"][0]["exchanges_s"])) == ("esa", 2, 2)
    assert run["lost"] > 0 < run["jobs"][0]["resend_share"]
    assert json.loads(plait(*SMALL, *words).out) == [run]


def test_the_report_is_one_file_with_pictures(plait, tmp_path):
    answer = plait(*SMALL, "-p", "atp,switchml", "-a", "40", "--out", "packets.html")
    assert (answer.code, "wrote packets.html" in answer.err) == (0, True)
    page = (tmp_path / "packets.html").read_text(encoding="utf-8")
    for words in ("Aggregators held, by job", "Goodput, by job", "First packets, atp", "First packets, switchml"):
        assert words in page
    assert page.count("<svg") == 8
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")


def test_deadlines_give_memory_with_inalloc(plait):
    words = (*SMALL, "-a", "200", "--deadlines-us", "12,100", "--json")
    jobs = {name: json.loads(plait(*words, "-p", name).out)[0]["jobs"] for name in ("atp", "inalloc")}
    assert [job["met_deadline"] for job in jobs["inalloc"]] == [False, True]
    assert jobs["inalloc"][1]["fallback_share"] == 0.0
    assert "Missed their deadlines: job 0, job 1." in plait(*words[:-1], "-p", "atp").out


def test_reviews_decide_anew_while_jobs_run(plait):
    words = (*SMALL, "-p", "inalloc", "-a", "120", "--deadlines-us", "90", "--stagger-us", "60", "--json")
    once, reviewed = (
        [job["met_deadline"] for job in json.loads(plait(*words, *more).out)[0]["jobs"]]
        for more in ((), ("--review-us", "5"))
    )
    assert (once[0], reviewed[0]) == (False, True)  # both at once would need more memory than there is
    refused = plait(*SMALL, "-p", "atp", "-a", "120", "--review-us", "5")
    assert (refused.code, "reviews take scenarios whose jobs all are of inalloc" in refused.err) == (2, True)


def test_runs_that_wait_for_long_timers_name_the_options(plait):
    words = (*SMALL, "-a", "128", "--loss", "0.02")
    assert (
        "switchml: jobs 0, 1 waited for timers most of the time (rto_s 0.01, first"
        in plait(*words, "-p", "switchml").err
    )
    for more in (("-p", "atp"), ("-p", "switchml", "-o", "rto_s=2e-4", "-o", "first_rto_s=2e-4")):
        assert "waited for timers" not in plait(*words, *more).err


def test_options_of_the_protocol(plait):
    words = (*SMALL, "-a", "20", "--json", "-o", "index=shared_cycle", "-o", "slot_change=on", "--tensors", "3")
    (run,) = json.loads(plait(*words, "--straggler", "0.1:share=0.5,until_us=5", "--cc", "aimd").out)
    assert sum(job["slot_changes"] for job in run["jobs"]) > 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-p", "apt"], "--protocol: 'apt' does not exist; did you mean 'atp'?"),
        (["-p", ","], "--protocol names no system"),
        (["-p", "halving-doubling"], "job 0: 3 workers; halving-doubling takes 2, 4, 8"),
        (["-p", "ring", "--loss", "0.01"], "job 0: ring sends no packet again, and loss_up loses some"),
        (["-o", "windw=3"], "--option 'windw' does not exist; did you mean 'window'?"),
        (["-o", "window"], "--option 'window' is not NAME=VALUE"),
        (["-o", "window=x"], "--option window: 'x' is not a whole number"),
        (["-o", "gap_threshold=0"], "--option: gap_threshold is 0"),
        (["--cc", "reno"], "--cc: cc is 'reno'"),
        (["-p", "esa", "--priorities", "0"], "--priorities '0'"),
        (["-p", "esa", "--priorities", "1,x"], "--priorities '1,x' is no list of numbers"),
        (["--deadlines-us", "-1"], "--deadlines-us '-1': each is more than 0"),
        (["--straggler", "0"], "--straggler '0' is not JOB.RANK"),
        (["--straggler", "0.1:shar=1"], "'shar' does not exist; did you mean 'share'?"),
        (["--straggler", "0.1:share=x"], "share is 'x', no number"),
        (["--straggler", "7.0:share=0.5"], "worker 0 of job 7 does not exist"),
        (["-p", "switchml", "-a", "0"], "--aggregators 0: switchml takes 2 or more for each of 2 jobs"),
        (["--tensors", "9999", "--mib", "0.001"], "--tensors 9999"),
        (["--out", "/dev/null/x.html"], "cannot write /dev/null/x.html"),
    ],
)
def test_wrong_options_are_named(plait, words, error):
    at = SMALL.index("--mib")
    base = (*SMALL[:at], *SMALL[at + 2 :]) if "--mib" in words else SMALL
    answer = plait(*base, *words)
    assert (answer.code, error in answer.err) == (2, True), answer.err


def test_several_seeds_give_means_with_intervals(plait):
    words = (*SMALL, "-p", "atp", "-a", "64", "--loss", "0.02")
    runs = json.loads(plait(*words, "--seeds", "3", "--seed", "5", "--json").out)
    assert [run["seed"] for run in runs] == [5, 6, 7]
    assert runs[1]["goodput_gbps"] == json.loads(plait(*words, "--seed", "6", "--json").out)[0]["goodput_gbps"]
    text = plait(*words, "--seeds", "3").out
    assert "Means of 3 seeds, with 95 % bootstrap intervals." in text
    assert re.search(r"atp +[\d.]+ \([\d.]+ to [\d.]+\)", text)


def test_queues_may_drop_or_pause(plait):
    words = (*SMALL, "-p", "atp", "-a", "0", "--queue-packets", "10", "--json")
    (drops,), (pauses,) = (json.loads(plait(*words, "--overflow", how).out) for how in ("drop", "pause"))
    assert drops["dropped"] > 0 == pauses["dropped"]
    assert pauses["paused_s"] > 0
    refused = plait(*words, "--overflow", "stop")
    assert (refused.code, "overflow is 'stop'; it takes drop or pause" in refused.err) == (2, True)


def test_systems_meet_on_one_switch(plait):
    (run,) = json.loads(plait(*SMALL, "-p", "switchml+atp", "-a", "100", "--json").out)
    assert [job["protocol"] for job in run["jobs"]] == ["switchml", "atp"]
    assert run["jobs"][0]["aggregated_share"] == 1.0 > run["jobs"][1]["aggregated_share"] > 0
    assert "job 1, atp" in plait(*SMALL, "-p", "switchml+atp", "-a", "100").out
    refused = plait(*SMALL, "-p", "switchml+atp+esa")
    assert (refused.code, "3 systems for 2 jobs; give a job for each" in refused.err) == (2, True)


def test_all_reduces_and_a_switch_that_one_job_locks_are_runs_beside_systems(plait):
    command = ["network", "simulate", "-p", "atp,ring,sharp", "-j", "3", "-w", "4", "--mib", "0.1", "--json"]
    runs = json.loads(plait(*command).out)
    assert [[job["protocol"] for job in run["jobs"]] for run in runs] == [
        ["atp"] * 3, ["ring"] * 3, ["sharp", "ring", "ring"],
    ]  # fmt: skip
    assert [job["aggregated_share"] for job in runs[2]["jobs"]] == [1, 0, 0]
    busy = json.loads(plait(*command, "--background", "0.5").out)
    assert all(one["goodput_gbps"] < 0.9 * run["goodput_gbps"] for one, run in zip(busy, runs, strict=True))
