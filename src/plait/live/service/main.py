"""Start the service of a home folder: one at a time, on this machine only unless told otherwise."""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import gc
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from plait.core.errors import InputError, PlaitError
from plait.live.layout import Layout, make_private

if TYPE_CHECKING:
    import uvicorn

    from plait.live.engine import Engine
    from plait.live.service.worker import Worker
    from plait.live.store import Store

_LOG = logging.getLogger("plait.service")
#: Seconds that open requests get when the service is told to end.
GOODBYE_S = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM; returns the exit code."""
    args = _arguments(argv)
    try:
        return run(args)
    except PlaitError as error:
        print(f"plait service: {error}", file=sys.stderr)
        return error.exit_code


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="plait.live.service", description="The scheduler's service.")
    parser.add_argument("--home", help="its folder (PLAIT_HOME, ~/.plait)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: any that is free")
    parser.add_argument("--policy", help="as in plait policies; default: the last one, at first muri-l")
    parser.add_argument("--round", type=float, default=1.0, help="decide at most this often, seconds")
    parser.add_argument("--db", help="sqlite:///file or postgresql://host/db; default: plait.db in the home folder")
    parser.add_argument("--lost", type=float, default=15.0, help="a node silent for so many seconds is lost")
    parser.add_argument("--lease", type=float, default=600.0, help="agents work so many seconds without a service")
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
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Open everything, serve, close everything."""
    begin = time.monotonic()
    _check(args)
    layout = Layout.at(args.home)
    make_private(layout.home)
    with only_one(layout), _listen(args.host, args.port) as listener:
        from plait.live.service.journal import begin_log

        begin_log(layout.home / "service.log")
        store, engine, clock = _open(args, layout)
        try:
            return asyncio.run(_serve(args, layout, store, engine, clock, listener, begin))
        finally:
            layout.service_file.unlink(missing_ok=True)
            store.close()
            _LOG.info("stopped")


def _check(args: argparse.Namespace) -> None:
    if bool(args.tls_cert) != bool(args.tls_key):
        raise InputError("TLS needs both files: --tls-cert and --tls-key")
    for name in ("tls_cert", "tls_key"):
        if getattr(args, name) and not Path(getattr(args, name)).is_file():
            raise InputError(f"--{name.replace('_', '-')}: there is no file {getattr(args, name)}")
    if not args.round > 0 or not args.lost > 0 or not args.lease > args.lost:
        raise InputError("--round and --lost must be > 0 seconds, and --lease longer than --lost")
    if not _loopback(args.host) and not (args.tls_cert or args.insecure):
        raise InputError(
            f"--host {args.host} can be reached from other machines, and tokens would go there in the clear; give "
            "--tls-cert and --tls-key, or --insecure if the network is yours alone"
        )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def only_one(layout: Layout) -> IO[str]:
    """The lock of the home folder; `InputError` if another service has it."""
    lock = open(layout.home / "service.lock", "a+")  # noqa: SIM115 - held as long as the service
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        pid = lock.read().strip()
        lock.close()
        raise InputError(
            f"a service runs in {layout.home} already{f' (process {pid})' if pid else ''}; stop it with: plait down"
        ) from None
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


class Clock:
    """Seconds since the store was made; goes on by the monotonic clock whatever happens to the date."""

    def __init__(self, made_at: float) -> None:
        """The date counts once, at the start."""
        self._base = max(time.time() - made_at, 0.0) - time.monotonic()

    def __call__(self) -> float:
        """Now."""
        return self._base + time.monotonic()

    def not_before(self, now_s: float) -> None:
        """Go on from a time that was seen before, if the date has been set back since."""
        self._base = max(self._base, now_s - time.monotonic())


def _open(args: argparse.Namespace, layout: Layout) -> tuple[Store, Engine, Clock]:
    from plait.live.engine import Engine
    from plait.live.options import Options
    from plait.live.store import Store

    store = Store.open(args.db or layout.database)
    try:
        clock = Clock(store.made_at)
        options = Options(
            round_s=args.round, lost_s=args.lost, lease_s=args.lease, settle_s=args.settle, grace_s=args.grace,
            first_step_s=args.first_step, user_jobs=args.user_jobs, project_jobs=args.project_jobs,
            suspect_s=min(3.0, args.lost / 2),
        )  # fmt: skip
        beside = ThreadPoolExecutor(1, thread_name_prefix="snapshots")
        engine = Engine(store, layout, now=clock(), policy=args.policy, options=options, later=beside.submit)
        clock.not_before(engine.begin_s)
    except BaseException:
        store.close()
        raise
    return store, engine, clock


