"""The command line: `plait`.

A command is imported and built when it is called, and its module imports little until it runs (`lazy`). Start at `app`.

Exit codes: 0 done; 1 unexpected; 2 the input or an option is wrong; 4 a plan or a simulation cannot be; 130 Ctrl-C.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line (default: that of the process) and leave with its exit code."""
    from plait.core.errors import PlaitError

    gc.set_threshold(50_000, 20, 50)  # most of a short command is imports, which leave nothing to collect
    try:
        from plait.cli.app import app

        app(args=args, prog_name="plait")
    except PlaitError as error:
        _leave(error, str(error), error.exit_code)
    except KeyboardInterrupt as error:
        _leave(error, "interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the pipe has no reader; be quiet at exit too
        sys.exit(1)
    except MemoryError as error:
        _leave(error, "out of memory", 1)
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}; run again with PLAIT_DEBUG=1 to see where"
        _leave(error, text, 1)
    sys.exit(0)


def console() -> NoReturn:
    """Run the command line of this process, which then ends at once: the system takes its memory back.

    Python would first take apart all modules, which costs a third of a second where kernels are compiled. It does where
    others have asked to be called at its exit: they would not be.
    """
    codes: list[object] = []
    if not atexit._ncallbacks():
        atexit.register(_end_at_once, codes)  # the first one, so the last to run
    try:
        main()
    except SystemExit as error:
        codes.append(error.code)
        raise


def _end_at_once(codes: Sequence[object]) -> None:
    """End the process with the code in `codes`, if there is one, after all else that runs at its exit."""
    if not codes or not isinstance(code := codes[0] or 0, int):
        return
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except (OSError, ValueError):
        return  # Python reports the error
    os._exit(code)


def _leave(error: BaseException, message: str, code: int) -> NoReturn:
    if os.environ.get("PLAIT_DEBUG"):
        raise error
    print(f"plait: error: {message}", file=sys.stderr)
    sys.exit(code)
