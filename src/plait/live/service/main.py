"""Start the service of a home folder: on this machine only unless told otherwise, one at a time.

Or several, where they share a store on PostgreSQL: one leads, those started with `--standby` wait for its place.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import ipaddress
import logging
import math
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plait.core.errors import InputError, PlaitError
from plait.live.layout import NODE_NAME, Layout, make_private
from plait.live.protocol.leases import LEASE_SHARE, check_lease
from plait.live.service import discovery

if TYPE_CHECKING:
    from plait.live.store.leader_lease import LeaderLease

_LOG = logging.getLogger("plait.service")
#: A service that has lost its lead comes back after so many seconds, to stand by.
_BACK_S = 0.5
_LOCK_TRIES = 10


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; returns the exit code."""
    args = _arguments(argv)
    if args.policy_path:
        sys.path.append(args.policy_path)
    try:
        code = run(args)
    except PlaitError as error:
        print(f"plait service: {error}", file=sys.stderr)
        return error.exit_code
    from plait.live.service.serving import STAND_BY

    if code == STAND_BY:
        _stand_by(args, list(sys.argv[1:] if argv is None else argv))
    return code


def _stand_by(args: argparse.Namespace, words: list[str]) -> None:
    """Begin anew as a follower, in this process: nothing of the time as a leader is left."""
    time.sleep(_BACK_S)
    more = [] if args.standby else ["--standby", "--name", args.name]
    os.execv(sys.executable, [sys.executable, "-m", "plait.live.service", *words, *more])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="plait.live.service", description="The scheduler's service.")
    parser.add_argument("--home", help="its folder (PLAIT_HOME, ~/.plait)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--policy", help="as in plait policies; default: the last one, at first tiresias-l")
    parser.add_argument("--round", type=float, default=1.0, help="decide at most this often, seconds")
    parser.add_argument(
        "--db",
        default=os.environ.get(discovery.STORE_VARIABLE) or None,
        help="sqlite:///file or postgresql://host/db (PLAIT_DB, for one with a password); default: HOME/plait.db",
    )
    parser.add_argument(
        "--estimates", type=float, default=30.0, help="believe adaptive jobs what they say of themselves this often"
    )
    parser.add_argument("--lost", type=float, default=300.0, help="a node silent for so many seconds is lost")
    parser.add_argument(
        "--lease", type=float,
        help="what runs on a node ends by itself after so many seconds without a service; default: 0.8 of --lost",
    )  # fmt: skip
    parser.add_argument("--lead-lease", type=float, default=3.0, help="seconds a silent leader keeps its place")
    parser.add_argument("--settle", type=float, default=10.0, help="wait so many seconds for more nodes")
    parser.add_argument(
        "--first-step", type=float, default=30.0, help="seconds an attempt gets for its first step before it makes room"
    )
    parser.add_argument("--grace", type=float, default=60.0, help="seconds for a checkpoint at preemption")
    parser.add_argument("--user-jobs", type=int, default=10_000, help="jobs a user may have open; 0: any number")
    parser.add_argument("--project-jobs", type=int, default=50_000, help="... and a project")
    parser.add_argument("--tls-cert", help="certificate file; with --tls-key the service speaks HTTPS")
    parser.add_argument("--tls-key", help="key file")
    parser.add_argument("--insecure", action="store_true", help="listen beyond this machine without TLS")
    parser.add_argument("--backend", default="local", help="noted in service.json")
    parser.add_argument(
        "--most-gpus",
        type=int,
        help="larger jobs are refused, others wait for nodes; default: as many as there are, "
        "or, with a backend other than local, any number",
    )
    parser.add_argument("--expect-gpus", type=int, default=0, help="once there are so many, no more are waited for")
    parser.add_argument(
        "--allow-policy", action="append", default=[], metavar="MODULE",
        help="policies of this Python module may be named over HTTP; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--may-lose-work", action="store_true", help="policies may stop jobs that cannot go on from a checkpoint"
    )
    parser.add_argument("--policy-path", metavar="FOLDER", help="where modules of policies are looked for, last")
    parser.add_argument("--standby", action="store_true", help="wait until no other service leads, then lead")
    parser.add_argument("--name", help="of this service, where a home has several; default: 1, with --standby 2")
    args = parser.parse_args(argv)
    args.name = args.name or ("2" if args.standby else discovery.FIRST)
    args.lease = LEASE_SHARE * args.lost if args.lease is None else args.lease
    return args


