"""Keeps agents on the nodes of a backend, and nothing else: where something other than `plait up` keeps the service.

    python -m plait.live.service --home /srv/plait --backend ray ...                    # in one container
    python -m plait.cli.tend --home /srv/plait --backend ray --address 10.0.0.1:6379    # in another

It looks for the service in the home folder at each look, so that it follows whichever leads.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.live.backends.base import Backend
    from plait.live.layout import Layout

#: Seconds between two looks; the pause after trouble, which doubles up to the longest.
LOOK_S, FIRST_S, MOST_S = 1.0, 1.0, 30.0


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends the process for those that there are not."""
    parser = argparse.ArgumentParser(prog="plait.cli.tend", description=__doc__.partition("\n")[0])
    parser.add_argument("--home", required=True, help="folder of the service, which all nodes see")
    parser.add_argument("--backend", required=True, help="who has the nodes, as in plait up")
    parser.add_argument("--address", help="of the Ray cluster's head: host:port")
    parser.add_argument("-o", "--option", action="append", default=[], help="NAME=VALUE for the backend")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None, until: Callable[[], bool] = lambda: False) -> int:
    """Look until it is told to end; returns 2 for options that no backend understands."""
    from plait.core.errors import PlaitError
    from plait.live.backends.base import open_backend
    from plait.live.layout import Layout

    args = arguments(argv)
    options = {"backend": args.backend, "address": args.address, **dict(o.partition("=")[::2] for o in args.option)}
    layout = Layout.at(args.home)
    try:
        backend = open_backend(layout, {name: value for name, value in options.items() if value is not None})
    except PlaitError as error:
        print(f"plait tend: {error}", file=sys.stderr)
        return error.exit_code
    pause_s, started = FIRST_S, False
    while not until():
        try:
            done = _look(layout, backend, started)
        except PlaitError as error:
            _say(f"{error}; next try in {pause_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_S)
            continue
        pause_s, started = FIRST_S, True
        for line in done:
            _say(line)
        time.sleep(LOOK_S)
    return 0


def _look(layout: Layout, backend: Backend, started: bool) -> list[str]:
    """Start agents where none run, then do what the backend does at each look; what was done."""
    from plait.live.client import Client

    with Client.at(str(layout.home)) as service:
        service.status()  # agents without a service would find nobody to report to
        first = [] if started else [f"started the agent of {name}" for name in backend.start()]
        return first + backend.tend(service)


def _say(line: str) -> None:
    print(f"{time.strftime('%FT%T')} {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
