"""The command line: `plait`.

A command is imported and built when it is called, and its module imports little until it runs (`lazy`). Start at `app`.

Exit codes: 0 done; 1 unexpected; 2 the input or an option is wrong; 4 a plan or a simulation cannot be; 130 Ctrl-C.
"""

from __future__ import annotations

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


def _leave(error: BaseException, message: str, code: int) -> NoReturn:
    if os.environ.get("PLAIT_DEBUG"):
        raise error
    print(f"plait: error: {message}", file=sys.stderr)
    sys.exit(code)
