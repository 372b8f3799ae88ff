"""What the batch script of an allocation runs: makes the node's secret, then becomes its agent.

python -m plait.live.backends.slurm_node --home H --stop-grace 60 (--slots 4 | --cuda)
"""

from __future__ import annotations

import argparse
import os
import re
import secrets
import sys

from plait.live.layout import Layout, make_private, write_secret

#: Kept of Slurm's variables. The others describe a job of one task, which libraries of training believe at once.
_KEPT = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_CLUSTER_NAME", "SLURMD_NODENAME")


def node_name(host: str, job: int) -> str:
    """What the node of an allocation is called: the host, so that people know it, and the job, so that it is new.

    >>> node_name("gpu-7.example.org", 42)
    'gpu-7-42'
    """
    short = re.sub(r"[^A-Za-z0-9_-]", "", host.partition(".")[0]).lstrip("_-")[:40] or "node"
    return f"{short}-{job}"


def main() -> None:
    """Become the agent; a sentence to the allocation's log where that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", required=True)
    parser.add_argument("--stop-grace", required=True)
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--slots")
    size.add_argument("--cuda", action="store_true")
    options = parser.parse_args()
    layout, host = Layout.at(options.home), os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        sys.exit("SLURM_JOB_ID is not set: this is run by the batch script of an allocation, not by hand")
    if not (layout.home / "slurm").is_dir():
        sys.exit(f"{layout.home} of the service is not on {host}: all nodes need the home folder under the same path")
    words = ["--slots", options.slots] if options.slots else ["--cuda", os.environ.get("CUDA_VISIBLE_DEVICES", "")]
    if options.cuda and not re.fullmatch(r"\d+(,\d+)*", words[1]):
        sys.exit(f"Slurm gave no GPUs on {host}: CUDA_VISIBLE_DEVICES is {words[1]!r}; see gres.conf, or use --fake")
    name = node_name(host, int(job))
    folder = make_private(layout.node(name))
    if not (folder / "enrol").exists():
        write_secret(folder / "enrol", "plait_" + secrets.token_urlsafe(32))  # the service finds it here
    log = os.open(folder / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    for variable in [key for key in os.environ if key.startswith("SLURM") and key not in _KEPT]:
        del os.environ[variable]
    command = [sys.executable, "-m", "plait.live.agent", "--home", str(layout.home), "--node", name]
    command += ["--gpus" if options.slots else "--cuda", words[1], "--stop-jobs", "--stop-grace", options.stop_grace]
    os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
