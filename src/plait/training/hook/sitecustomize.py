"""Run by Python at its start, when the agent has put this folder first on the path.

Sees to it that plait hears of optimizer steps, and then runs the sitecustomize that would have run without us. It must
never keep a script from starting: whatever goes wrong is one line in plait.log beside the script's own log.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _plait() -> None:
    """Watch for torch; plait is found beside this file if the script's environment has none."""
    if importlib.util.find_spec("plait") is None:
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        spec = importlib.util.spec_from_file_location(
            "plait", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"no plait in {root}")
        module = importlib.util.module_from_spec(spec)
        sys.modules["plait"] = module
        spec.loader.exec_module(module)
    from plait.training.startup import watch_script

    watch_script()


def _note(text: str) -> None:
    """For whoever wonders; what the script's log has is what the script wrote."""
    folder = os.environ.get("PLAIT_RUN_DIR")
    try:
        with open(os.path.join(folder or "", "plait.log"), "a", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError:
        pass


def _next() -> None:
    """The sitecustomize that this one hides."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _wait() -> None:
    """Keep the script from beginning until the agent lets it; a process that cannot wait ends."""
    try:
        from plait.training.successor import wait_for_attempt

        wait_for_attempt()
    except BaseException as error:
        _note(f"this process cannot wait for its attempt: {error!r}")
        os._exit(1)


if os.environ.get("PLAIT_RUN_DIR") or os.environ.get("PLAIT_MERGED"):
    try:
        _plait()
    except Exception as error:
        _note(f"this script runs without step counts: {error!r}")
if os.environ.get("PLAIT_SUCCESSOR"):
    _wait()
_next()
