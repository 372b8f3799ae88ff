"""The demo of classes: what it makes of the records of its jobs; the whole of it where clusters are started."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from msgspec import structs

from plait.cli.experiments import antman_demo
from plait.cli.experiments import antman_demo as demo
from plait.cli.experiments.demonstration import find_examples
from plait.live.api.jobs import WholeJob
from plait.training.emulation import FifoDevice
from sample_answers import sample


def test_records_are_read_while_they_are_written(tmp_path):
    record = tmp_path / "host.txt"
    assert antman_demo.read(record) == []
    record.write_text("1.0 5 0.5 8.0 0.0\n1.5 7 0.7 8.4 18.6\n2.0 9 0.")
    assert antman_demo.read(record) == [
        antman_demo.Sample(1.0, 5.0, 0.5, 8.0, 0.0),
        antman_demo.Sample(1.5, 7.0, 0.7, 8.4, 18.6),
    ]


def test_a_pair_is_measured_between_two_times(tmp_path):
    jobs = antman_demo.Jobs(tmp_path / "script.py", tmp_path)
    # Steps of 0.2 s, half of them on the GPU; before and after the time that counts they are slower.
    host = [(0.0, 0, 0.0), (10.0, 10, 1.0), (11.0, 15, 1.5), (12.0, 20, 2.0), (30.0, 21, 2.1)]
    guest = [(10.0, 3, 0.4), (12.0, 10, 1.2)]
    for role, samples in ((False, host), (True, guest)):
        lines = "".join(f"{at} {steps} {served}\n" for at, steps, served in samples)
        jobs.record("w", guest=role).write_text(lines)
    found = jobs.pair("w", 10.0, 12.0)
    assert found.step_s == pytest.approx(0.2)
    assert found.slack_share == pytest.approx(0.8)
    jobs.record("w", guest=True).unlink()
    assert jobs.pair("w", 10.0, 12.0).slack_share == 0.0


def test_the_table_compares_with_the_job_alone():
    row = demo._row("alone", antman_demo.Pair(0.2, 0.0), antman_demo.Pair(0.2, 0.0), None)
    assert row == ["alone", "200.0 ms", "1.000", "-", "-", "-"]
    row = demo._row("packed", antman_demo.Pair(0.28, 0.9), antman_demo.Pair(0.2, 0.0), (demo.Mode.PACKED, 2.0))
    assert row[:4] == ["packed", "280.0 ms", "1.400", "0.90"]
    assert float(row[4]) > 1.2


def test_a_step_of_the_script_is_longer_with_memory_on_the_host(tmp_path):
    script = find_examples(None) / antman_demo.SCRIPT
    device = FifoDevice(tmp_path / "gpu", 16e9)
    jobs = antman_demo.Jobs(script, tmp_path)
    jobs.burst.touch()
    words = jobs.command("w", guest=False)
    words[words.index("--gpu") + 1] = str(tmp_path / "gpu")
    words[words.index("--steps") + 1] = "1"
    words[words.index("--kernel-ms") + 1] = "0.1"
    subprocess.run(words, check=True, cwd=tmp_path)
    device.close()
    (step,) = antman_demo.read(jobs.record("w", guest=False))
    assert (step.steps, step.gpu_gb, step.host_gb) == (1, 16, antman_demo.BURST_GB - 16)
    assert step.served_s == pytest.approx(
        1e-4 * round(20 * (1 + 4 * (antman_demo.BURST_GB - 16) / antman_demo.BURST_GB))
    )


def _found(**other):
    host, small, large = (
        antman_demo.Sample(1.0, 5, 0.5, 8.0),
        antman_demo.Sample(1.0, 9, 0.1, 1.3),
        antman_demo.Sample(1.0, 9, 0.1, 2.9),
    )
    looks = (
        antman_demo.Memory("before", host, large, 2.9, "run"),
        antman_demo.Memory("in its first step", replace(host, gpu_gb=8.4, host_gb=18.6), large, 2.9, "run"),
        antman_demo.Memory("5 s later", replace(host, gpu_gb=27.0), small, 1.3, "run"),
    )
    jobs = [sample(WholeJob, name=name, state="finished", failures=n) for n, name in enumerate("hg")]
    found = antman_demo.DemoFindings(
        antman_demo.Pair(0.2, 0.5), antman_demo.Burst(looks, 2), antman_demo.Killed(4.2, 0.2, 310, 300), *jobs, []
    )
    return replace(found, **other)


def test_the_report_says_what_a_burst_took_from_the_guest():
    found = _found()
    assert found.burst.looks[1].row() == ["in its first step", "8.4 GB", "18.6 GB", "2.9 GB", "2.9 GB", "run"]
    said = antman_demo.sentences(found)
    assert "2 guaranteed steps had memory on the host" in said["memory burst"]
    assert "shrank from 2.9 to 1.3 GB and went on" in said["memory burst"]
    assert "paused for 4.2 s" in said["agent killed"]
    assert "at step 310; it trained on from step 300" in said["guest killed"]
    before, _, later = found.burst.looks
    small = antman_demo.Burst((replace(before, guest=later.guest), later), 2)
    assert "kept 1.3 GB, its minimum" in antman_demo.sentences(_found(burst=small))["memory burst"]
    paused = antman_demo.Burst((before, replace(later, action="pause")), 2)
    assert "the guest paused" in antman_demo.sentences(_found(burst=paused))["memory burst"]


def test_the_report_promises_nothing_that_it_did_not_see():
    found = _found()
    assert antman_demo.sentences(found)["killed by plait"].startswith("plait killed and stopped no job")
    for other in ({"preemptions": 1}, {"state": "failed"}, {"failures": 2}):
        said = antman_demo.sentences(_found(guest=structs.replace(found.guest, **other)))["killed by plait"]
        assert said.startswith("Not as promised: g ")
    assert antman_demo.sentences(_found(host=structs.replace(found.host, failures=1)))["killed by plait"].startswith(
        "Not as promised: h "
    )


def test_the_script_of_the_demo_is_among_the_examples():
    assert (find_examples(None) / antman_demo.SCRIPT).is_file()


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="agents need Linux")
@pytest.mark.skipif(not os.environ.get("PLAIT_SLOW"), reason="takes a minute; set PLAIT_SLOW=1")
def test_the_whole_demo(tmp_path, monkeypatch, capsys):
    for name, seconds in (("ALONE_S", 2.0), ("PACKED_S", 3.0), ("SHARED_S", 30.0), ("AFTER_S", 2.0)):
        monkeypatch.setattr(demo, name, seconds)
    seen = []
    monkeypatch.setattr(demo, "sentences", lambda found: seen.append(found) or antman_demo.sentences(found))
    demo.demonstrate_sharing(tmp_path / "out", None)
    said = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in said.splitlines()}
    assert "opportunistic: share" in said
    packed, shared = (float(rows[name][-4]) for name in ("packed, without plait", "antman: gate and law"))
    assert packed > 1.15 > shared
    (found,) = seen
    before, first, later = found.burst.looks
    assert (before.host.gpu_gb, before.host.host_gb) == (antman_demo.HOST_GB, 0)
    assert first.host.host_gb > 0
    assert first.host.gpu_gb + first.host.host_gb == pytest.approx(antman_demo.BURST_GB, abs=0.01)
    assert (later.host.gpu_gb, later.host.host_gb) == (antman_demo.BURST_GB, 0)
    assert later.host.gpu_gb + (later.limit_gb or 0) < 32
    assert 1 <= found.burst.steps_on_host <= 10
    assert later.guest.gpu_gb <= before.guest.gpu_gb <= antman_demo.GUEST_GB
    assert found.killed.paused_s > 0
    assert 0 < found.killed.steps_kept <= found.killed.steps_made + 1
    assert "plait killed and stopped no job: both ended by themselves." in said
    page = (tmp_path / "out" / "antman.html").read_text()
    assert "memory burst" in page
    assert "killed by plait" in page