def run(args: argparse.Namespace) -> int:
    """Open everything, serve, close everything."""
    begin = time.monotonic()
    _check(args)
    layout = Layout.at(args.home)
    make_private(layout.home)
    with only_one(layout, args.name), _listen(args.host, args.port) as listener:
        from plait.live.service.journal import begin_log
        from plait.live.service.leadership import open_lead
        from plait.live.service.serving import STAND_BY, Service

        begin_log(discovery.file_of(layout, args.name, "log"))
        address = _address(args, listener)
        seat, again = _seat(args, address), False
        try:
            if seat is not None and not args.standby:
                _take(seat, args.db)
            lead = None if args.standby else open_lead(args, layout, seat)
            code = asyncio.run(Service(args, layout, listener, address, begin, seat).run(lead))
            again = code == STAND_BY
            return code
        finally:
            if not again:
                discovery.forget(layout, args.name)
            if seat is not None:
                seat.close()
            _LOG.info("stopped")


def _seat(args: argparse.Namespace, address: str) -> LeaderLease | None:
    """How this service comes to lead; None on SQLite, where the lock of the file says all."""
    if not (args.db or "").startswith("postgres"):
        return None
    try:
        from plait.live.store.holders import this_process
        from plait.live.store.leader_lease import LeaderLease
        from plait.live.store.store import parse_url

        return LeaderLease(
            parse_url(args.db), holder=this_process(args.lead_lease), address=address, lease_s=args.lead_lease
        )
    except ImportError as error:
        from plait.core.errors import MissingExtra

        raise MissingExtra("psycopg", "postgres", "a store on PostgreSQL") from error


def _take(seat: LeaderLease, url: str) -> None:
    """Lead now, or when the lease of one that has died is over; raises `StoreError` if another leads."""
    from sqlalchemy.exc import SQLAlchemyError

    from plait.live.store import StoreError
    from plait.live.store.store import parse_url

    until = time.monotonic() + seat.lease_s + 1.0
    try:
        while not seat.try_take():
            if time.monotonic() > until:
                where = f" at {seat.seen.url}" if seat.seen else ""
                raise StoreError(
                    f"the store {parse_url(url)!r} is in use by another service{where}; stop that one first, or wait "
                    "for its place with: plait up --standby"
                )
            time.sleep(0.1)
    except SQLAlchemyError as error:
        raise StoreError(f"cannot open the store {parse_url(url)!r}: {str(error).strip().splitlines()[0]}") from error


def _check(args: argparse.Namespace) -> None:
    for name, value in vars(args).items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"--{name.replace('_', '-')} is {value}, needs a finite number of seconds")
    if bool(args.tls_cert) != bool(args.tls_key):
        raise InputError("TLS needs both files: --tls-cert and --tls-key")
    for name in ("tls_cert", "tls_key"):
        if getattr(args, name) and not Path(getattr(args, name)).is_file():
            raise InputError(f"--{name.replace('_', '-')}: there is no file {getattr(args, name)}")
    if not args.estimates > 0:
        raise InputError(f"--estimates is {args.estimates}, needs seconds > 0")
    if not args.round > 0 or not args.lost > 0:
        raise InputError(f"--round is {args.round:g} and --lost {args.lost:g}; both need seconds > 0")
    check_lease(args.lost, args.lease)
    if args.standby and not (args.db or "").startswith("postgres"):
        raise InputError(
            "--standby needs a store that several services can reach: --db postgresql://host/name; an SQLite file is "
            "for one service"
        )
    if not NODE_NAME.fullmatch(args.name):
        raise InputError(f"--name is {args.name!r}; write letters, digits, dot, dash")
    if not _loopback(args.host) and not (args.tls_cert or args.insecure):
        raise InputError(
            f"--host {args.host} can be reached from other machines, and tokens would go there in the clear; give "
            "--tls-cert and --tls-key, or --insecure if the network is yours alone"
        )


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def only_one(layout: Layout, name: str = discovery.FIRST) -> IO[str]:
    """The lock of the home folder, or of one service of several; `InputError` if another process has it."""
    lock = open(discovery.file_of(layout, name, "lock"), "a+")  # noqa: SIM115 - held as long as the service
    for _ in range(_LOCK_TRIES):  # whoever looks whether a service runs holds the lock for a moment
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(0.02)
    else:
        lock.seek(0)
        pid = lock.read().strip()
        lock.close()
        raise InputError(
            f"a service runs in {layout.home} already{f' (process {pid})' if pid else ''}; stop it with: plait down"
        )
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off; else every answer waits 40 ms for the client.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another --port") from error
    return listener


def _address(args: argparse.Namespace, listener: socket.socket) -> str:
    """Where agents and clients find this service."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    elif not _is_number(args.host):
        name = args.host  # what its certificate says
    else:
        name = f"[{host}]" if ":" in host else host
    return f"{'https' if args.tls_cert else 'http'}://{name}:{port}"
