"""`plait slurm sbatch` and its siblings: what becomes of Slurm's options, and what is named as ignored."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
from fake_service import TOKEN, Fake, serve

from plait.cli.commands.slurm import _PRELUDE, directives, fields_of
from plait.core.errors import InputError

SCRIPT = """#!/bin/bash
#SBATCH --job-name=net   # a comment
#SBATCH --gres=gpu:a100:2 -t 1-02:00
#SBATCH --cpus-per-task=4 --mem=16G
#SBATCH --partition=gpu -o out.%j
#SBATCH --foo=3

set -e
#SBATCH --gres=gpu:8
srun --ntasks 2 --exclusive echo "$SLURM_PROCID/$SLURM_NTASKS/$SLURM_JOB_ID" "$@"
"""


@pytest.fixture
def fake(monkeypatch, tmp_path):
    service = Fake()
    server = serve(service)
    monkeypatch.setenv("PLAIT_URL", service.url)
    monkeypatch.setenv("PLAIT_TOKEN", TOKEN)
    monkeypatch.setenv("PLAIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("plait.cli.submission.of_submitter", lambda *a, **b: (None, {}))
    yield service
    server.shutdown()
    server.server_close()


def test_a_script_is_submitted_with_its_lines_and_what_is_ignored_is_named(plait, fake, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT)
    fake.answers["POST", "/v1/jobs"] = {"id": "j-7", "number": 7}
    answer = plait("slurm", "sbatch", "--mem", "8G", "--account=ml", script, "--lr", "3", "b c")
    assert (answer.code, answer.out) == (0, "Submitted batch job 7\n")
    (body,) = fake.bodies
    assert body["command"][3:] == [str(script), "--lr", "3", "b c"]
    assert {key: value for key, value in body.items() if key not in ("command", "workdir", "env")} == {
        "gpus": 2, "name": "net", "project": "ml", "time_limit_s": 93600.0, "cpus": 4.0, "memory": 8e9, "retries": 0,
        "output": "out.{job}", "gpu_kinds": ["a100"],
    }  # fmt: skip
    said = answer.err.replace("\n", " ")
    for words in ("--partition is ignored", "--foo=3 is not known and is ignored"):
        assert words in said
    ran = subprocess.run(
        body["command"], capture_output=True, text=True, check=True,
        env={"PLAIT_JOB": "j-7", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert ran.stdout == "1/2/7 --lr 3 b c\n"
    assert plait("slurm", "sbatch", "--parsable", script).out == "7\n"


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"gres": "gpu:2", "nodes": "2"}, {"gpus": 4}),
        ({"gres": "gpu"}, {"gpus": 1}),
        ({"gres": "tmp:10,gpu:v100:3(S:0,1)"}, {"gpus": 3}),
        ({"gres": "gpu:1,lscratch:200"}, {"gpus": 1}),
        ({"gres": "lscratch:200"}, {"gpus": 0}),
        ({"ntasks": "4"}, {"gpus": 0, "cpus": 4.0}),
        ({"array": "0-7%2"}, {"array": "0-7%2"}),
        ({"gpus": "a100:3"}, {"gpus": 3}),
        ({"gpus": "4", "gres": "gpu:2"}, {"gpus": 4}),
        ({"gpus-per-task": "1", "ntasks": "8"}, {"gpus": 8}),
        ({"gpus-per-node": "4", "nodes": "2-4"}, {"gpus": 8}),
        ({"cpus-per-task": "4", "ntasks": "2", "mem-per-cpu": "500"}, {"cpus": 8.0, "memory": "4000M"}),
        ({"mem-per-gpu": "2G", "gpus": "3"}, {"memory": "6000M"}),
        ({"time": "90"}, {"time_limit_s": "5400s"}),
        ({"time": "14-00:00:00"}, {"time_limit_s": "1209600s"}),
        ({"dependency": "afterok:3:4,afternotok:5_1"}, {"after": ["j-3", "j-4"], "after_fail": ["a-5.1"]}),
        ({"begin": "now+2hours"}, {"begin_s": "2h"}),
        ({"begin": "18:00"}, {"begin_s": "18:00"}),
        ({"signal": "B:USR1@120"}, {"signal_s": "120s"}),
        ({"export": "NONE"}, {"node_env": True}),
        ({"export": "ALL,A=1,B"}, {"export_all": True, "env": ["A=1", "B"]}),
        ({"export": "A=1"}, {"export_all": False, "env": ["A=1"]}),
        ({"requeue": True}, {"retries": None}),
        ({"gpus-per-node": "v100:2", "nodes": "2"}, {"gpus": 4, "gpu_kinds": ["v100"]}),
        ({"exclusive": True, "nodes": "2"}, {"exclusive": True, "nodes": 2}),
        ({"output": "%x/%A_%a.log", "job-name": "net"}, {"output": "net/{array}_{index}.log"}),
        ({"chdir": "/tmp"}, {"workdir": Path("/tmp")}),
    ],
)
def test_options_of_slurm_are_fields_of_a_job(given: dict[str, Any], fields: dict[str, Any]) -> None:
    found, _ = fields_of(given, "sbatch")
    assert {name: found[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--wrap=true", "--wrap is not available; plait slurm sbatch has a script"),
        ("--time=soon", "--time is 'soon'; write minutes, 2:00:00 or 1-12:00:00"),
        ("--mem=lots", "--mem is 'lots'; write 16G or 4000M"),
        ("--dependency=singleton", "--dependency 'singleton' is not available; write one of afterok, afterany"),
        ("--nodes=two", "--nodes has 'two', needs a whole number"),
    ],
)
def test_what_changes_the_meaning_of_a_job_is_refused(line: str, words: str) -> None:
    given, _ = directives(f"#!/bin/sh\n#SBATCH {line}\n", "job.sh")
    with pytest.raises(InputError, match=f"^sbatch: {words}"):
        fields_of(given, "sbatch")


def test_resources_other_than_gpus_are_named_as_ignored() -> None:
    _, remarks = fields_of({"gres": "gpu:a100:2(S:0,1),lscratch:200"}, "sbatch")
    assert remarks == ["--gres lscratch:200 is ignored"]


@pytest.mark.parametrize(
    "options",
    [
        "",
        "-n4",
        "-N1 -c8 -vv",
        "-n 4 -K",
        "--overlap --ntasks=2 --cpu-bind cores",
        "-l -u --kill-on-bad-exit",
        "-n2 --",
    ],
)
def test_srun_in_a_script_runs_its_command(options: str) -> None:
    assert in_script(f"set -euo pipefail; srun {options} echo ran") == "ran\n"


def test_srun_without_a_command_fails_with_the_cause() -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        in_script("srun --ntasks")
    assert (failed.value.returncode, failed.value.stderr) == (
        2,
        "srun: --ntasks has no value and no command behind it\n",
    )


def in_script(text: str, **env: str) -> str:
    """The output of a script of sbatch."""
    env = {"PLAIT_JOB": "j-7", "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "PATH": "/usr/bin:/bin", **env}
    done = subprocess.run(
        ["bash", "-c", _PRELUDE + text], capture_output=True, text=True, check=True, env=env, timeout=30
    )
    return done.stdout


def test_an_array_of_a_script(plait, fake, tmp_path):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --array=1-3%2 --gres=gpu:1\necho $SLURM_ARRAY_TASK_ID\n")
    fake.answers["POST", "/v1/jobs"] = {"id": "a-5", "number": 5, "jobs": 3}
    assert plait("slurm", "sbatch", script).out == "Submitted batch job a-5\n"
    (body,) = fake.bodies
    assert body["array"] == "1-3%2"
    assert [in_script(body["command"][2], PLAIT_ARRAY_INDEX="3"), in_script("echo ${SLURM_ARRAY_TASK_ID-no}")] == [
        "3\n", "no\n",
    ]  # fmt: skip
    assert plait("slurm", "sbatch", "--parsable", script).out == "a-5\n"
    script.write_text("#!/bin/bash\necho $index\necho {index}\n")
    assert f"{script.name}:3: {{index}} would be replaced" in plait.refused(
        "slurm", "sbatch", "--array", "0-3", script
    ).replace("\n", "")
    assert "--array is an option of sbatch" in plait("slurm", "srun", "--array=0-3", "true").err


@pytest.mark.parametrize("kinds", [["cpu"], ["a100"]])
def test_an_exclusive_script_without_gpus_has_a_cpu_slot_where_there_are_any(plait, fake, tmp_path, kinds):
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --exclusive -N 2 -C a100\ntrue\n")
    fake.answers["POST", "/v1/jobs"] = {"id": "j-7", "number": 7}
    fake.answers["GET", "/v1/nodes"] = [{"id": "n0", "gpu_kind": kind} for kind in kinds]
    said = plait("slurm", "sbatch", script).err.replace("\n", " ")
    assert "--constraint is ignored: --gres=gpu:KIND:1 or plait submit --gpu-kind" in said
    (body,) = fake.bodies
    assert ("exclusive" in body, "nodes" in body, body["gpus"]) == (kinds == ["a100"],) * 2 + (int(kinds == ["a100"]),)
    assert ("--exclusive is ignored: the job requests no GPU" in said) == (kinds == ["cpu"])


def test_an_invalid_line_is_named() -> None:
    with pytest.raises(InputError, match=r"^job.sh:2: argument --mem: expected one argument"):
        directives("#!/bin/sh\n#SBATCH --mem\n", "job.sh")


@pytest.mark.parametrize("line", ["torchrun --nproc-per-node 2 x.py", "srun mpirun python x.py"])
def test_a_script_that_starts_processes_on_several_gpus_is_refused(plait, fake, tmp_path, line):
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\n# torchrun\n{line}\n")
    assert "starts processes of its own; plait starts one on each GPU" in plait.refused(
        "slurm", "sbatch", "--gpus", "2", script
    ).replace("\n", " ")
    fake.answers["POST", "/v1/jobs"] = {"id": "j-1", "number": 1}
    assert plait("slurm", "sbatch", "--gpus", "1", script).code == 0


def row(number: int, state: str, **more: Any) -> dict[str, Any]:
    known = {"name": "net", "project": "ml", "user": "ann", "run_s": 3725.0, "nodes": ["n0"], "reason": ""}
    return {"id": f"j-{number}", "state": state, "command": ["python"], **known, **more}


def test_squeue_scancel_and_sinfo(plait, fake):
    fake.answers["GET", "/v1/jobs"] = [row(3, "running"), row(4, "waiting", reason="needs 2 GPUs", nodes=[])]
    lines = plait("slurm", "squeue", "-u", "ann").out.splitlines()
    assert [line.split()[:6] for line in lines[1:]] == [
        ["3", "ml", "net", "ann", "R", "1:02:05"], ["4", "ml", "net", "ann", "PD", "1:02:05"],
    ]  # fmt: skip
    assert lines[2].endswith("(needs 2 GPUs)")
    assert fake.asked[-1][2]["user"] == "ann"
    fake.answers["GET", "/v1/jobs"].append(row(5, "running", name="", command=[]))  # of somebody else
    assert plait("slurm", "squeue", "-h", "-j", "5").out.split()[:3] == ["5", "ml", "ann"]
    assert len(plait("slurm", "squeue", "-h", "-j", "4").out.splitlines()) == 1
    fake.answers["GET", "/v1/jobs"].append(row(6, "running", array="a-6", array_index=4))
    for names in ("6_4", "a-6", "6"):
        assert plait("slurm", "squeue", "-h", "-j", names).out.split()[0] == "6_4"
    fake.answers["GET", "/v1/jobs/j-3"] = row(3, "running")
    fake.answers["POST", "/v1/jobs/j-3/cancel"] = {"id": "j-3", "state": "cancelled"}
    fake.answers["DELETE", "/v1/jobs/j-3"] = {"id": "j-3", "state": "cancelled"}
    assert plait("slurm", "scancel", "3").out.startswith("j-3 cancelled")
    assert "no job is named" in plait("slurm", "scancel").err
    node = {"state": "ready", "drained": False, "gpus": 4}
    fake.answers["GET", "/v1/nodes"] = [{**node, "id": f"n{used}", "gpus_used": used} for used in (0, 2, 4)]
    assert [line.split()[-2:] for line in plait("slurm", "sinfo").out.splitlines()[1:]] == [
        ["idle", "n0"], ["mix", "n2"], ["alloc", "n4"],
    ]  # fmt: skip


def test_all_jobs_are_listed_and_cancelled_however_many(plait, fake, monkeypatch):
    monkeypatch.setattr("plait.cli.commands.slurm._PAGE", 2)
    several = [row(number, "running") for number in range(5)]

    def page(query):
        begin = int(query["offset"])
        return several[begin : begin + int(query["limit"])]

    fake.answers["GET", "/v1/jobs"] = page
    fake.answers["GET", "/v1/me"] = {"user": "ann", "role": "user"}
    assert len(plait("slurm", "squeue", "-h").out.splitlines()) == 5
    for number, one in enumerate(several):
        fake.answers["GET", f"/v1/jobs/j-{number}"] = one
        fake.answers["DELETE", f"/v1/jobs/j-{number}"] = {"id": f"j-{number}", "state": "cancelled"}
    assert len(plait("slurm", "scancel", "--me").out.splitlines()) == 5
    assert any(query.get("arrays") for _, path, query in fake.asked if path == "/v1/jobs")
