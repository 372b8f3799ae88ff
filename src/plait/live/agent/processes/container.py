"""A job's command inside a container: the same user, folders, variables, network and GPUs, another file system.

    argv = inside(image, argv, env, folders=[...], workdir="/home/ada/nlp", gpus=True)

Apptainer (or Singularity), Podman or Docker, whichever the agent finds first on its PATH. Processes stay in the process
namespace of the node, so that a stop, a kill and the look for what an attempt left behind reach them as ever.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from plait.core.errors import InputError

#: The variable of a run with the image of its job; agents remove it before the job sees it.
VARIABLE = "PLAIT_CONTAINER"
#: In this order.
ENGINES = ("apptainer", "singularity", "podman", "docker")
#: Variables that come from the image, not from the node: not passed to Podman and Docker.
_OF_THE_IMAGE = ("PATH", "LD_LIBRARY_PATH", "HOME", "SHELL", "HOSTNAME", "VIRTUAL_ENV", "CONDA_PREFIX")


def engine(path: str | None = None) -> str | None:
    """The program that runs containers here, or None; `path` instead of that of this process."""
    return next((found for name in ENGINES if (found := shutil.which(name, path=path))), None)


def inside(
    image: str, argv: Sequence[str], env: Mapping[str, str], *, folders: Sequence[Path], readable: Sequence[Path],
    workdir: str, gpus: bool, ids: tuple[int, int], memory_bytes: float = 0.0,
) -> list[str]:  # fmt: skip
    """The command that runs `argv` in `image`, with `folders` at the same places (`readable` ones read-only).

    `env` are the variables of the job: only their names appear in the command. `gpus`: the job has some; which is in
    CUDA_VISIBLE_DEVICES. `ids`: numbers of the user and group that run it. Raises `InputError` where nothing here can
    run containers.
    """
    found = engine()
    if found is None:
        raise InputError(
            f"the job wants the container {image!r}, and this node has none of {', '.join(ENGINES)} on the PATH of its "
            "agent; install one and start the agent again (plait down; plait up), or submit without --container"
        )
    if Path(found).name in ("apptainer", "singularity"):
        # Apptainer passes the environment on by itself, except for search paths, and needs no word about the user.
        at = Path(workdir, image)
        known = "://" in image or at.exists()
        name = (str(at) if at.exists() else image) if known else f"docker://{image}"
        binds = [f"{path}:{path}" for path in folders] + [f"{path}:{path}:ro" for path in readable]
        words = [found, "exec", *(word for bind in binds for word in ("--bind", bind)), "--pwd", workdir]
        return [*words, *(["--nv"] if gpus else []), name, *argv]
    podman = Path(found).name == "podman"
    words = [found, "run", "--rm", "--network", "host", "--pid", "host", "--ipc", "host"]
    uid, gid = ids
    if podman and uid:
        words += ["--userns", "keep-id"]
    words += ["--user", f"{uid}:{gid}"]
    for path in folders:
        words += ["--volume", f"{path}:{path}"]
    for path in readable:
        words += ["--volume", f"{path}:{path}:ro"]
    words += ["--workdir", workdir]
    if gpus:
        words += ["--device", "nvidia.com/gpu=all"] if podman else ["--gpus", "all"]
    if memory_bytes > 0:
        words += ["--memory", f"{memory_bytes:.0f}b"]
    for name in sorted(env):
        if name not in _OF_THE_IMAGE:
            words += ["--env", name]  # the value is taken from the environment of this command
    return [*words, image, *argv]
