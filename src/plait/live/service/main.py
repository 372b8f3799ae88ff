"""Start the service of a home folder: by default only for this machine, one at a time.

Several services may share a store on PostgreSQL: one leads, and services started with `--standby` follow it.
Its own log has one JSON object a line, in service.log and, if there is one, on the terminal.
"""

from __future__ import annotations

import asyncio
import fcntl
import ipaddress
import json
import logging
import math
import os
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, TYPE_CHECKING

from plait.core.errors import InputError, PlaitError
from plait.core.files import is_at_its_path, open_private
from plait.core.options import declared
from plait.live import discovery
from plait.live.layout import FIRST, NODE_NAME, Layout, make_private
from plait.live.protocol.leases import check_lease
from plait.live.service.options import ServiceOptions, read_options
from plait.live.system import modules

if TYPE_CHECKING:
    from plait.live.store.leader_lease import LeaderLease

BYTES, FILES = 10_000_000, 3
#: Lines of one kind at most in so many seconds, without and with a traceback.
MOST, TRACEBACKS, EACH_S = 1000, 20, 10.0


class JsonLines(logging.Formatter):
    """Time, level, where, what, and the facts of `extra={"facts": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "at": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}",
            "level": record.levelname.lower(),
            "from": record.name,
            "what": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Bounded(logging.Filter):
    """Passes so many lines of a kind in some seconds, then one with the number of the others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._since: dict[tuple[str, int, str], float] = {}
        self._seen: Counter[tuple[str, int, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written; a kind is a logger, a level and a text without its values."""
        most = TRACEBACKS if record.exc_info else MOST
        key, now = (record.name, record.levelno, str(record.msg)[:100]), self._clock()
        with self._lock:
            if now - self._since.get(key, -math.inf) >= EACH_S:
                left_out = self._seen[key] - most
                self._since[key], self._seen[key] = now, 0
                if left_out > 0:
                    record.facts = {**getattr(record, "facts", {}), "left_out_before": left_out}
                if len(self._since) > 1000:  # kinds without end are no kinds
                    self._since.clear()
                    self._seen.clear()
            self._seen[key] += 1
            return self._seen[key] <= most


def begin_log(path: Path) -> None:
    """Everything from now on goes to this file."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    handlers: list[logging.Handler] = [RotatingFileHandler(path, maxBytes=BYTES, backupCount=FILES)]
    if sys.stderr is not None and sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs the address of each request, with its secrets
    for handler in handlers:
        handler.addFilter(Bounded())  # each its own: a record that two handlers count is counted twice
        handler.setFormatter(JsonLines())
        root.addHandler(handler)


_LOG = logging.getLogger("plait.service")
#: A service that has lost its lead comes back after so many seconds, to stand by.
_BACK_S = 0.5
_LOCK_TRIES = 25


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; returns the exit code."""
    options = read_options(argv)
    if options.policy_path:
        sys.path.append(options.policy_path)
    try:
        code = run(options)
    except PlaitError as error:
        print(f"plait service: {error}", file=sys.stderr)
        return error.exit_code
    from plait.live.service.serving import STAND_BY

    if code == STAND_BY:
        # Restart as a standby, replacing this process: no state of the leader is left.
        words = list(sys.argv[1:] if argv is None else argv)
        time.sleep(_BACK_S)
        more = [] if options.standby else ["--standby", "--name", options.name]
        os.execv(sys.executable, [sys.executable, "-m", "plait.live.service", *words, *more])
    return code


def run(options: ServiceOptions) -> int:
    """Open everything, serve, close everything."""
    begin = time.monotonic()
    for one in declared(ServiceOptions):
        value = getattr(options, one.name)
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"--{one.word} is {value}, needs a finite number of {one.unit}")
    if bool(options.tls_cert) != bool(options.tls_key):
        raise InputError("TLS needs both files: --tls-cert and --tls-key")
    for name in ("tls_cert", "tls_key"):
        if getattr(options, name) and not Path(getattr(options, name)).is_file():
            raise InputError(f"--{name.replace('_', '-')}: there is no file {getattr(options, name)}")
    _ = options.prices, options.channels  # raise for what is no price, and no file of channels
    if not options.estimate_s > 0:
        raise InputError(f"--estimates is {options.estimate_s}, needs seconds > 0")
    if not options.round_s > 0 or not options.lost_s > 0:
        raise InputError(f"--round is {options.round_s:g} and --lost {options.lost_s:g}; both need seconds > 0")
    check_lease(options.lost_s, options.lease)
    if options.standby and not (options.db or "").startswith("postgres"):
        raise InputError(
            "--standby needs a store that several services can reach: --db postgresql://host/name; an SQLite file is "
            "for one service"
        )
    if not NODE_NAME.fullmatch(options.name):
        raise InputError(f"--name is {options.name!r}; write letters, digits, dot, dash")
    number = _number_of(options.host)
    here = options.host == "localhost" if number is None else number.is_loopback
    if not here and not (options.tls_cert or options.insecure):
        raise InputError(
            f"--host {options.host} can be reached from other machines, and tokens would be sent unencrypted; give "
            "--tls-cert and --tls-key, or --insecure in a private network"
        )
    layout = Layout.at(options.home)
    make_private(layout.home)
    with (
        only_one(layout, options.name) as lock,
        _listen(options.host, options.port, "--port") as listener,
        _listen(options.host, options.agent_port, "--agent-port") as agents,
    ):
        from plait.live.service.leadership import open_leadership
        from plait.live.service.main import begin_log
        from plait.live.service.serving import STAND_BY, Service

        begin_log(discovery.file_of(layout, options.name, "log"))
        address, agents_address = _address(options, listener), _address(options, agents)
        lease, again = _leader_lease(options, address), False
        try:
            if lease is not None and not options.standby:
                _take(lease, str(options.db))
            lead = None if options.standby else open_leadership(options, layout, lease)
            both, addresses = (listener, agents), (address, agents_address)
            code = asyncio.run(Service(options, layout, both, addresses, begin, lease, lock).run(lead))
            again = code == STAND_BY
            return code
        finally:
            if not again:
                discovery.forget(layout, options.name)
            if lease is not None:
                lease.close()
            _LOG.info("stopped")


def _leader_lease(options: ServiceOptions, address: str) -> LeaderLease | None:
    """The lease by which this service leads; None on SQLite, where the lock of the file suffices."""
    if not (options.db or "").startswith("postgres"):
        return None
    try:
        from plait.live.store.connecting import parse_url
        from plait.live.store.leader_lease import LeaderLease, this_process

        return LeaderLease(
            parse_url(str(options.db)),
            holder=this_process(options.lead_lease_s),
            address=address,
            lease_s=options.lead_lease_s,
        )
    except ImportError as error:
        from plait.core.errors import MissingExtra

        raise MissingExtra("psycopg", "postgres", "a store on PostgreSQL") from error


def _take(lease: LeaderLease, url: str) -> None:
    """Lead now, or once the lease of a dead leader is over; raises `StoreError` if another leads."""
    from sqlalchemy.exc import SQLAlchemyError

    from plait.live.store import StoreError
    from plait.live.store.connecting import parse_url

    until = time.monotonic() + lease.lease_s + 1.0
    try:
        while not lease.try_take():
            if time.monotonic() > until:
                where = f" at {lease.seen.url}" if lease.seen else ""
                raise StoreError(
                    f"the store {parse_url(url)!r} is in use by another service{where}; stop that one first, or "
                    "start a standby with: plait up --standby"
                )
            time.sleep(0.1)
    except SQLAlchemyError as error:
        raise StoreError(f"cannot open the store {parse_url(url)!r}: {str(error).strip().splitlines()[0]}") from error


def _number_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def only_one(layout: Layout, name: str = FIRST) -> IO[str]:
    """Lock the home folder, or one service of several; `InputError` if another process runs it.

    A lock file that was removed no longer shows the service that holds it: its process does.
    """
    lock = open(discovery.file_of(layout, name, "lock"), "a+", opener=open_private)  # noqa: SIM115 - held to the end
    other: int | None = None
    for _ in range(_LOCK_TRIES):  # others hold the lock for a moment to look, and a service that ends is seen till then
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            other = int(lock.read().strip() or 0)
        else:
            other = next((process.pid for process in modules.services(layout.home, name)), None)
            if other is None:
                break
        time.sleep(0.02)
    if other is not None or not is_at_its_path(lock):
        lock.close()
        raise InputError(
            f"a service runs in {layout.home} already{f' (process {other})' if other else ''}; stop it with: plait down"
        )
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _listen(host: str, port: int, option: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off; else every answer waits 40 ms for the client.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; give another {option}") from error
    return listener


def _address(options: ServiceOptions, listener: socket.socket) -> str:
    """Where agents and clients find this service."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    elif _number_of(options.host) is None:
        name = options.host  # the name in its certificate
    else:
        name = f"[{host}]" if ":" in host else host
    return f"{'https' if options.tls_cert else 'http'}://{name}:{port}"
