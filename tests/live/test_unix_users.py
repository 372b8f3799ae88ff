"""Jobs as the Unix accounts of their owners: two users try to read, signal and mislead what is not theirs.

Needs root, `useradd`, and a Python that other accounts can run; the accounts are removed afterwards.
"""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import plait
from plait.live.agent.processes.launch import mark_of
from plait.live.client.client import Client
from plait.live.layout import Layout

ROOT = os.geteuid() == 0 and shutil.which("useradd") is not None
pytestmark = [pytest.mark.engines, pytest.mark.skipif(not ROOT, reason="needs root and useradd")]

USERS = tuple(f"plait-t{os.getpid()}-{name}" for name in ("ada", "bob"))  # useradd allows 32 characters
PLAIT = "import sys; sys.argv[0] = 'plait'; from plait.cli import main; main()"
SOURCES = Path(plait.__file__).parents[1]


def public_python() -> str | None:
    """A Python of this version that all accounts can run."""
    for program in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        path = Path(program).resolve()
        if path.exists() and all(p.stat().st_mode & 0o001 for p in (path, *path.parents, SOURCES, *SOURCES.parents)):
            return program
    return None


class Lab:
    """A cluster of root, and `plait` as its users type it."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.layout, self._python = folder, Layout(folder / "home"), python
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PLAIT_")}
        self.env |= {
            "PLAIT_HOME": str(self.layout.home),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith(("src", "site-packages"))),
        }
        self.tokens: dict[str, str] = {}

    def plait(self, *words: object, user: str = "", code: int = 0, **more: object) -> str:
        """Run a command as root, or with the token and account of a user."""
        env, rights = self.env, {}
        if user:
            account = pwd.getpwnam(user)
            env = env | {"PLAIT_URL": self.url, "PLAIT_TOKEN": self.tokens[user], "HOME": account.pw_dir}
            rights = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        done = subprocess.run(
            [self._python, "-c", PLAIT, *map(str, words)], env=env, cwd=self.folder, capture_output=True, text=True,
            timeout=90, **rights, **more,
        )  # fmt: skip
        assert done.returncode == code, f"plait {words}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @property
    def url(self) -> str:
        return json.loads(self.layout.service_file.read_text())["url"]

    def home_of(self, user: str) -> Path:
        return self.folder / user

    def submit(self, user: str, script: str, *words: object) -> str:
        """Submit a shell script as a user, in the folder of the user."""
        request = ["submit", "--json", "--workdir", self.home_of(user), *words, "--", "sh", "-c", script]
        return json.loads(self.plait(*request, user=user))[0]["id"]

    def until(self, job: str, *states: str) -> object:
        until = time.monotonic() + 60
        while (found := self.client.job(job)).state not in states:
            assert time.monotonic() < until, (found, self.agent_log())
            time.sleep(0.1)
        return found

    def ends(self, job: str) -> object:
        return self.until(job, "finished", "failed", "cancelled")

    def log(self, job: str) -> str:
        return self.plait("logs", job)

    def agent_log(self) -> str:
        return "".join(path.read_text()[-3000:] for path in self.layout.home.glob("nodes/*/agent.log"))

    def rank(self, job: str, epoch: int = 1) -> Path:
        return self.layout.rank(int(job.removeprefix("j-")), epoch, 0)

    def comes(self, path: Path) -> str:
        until = time.monotonic() + 60
        while not path.exists() or not path.read_text():
            assert time.monotonic() < until, f"{path} does not come; {self.agent_log()}"
            time.sleep(0.05)
        return path.read_text()


@pytest.fixture(scope="module")
def lab():
    python = public_python()
    if python is None:
        pytest.skip(f"other accounts cannot run {Path(sys.executable).resolve()}, and /usr/bin has no such Python")
    folder = Path(tempfile.mkdtemp(prefix="plait-accounts-", dir="/var/tmp"))
    folder.chmod(0o755)
    for user in USERS:
        subprocess.run(["useradd", "--no-create-home", "--home-dir", folder / user, user], check=True)
        (folder / user).mkdir(mode=0o700)
        shutil.chown(folder / user, user)
    lab = Lab(folder, python)
    try:
        lab.plait("up", "--as-owner", "--nodes", 1, "--gpus-per-node", 2, "-o", "slot-memory=16", "--policy", "fifo")
        for user in (*USERS, "nobody-here", "root-friend"):
            lab.tokens[user] = lab.plait("token", "new", user).split("PLAIT_TOKEN=")[1].split()[0]
        with Client.at(str(lab.layout.home)) as lab.client:
            yield lab
    finally:
        lab.plait("down", "--stop-jobs", "--may-lose-work")
        for user in USERS:
            subprocess.run(["pkill", "-KILL", "-u", user], check=False)
            subprocess.run(["userdel", user], check=True)
        shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def nothing_left(lab):
    yield
    for job in [job.id for job in lab.client.jobs() if job.state not in ("finished", "failed", "cancelled")]:
        lab.plait("cancel", job)
        lab.ends(job)


def test_a_job_is_its_owner(lab):
    ada = pwd.getpwnam(USERS[0])
    job = lab.submit(
        USERS[0], 'id -un; id -Gn; umask; echo "$HOME $USER"; pwd; ls /root 2>&1; touch "$PLAIT_JOB_DIR/mine"; grep '
        'NoNewPrivs /proc/self/status; cat /proc/self/oom_score_adj; cat /proc/$PPID/environ 2>&1 | head -c 60',
        "--output", "result.txt",
    )  # fmt: skip
    assert lab.ends(job).state == "finished"
    lines = lab.log(job).splitlines()
    assert lines[:2] == [USERS[0], USERS[0]]
    assert lines[2:5] == ["0077", f"{lab.home_of(USERS[0])} {USERS[0]}", str(lab.home_of(USERS[0]))]
    assert "Permission denied" in lines[5]
    assert lines[7] == "500"
    assert "Permission denied" in lines[8]  # not even its own runner, which began as root
    folder = lab.layout.job(int(job[2:]))
    assert {p.stat().st_uid for p in (folder, *folder.rglob("*"))} == {ada.pw_uid}
    assert (lab.home_of(USERS[0]) / "result.txt").stat().st_uid == ada.pw_uid
    assert (lab.rank(job) / "runner.log").read_text() == ""


def test_nothing_of_others_can_be_read_or_signalled(lab):
    victim = lab.submit(USERS[0], "echo secret of ada > own.txt; echo secret of ada; exec sleep 300")
    lab.comes(lab.home_of(USERS[0]) / "own.txt")
    lab.comes(lab.rank(victim) / "out.log")
    runner = json.loads((lab.rank(victim) / "runner.json").read_text())
    agent = json.loads((lab.layout.home / "nodes" / "n0" / "agent.json").read_text())["pid"]
    service = json.loads(lab.layout.service_file.read_text())["pid"]
    closed = [path for path in lab.layout.home.rglob("*") if path.is_file()]
    shared = lab.layout.lease("n0").parent
    (lab.folder / "paths").write_text("\n".join(map(str, [*closed, lab.home_of(USERS[0]) / "own.txt"])))
    pids = (runner["pid"], runner["child"], agent, service)
    thief = lab.submit(
        USERS[1],
        f"while read path; do case $path in *j-$JOB/*) continue;; esac; cat $path 2>/dev/null && echo READ $path; done "
        f"< {lab.folder}/paths; for pid in {' '.join(map(str, pids))}; do kill -9 $pid 2>/dev/null && echo HIT $pid; "
        "cat /proc/$pid/environ 2>/dev/null && echo ENVIRON $pid; done; "
        f"ls {shared} {shared}/gates {lab.layout.home} {lab.layout.home}/jobs 2>/dev/null && echo LISTED; "
        f"echo x > {lab.layout.lease('n0')} && echo WROTE; touch {lab.layout.home}/jobs/x && echo MADE; echo over",
    )  # fmt: skip
    assert lab.ends(thief).state == "finished"
    log = "\n".join(line for line in lab.log(thief).splitlines() if "Permission" not in line and "denied" not in line)
    assert log == "over", log
    assert lab.client.job(victim).state == "running"
    assert "secret of ada" in lab.plait("logs", victim, user=USERS[0])
    assert "secret" not in lab.plait("logs", victim, user=USERS[1], code=2)


def test_an_account_that_is_missing_or_root_is_refused(lab):
    account = lab.plait("token", "new", "root").split("PLAIT_TOKEN=")[1].split()[0]
    refused = {"root": "is root, as which no job runs", "nobody-here": "no account 'nobody-here' on this node"}
    for user, why in refused.items():
        with Client(lab.url, account if user == "root" else lab.tokens[user]) as client:
            job = client.submit([{"command": ["id"]}])[0].id
        end = lab.ends(job)
        assert end.state == "failed"
        assert why in end.reason, end.reason
        assert not lab.rank(job).exists()
    own = json.loads(lab.plait("submit", "--json", "--", "id"))[0]["id"]  # of the administrator
    assert "submit with the token of a user who has one" in lab.ends(own).reason


def test_closed_folders_stay_closed(lab):
    secret = lab.home_of(USERS[0]) / "deep" / "open"
    secret.mkdir(parents=True)
    lab.home_of(USERS[0]).chmod(0o700)
    request = {"command": ["cat", "x"], "workdir": str(secret)}
    target = lab.home_of(USERS[0]) / "written"
    with Client(lab.url, lab.tokens[USERS[1]]) as bob:
        inside = bob.submit([request])[0].id
        outside = bob.submit([{"command": ["echo", "hi"], "workdir": "/tmp", "output": str(target)}])[0].id
    assert "cannot enter workdir" in lab.ends(inside).reason
    assert "no log or output could be made" in lab.ends(outside).reason
    assert not target.exists()


ATTACK = """
import json, os, pathlib, signal, sys, time
job, rank = pathlib.Path(os.environ["PLAIT_JOB_DIR"]), pathlib.Path(os.environ["PLAIT_RUN_DIR"])
victim = pathlib.Path(sys.argv[1])
while True:
    for path in (rank / "control.json", rank / "stop.json", rank / "hung.json", rank / "page.bin", rank / "out.log"):
        try:
            path.unlink(missing_ok=True)
            path.symlink_to(victim / path.name)
        except OSError:
            pass
    (job / "attempts" / "2").mkdir(exist_ok=True)
    aside = job / "attempts" / "2" / "rank0"
    if not aside.is_symlink():
        try:
            aside.symlink_to(victim)
        except OSError:
            pass
    time.sleep(0.001)
