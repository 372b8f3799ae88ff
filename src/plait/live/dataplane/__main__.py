"""`python -m plait.live.dataplane switch --control PATH`: run a switch, or a `server`, in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from plait.core.errors import InputError
from plait.core.options import parser
from plait.live.dataplane.options import KINDS


def main(args: Sequence[str] | None = None) -> int:
    """Run until a signal to end; exit code 0 then, 2 for invalid options."""
    words = list(sys.argv[1:] if args is None else args)
    kind = words.pop(0) if words else ""
    if kind not in KINDS:
        print(f"usage: python -m plait.live.dataplane {{{','.join(KINDS)}}} [options]", file=sys.stderr)
        return 2
    prog = f"python -m plait.live.dataplane {kind}"
    options = KINDS[kind](**vars(parser(KINDS[kind], prog=prog).parse_args(words)))
    from plait.live.dataplane.process import run

    try:
        return run(options)
    except InputError as error:
        print(f"plait: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
