"""Build hook of wheels: compiles the allocator of pinned memory, so that a node needs no compiler to share its GPUs.

Without a compiler, or on another system than Linux, the wheel has the source alone and stays one for all platforms.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/plait/training/sharing/host_allocator.c")


class AllocatorHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the compiled allocator to a wheel and names the platform in its tag."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are collected."""
        compiler = next(filter(None, map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang"))), None)
        if version == "editable" or sys.platform != "linux" or compiler is None:
            return
        source = Path(self.root) / SOURCE
        made = source.with_suffix(".so")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        build_data["force_include"][str(made)] = str(SOURCE.with_suffix(".so").relative_to("src"))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled: a checkout finds its own compiler."""
        (Path(self.root) / SOURCE.with_suffix(".so")).unlink(missing_ok=True)