"""


def test_links_in_a_job_folder_lead_its_agent_nowhere(lab):
    victim = lab.submit(USERS[0], "echo of ada; exec sleep 300")
    lab.comes(lab.rank(victim) / "out.log")
    before = {path.name: path.read_bytes() for path in lab.rank(victim).iterdir() if path.name != "page.bin"}
    words = (lab.rank(victim) / "page.bin").read_bytes()[2048:2056]
    (lab.folder / "attack.py").write_text(ATTACK)
    attack = lab.submit(USERS[1], f"echo on; exec {lab._python} {lab.folder}/attack.py {lab.rank(victim)}")
    lab.comes(lab.rank(attack) / "runner.json")
    time.sleep(2.0)
    assert "of ada" not in subprocess.run(
        [lab._python, "-c", PLAIT, "logs", attack], env=lab.env, capture_output=True, text=True, check=False
    ).stdout  # fmt: skip
    lab.client.requeue(
        attack, may_lose_work=True
    )  # attempt 2 has a link to the victim's folder in the place of its own
    until = time.monotonic() + 60
    while "Permission denied" not in str(lab.client.job(attack)):
        assert time.monotonic() < until, lab.client.job(attack)
        time.sleep(0.1)
    assert lab.client.job(victim).state == "running"
    after = {name: (lab.rank(victim) / name).read_bytes() for name in before}
    assert after == before
    assert (lab.rank(victim) / "page.bin").read_bytes()[2048:2056] == words  # the request to stop
    assert sorted(path.name for path in lab.rank(victim).iterdir()) == sorted({*before, "page.bin"})


def test_a_claim_of_another_account_is_none(lab):
    """A job that writes down another's runner as its own does not have it stopped."""
    victim = lab.submit(USERS[0], "echo of ada; exec sleep 300")
    lab.comes(lab.rank(victim) / "out.log")
    claim = (lab.rank(victim) / "runner.json").read_text()
    forger = lab.submit(USERS[1], f"echo '{claim}' > $PLAIT_RUN_DIR/runner.json; kill -9 $PPID; sleep 300")
    assert lab.ends(forger).state == "failed"
    assert lab.client.job(victim).state == "running"


