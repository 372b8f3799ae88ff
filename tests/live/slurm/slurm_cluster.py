"""A whole Slurm cluster on this machine for tests: its own munged, a slurmctld and some slurmd with pretended GPUs.

    with SlurmCluster(nodes=4) as slurm:
        subprocess.run(["sinfo"], env=slurm.env)

Needs no systemd, no database and no root beyond what the programs themselves ask for. Everything lies in one folder
with a short name (sockets), nothing listens beyond what it is told, and everything is ended by process id.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo")
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
#: Slurm hides what it gives out behind character devices; files would be refused. Nobody opens these.
_DEVICES = tuple(Path(f"/dev/tty{i}") for i in range(4))


def why_not() -> str | None:
    """Why no cluster can be started here; None if one can."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)} missing); tests/live/slurm/setup --install does it"
    if os.getuid() != 0:
        return "several slurmd on one machine are started as root here"
    if not all(device.is_char_device() for device in _DEVICES):
        return "there are no /dev/tty0 to /dev/tty3 to stand in for GPUs"
    return None


def _free_ports(count: int) -> list[int]:
    taken = [socket.socket() for _ in range(count)]
    for one in taken:
        one.bind(("127.0.0.1", 0))
    ports = [int(one.getsockname()[1]) for one in taken]
    for one in taken:
        one.close()
    return ports


class SlurmCluster:
    """Nodes n0, n1, ... of `gpus` pretended GPUs in partition `test`; a context manager."""

    def __init__(self, nodes: int = 4, gpus: int = 4, *, node_timeout_s: int = 10) -> None:
        """Write the configuration; nothing runs yet. `node_timeout_s`: after so long a silent slurmd counts as dead."""
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.names = [f"n{i}" for i in range(nodes)]
        self.conf = self.folder / "slurm.conf"
        self.socket = self.folder / "munge.socket"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write(gpus, node_timeout_s)

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.conf)}

    def _write(self, gpus: int, node_timeout_s: int) -> None:
        self.folder.chmod(0o755)  # munged wants nobody else able to write above its socket
        for name in ("state", "log", *(f"spool-{node}" for node in self.names)):
            (self.folder / name).mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        control, *ports = _free_ports(1 + len(self.names))
        host, user = socket.gethostname(), getpass.getuser()
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000 Gres=gpu:{gpus}"
            for name, port in zip(self.names, ports, strict=True)
        )
        self.conf.write_text(
            f"""ClusterName=plait
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={self.socket}
CredType=cred/munge
MpiDefault=none
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
SlurmctldLogFile={self.folder}/log/slurmctld.log
SlurmdLogFile={self.folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=100000,batch_sched_delay=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
SlurmdTimeout={node_timeout_s}
KillWait=5
InactiveLimit=0
MinJobAge=30
ReturnToService=2
OverTimeLimit=0
{nodes}
PartitionName=test Nodes={",".join(self.names)} Default=YES MaxTime=INFINITE State=UP
""",
            encoding="ascii",
        )
        devices = ",".join(str(device) for device in _DEVICES[:gpus])
        (self.folder / "gres.conf").write_text(
            "".join(
                f"NodeName={name} Name=gpu File={device} Flags=nvidia_gpu_env\n"
                for name in self.names
                for device in devices.split(",")
            ),
            encoding="ascii",
        )

    # ---- starting and stopping ----

    def __enter__(self) -> SlurmCluster:
        """Start everything, and wait until all nodes are idle."""
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.close()

    def start(self) -> None:
        self._run(
            "munged", "munged", "--foreground", f"--socket={self.socket}", f"--key-file={self.folder}/munge.key",
            f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
            f"--seed-file={self.folder}/munged.seed",
        )  # fmt: skip
        self._until(self.socket.exists, "munged's socket")
        self.start_controller()
        for name in self.names:
            self.start_node(name)
        self._until(lambda: self._states() == dict.fromkeys(self.names, "idle"), "all nodes idle")

    def start_controller(self) -> None:
        self._run("slurmctld", "slurmctld", "-D", "-f", str(self.conf))
        self._until(lambda: self.command("scontrol", "ping").returncode == 0, "an answer of slurmctld")

    def start_node(self, name: str) -> None:
        self._run(name, "slurmd", "-D", "-N", name, "-f", str(self.conf))

    def _run(self, name: str, program: str, *words: str) -> None:
        path = shutil.which(program, path=_PATH)
        assert path is not None, program
        with open(self.folder / "log" / f"{name}.out", "ab") as out:
            self._processes[name] = subprocess.Popen(
                [path, *words], env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _until(self, true, what: str, deadline_s: float = 30.0) -> None:
        until = time.monotonic() + deadline_s
        while not true():
            dead = [name for name, process in self._processes.items() if process.poll() is not None]
            if dead or time.monotonic() > until:
                said = "\n".join(path.read_text(errors="replace")[-2000:] for path in (self.folder / "log").iterdir())
                raise RuntimeError(f"waited in vain for {what}; ended: {dead or 'none'}\n{said}")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """SIGKILL one of `slurmctld`, n0, n1, ...: the daemon alone, as a crash of it would be."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def revive(self, name: str) -> None:
        """Start the slurmd of a node that was killed, and wait until the node can be used again."""
        if name not in self._processes:
            self.start_node(name)
        self._until(lambda: self.state(name) in ("idle", "allocated", "mixed"), f"node {name} idle", 60)

    def kill_machine(self, name: str) -> None:
        """SIGKILL a node's slurmd and all that runs below its steps, as a machine that loses power."""
        self.kill(name)
        left = self._below(f"SLURMD_NODENAME={name}") | self._steps(name)
        while left:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            left = self._below(f"SLURMD_NODENAME={name}") | self._steps(name)

    def _below(self, mark: str) -> set[int]:
        """Processes of jobs of this cluster that have this word in their environment."""
        conf = f"SLURM_CONF={self.conf}".encode()
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    words = (entry / "environ").read_bytes().split(b"\0")
                    if mark.encode() in words and conf in words and _state(entry) != "Z":
                        found.add(int(entry.name))
        return found

    def _steps(self, name: str) -> set[int]:
        """The slurmstepd of a node: they hold its spool folder."""
        spool = f"{self.folder}/spool-{name}"
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if (entry / "comm").read_text().strip() == "slurmstepd" and _state(entry) != "Z":
                        used = {os.readlink(fd) for fd in (entry / "fd").iterdir()} | {os.readlink(entry / "cwd")}
                        if any(path.startswith(spool) for path in used):
                            found.add(int(entry.name))
        return found

    def close(self) -> None:
        if "slurmctld" in self._processes:
            self.command("scancel", "--user", getpass.getuser())
            with contextlib.suppress(RuntimeError):
                self._until(lambda: not self.command("squeue", "--noheader").stdout.strip(), "an empty queue", 15)
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        for name in self.names:
            for pid in self._below(f"SLURMD_NODENAME={name}") | self._steps(name):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- looking ----

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=30, check=False)

    def _states(self) -> dict[str, str]:
        lines = self.command("sinfo", "--Node", "--noheader", "--format=%N %T").stdout.split("\n")
        return dict(line.split(maxsplit=1) for line in lines if line.strip())

    def state(self, name: str) -> str:
        """What sinfo says of a node, e.g. `idle`, `allocated`, `down*`."""
        return self._states().get(name, "").strip()

    def queue(self) -> list[str]:
        return self.command("squeue", "--noheader", "--format=%i %j %T %N").stdout.split("\n")[:-1]


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]