async def _serve(
    args: argparse.Namespace, layout: Layout, store: Store, engine: Engine, clock: Clock, listener: socket.socket,
    begin: float,
) -> int:  # fmt: skip
    import uvicorn

    from plait.live.service.app import Api, make_app
    from plait.live.service.auth import Tokens
    from plait.live.service.logs import Mailbox
    from plait.live.service.worker import Worker

    loop = asyncio.get_running_loop()
    mailbox, tokens = Mailbox(), Tokens(store, clock, layout)
    tokens.at_home(layout)
    trouble: list[BaseException] = []

    def failed(error: BaseException) -> None:
        _LOG.critical("the engine stopped", exc_info=error)
        trouble.append(error)
        loop.call_soon_threadsafe(stop)

    def stop() -> None:
        api.closing.set()
        server.should_exit = True

    worker = Worker(
        engine, clock, lambda versions: loop.call_soon_threadsafe(mailbox.published, versions), failed
    )  # fmt: skip
    api = Api(store, worker, tokens, mailbox, begin)
    config = uvicorn.Config(
        make_app(api), log_config=None, access_log=False, lifespan="off", server_header=False, date_header=False,
        ssl_certfile=args.tls_cert, ssl_keyfile=args.tls_key, timeout_graceful_shutdown=GOODBYE_S,
        timeout_keep_alive=75,
    )  # fmt: skip
    server = _server(config, lambda: _announce(args, layout, listener, begin))
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # What is loaded stays; and a long listing need not be stopped to look through it.
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    engine.ready = False
    worker.start()
    threading.Thread(target=_get_ready, args=(worker, engine.state.policy_text), name="warm-up", daemon=True).start()
    await server._serve(sockets=[listener])
    api.asker.close()
    await _finish(worker)
    return 1 if trouble else 0


def _server(config: uvicorn.Config, ready: Any) -> uvicorn.Server:
    """A server that says when it answers, and leaves signals to us."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if not self.should_exit:
                ready()

    return Server(config)


async def _finish(worker: Worker) -> None:
    worker.stop()
    await asyncio.to_thread(worker.join, 10.0)


def _announce(args: argparse.Namespace, layout: Layout, listener: socket.socket, begin: float) -> None:
    host, port = listener.getsockname()[:2]
    scheme = "https" if args.tls_cert else "http"
    name = f"[{host}]" if ":" in host else host
    if host in ("0.0.0.0", "::"):
        name = socket.gethostname()
    facts = {
        "url": f"{scheme}://{name}:{port}",
        "pid": os.getpid(),
        "start_time": _start_time(),
        "backend": args.backend,
        "admin_token_file": str(layout.token_file),
    }
    part = layout.service_file.with_name("service.json.part")
    part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    os.replace(part, layout.service_file)
    _LOG.info("answers", extra={"facts": {"url": facts["url"], "after_s": round(time.monotonic() - begin, 3)}})


def _start_time() -> int:
    """When this process began, in the kernel's ticks: with the pid it names the process for good."""
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _get_ready(worker: Worker, policy: str) -> None:
    """Decisions wait until their kernels are there: compiling them must not keep users and agents waiting."""
    try:
        warm_up(policy)
    except Exception:  # the first decision will meet the same trouble, and the status will say so
        _LOG.warning("the policy failed on an empty cluster", exc_info=True)

    def ready(engine: Engine, now: float) -> None:
        engine.ready = True

    worker.submit(ready)


def warm_up(policy: str) -> None:
    """Let a policy decide about two jobs on one GPU, so that everything it needs is loaded, or compiled."""
    from plait.control.controller import Controller
    from plait.control.messages import JobSubmitted, ReplanDue
    from plait.core.cluster import Cluster
    from plait.core.jobs import JobBatch, JobSpec
    from plait.core.resources import StageProfile
    from plait.policies.catalog import make_policy

    controller = Controller(make_policy(policy), Cluster.of(1, 1))
    stages = (StageProfile.of(cpu=0.2, gpu=0.1), StageProfile.of(cpu=0.1, gpu=0.2))
    specs = [JobSpec(id=f"warm-{i}", iterations=10, profile=stage) for i, stage in enumerate(stages)]
    controller.handle(JobSubmitted(0.0, 0, JobBatch.of(specs)))
    controller.handle(ReplanDue(0.0))