def test_a_claim_with_the_mark_of_another_account_is_none(lab):
    """A job that claims to share the process of another's does not have that killed when its own runner ends."""
    victim = lab.submit(USERS[0], "echo of ada; exec sleep 300")
    lab.comes(lab.rank(victim) / "out.log")
    mark = mark_of(lab.layout, int(victim[2:]), 1, 0)
    forged = f"{{**json.load(open(path)), 'merged': True, 'mark': '{mark}'}}"
    (lab.folder / "forge.py").write_text(
        f"import json, os; path = os.environ['PLAIT_RUN_DIR'] + '/runner.json'; text = json.dumps({forged}); "
        "os.unlink(path); open(path, 'w').write(text)"
    )
    go = lab.home_of(USERS[1]) / "go"
    forger = lab.submit(
        USERS[1], f"{lab._python} {lab.folder}/forge.py; echo on; until test -e {go}; do sleep 0.1; done; kill -9 $PPID"
    )
    lab.comes(lab.rank(forger) / "out.log")
    agent = json.loads((lab.layout.home / "nodes" / "n0" / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGKILL)  # the next one finds its runners by their claims
    until = time.monotonic() + 60
    while json.loads((lab.layout.home / "nodes" / "n0" / "agent.json").read_text())["pid"] == agent:
        assert time.monotonic() < until
        time.sleep(0.1)
    time.sleep(1.0)
    go.touch()
    assert lab.ends(forger).state == "failed"
    time.sleep(1.0)
    assert (lab.client.job(victim).state, len(lab.client.job(victim).attempts)) == ("running", 1)


def test_consoles_are_their_owner_too(lab):
    job = lab.submit(USERS[0], "echo on; exec sleep 300")
    lab.comes(lab.rank(job) / "out.log")
    found = lab.plait("exec", job, "--", "sh", "-c", "id -un; pwd; cat /proc/self/oom_score_adj", user=USERS[0])
    assert found.splitlines()[:2] == [USERS[0], str(lab.home_of(USERS[0]))]
    assert lab.plait("exec", job, "--", "sh", "-c", "exit 7", user=USERS[0], code=7) == ""
    closed = lab.plait("exec", job, "--", "cat", lab.layout.token_file, user=USERS[0], code=1)
    assert "Permission denied" in closed
    lab.plait("exec", job, "--", "id", user=USERS[1], code=2)


def test_a_job_goes_on_after_a_stop_and_a_new_agent(lab):
    job = lab.submit(
        USERS[0],
        'trap "echo stopped; echo $PLAIT_EPOCH >> $PLAIT_JOB_DIR/checkpoints/state; exit 75" TERM; '
        "cat $PLAIT_JOB_DIR/checkpoints/state; echo begun; while :; do sleep 0.1; done",
    )
    lab.comes(lab.rank(job) / "out.log")
    agent = json.loads((lab.layout.home / "nodes" / "n0" / "agent.json").read_text())["pid"]
    os.kill(agent, signal.SIGKILL)
    until = time.monotonic() + 60
    while json.loads((lab.layout.home / "nodes" / "n0" / "agent.json").read_text())["pid"] == agent:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert lab.client.job(job).attempts[-1].epoch == 1
    lab.client.requeue(job, may_lose_work=True)
    assert lab.comes(lab.rank(job, 2) / "out.log").startswith("1\nbegun")
    assert (lab.rank(job) / "out.log").read_text().endswith("stopped\n")


TURNS = """
import json, os, pathlib, signal, sys, time
from plait.core.resources import Resource
from plait.runtime.gates import open_gate
from plait.runtime.guest_gate import HostStages, neighbours_of
from plait.runtime.page import JobState, Page, Saves
run = pathlib.Path(os.environ["PLAIT_RUN_DIR"])
page = Page.open(run / "page.bin")
page.saves, page.state = Saves.YES, JobState.RUNNING
while True:
    page.paced_monotonic = time.monotonic()
    page.set_reached(page.directive.limit_number, page.directive.memory_limit_bytes or float("inf"))
    control = json.loads((run / "control.json").read_text())
    group, sharing = control.get("group") or {}, neighbours_of(control)
    if group.get("gate") == "tokens":
        gate = open_gate(control, page)
        for _ in range(20):
            gate.enter(Resource.GPU)
            gate.leave(Resource.GPU)
        print(gate.kind, sorted(m["job"] for m in group["members"]), gate.reason if gate.kind == "none" else "")
        break
    if sharing is not None and sharing.guest and sharing.hosts:
        assert len(HostStages(sharing.hosts)._pages) == len(sharing.hosts)
        print("beside", pathlib.Path(sharing.hosts[0]).parents[3].name)
        break
    time.sleep(0.05)
time.sleep(300)
"""


def turns_of(lab, jobs):
    until = time.monotonic() + 60
    while not all((lab.rank(job) / "out.log").exists() and "\n" in lab.log(job) for job in jobs):
        assert time.monotonic() < until, (lab.client.jobs(), [lab.log(job) for job in jobs], lab.agent_log())
        time.sleep(0.2)
    return [lab.log(job).splitlines()[-1] for job in jobs]


def submit_turns(lab, user, profile, *script, **more):
    (lab.folder / "turns.py").write_text(TURNS)
    script = script or (lab.folder / "turns.py",)
    request = {"command": [lab._python, "-u", *map(str, script)], "profile": profile, **more}
    request["env"] = {"PYTHONPATH": lab.env["PYTHONPATH"]}
    with Client(lab.url, lab.tokens[user]) as client:
        return client.submit([request])[0].id


def test_jobs_of_two_accounts_take_turns(lab):
    """The files of their gate are open to both accounts, and to no other."""
    lab.client.set_policy("muri-l")
    parts = {"cpu": 0.03, "gpu": 0.01}, {"cpu": 0.01, "gpu": 0.03}
    jobs = [submit_turns(lab, user, parts[i], gpu_memory=1e9) for _ in range(2) for i, user in enumerate(USERS)]
    groups = [json.loads(text.removeprefix("tokens ")) for text in turns_of(lab, jobs)]
    mixed = [one for one in groups if len({lab.client.job(f"j-{number}").user for number in one}) == 2]
    assert mixed, groups
    gates = [path for path in lab.layout.gates.rglob("*") if path.is_file()]
    nobody = {"user": 65534, "group": 65534, "extra_groups": []}
    assert gates
    for path in gates:
        assert subprocess.run(["cat", path], capture_output=True, check=False, **nobody).returncode != 0


def test_a_guest_of_another_account_sees_its_host(lab):
    lab.client.set_policy("antman:max_per_gpu=2,auto_after_s=0")
    kind, stages = {"gpu_memory": 2e9}, {"cpu": 0.008, "gpu": 0.002}
    script = shutil.copy(Path(__file__).parent / "scripts" / "page_job.py", lab.folder)
    hosts = [submit_turns(lab, USERS[0], stages, script, lab.home_of(USERS[0]), 10**6, **kind) for _ in range(2)]
    for host in hosts:
        lab.comes(lab.rank(host) / "control.json")
    guest = submit_turns(lab, USERS[1], stages, **kind, **{"class": "opportunistic"})
    assert turns_of(lab, [guest])[0] in [f"beside {host}" for host in hosts]
