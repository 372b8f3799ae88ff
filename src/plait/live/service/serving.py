"""Serve: stand by until it is this service's turn, then open the store, answer, and keep others informed.

A node loses its lease if its reports are not answered in time, so no user and no stranger may keep the event loop from
them: agents have a listener, an event loop in a thread, and a limit of connections of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import uvicorn

from plait.core.errors import PlaitError
from plait.core.files import is_at_its_path
from plait.live import discovery
from plait.live.layout import Layout
from plait.live.service.http.connections import Acceptor, Connection, Connections, counted, room
from plait.live.service.http.limits import Gateway
from plait.live.service.leadership import Leadership, open_leadership
from plait.live.service.options import ServiceOptions
from plait.live.service.warmup import compile_rest, get_ready, warm_up
from plait.live.store.errors import StoreError
from plait.live.tls import certificates

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from plait.live.service.http.api import Api
    from plait.live.service.worker import Worker
    from plait.live.store import Store
    from plait.live.store.leader_lease import LeaderLease

#: Grace period of open requests, and of what still runs, when the service has to end, seconds.
GOODBYE_S = 3
#: With more connections than that agents have half of them, else a quarter: each node needs two.
MANY = 2_000


def shares() -> tuple[int, int]:
    """How many connections users and agents may have open."""
    most = room()
    agents = most // 2 if most > MANY else most // 4
    return most - agents, agents


class Server(uvicorn.Server):
    """A server that calls `ready` when it answers, leaves signals to others, and admits clients while there is room."""

    def __init__(
        self, gateway: Gateway, most: int, certificate: str | None, key: str | None,
        ready: Callable[[], object] = lambda: None,
    ) -> None:  # fmt: skip
        """Answers with `gateway` over `most` connections; with TLS if there are files of a certificate and its key."""
        super().__init__(
            uvicorn.Config(
                gateway, log_config=None, access_log=False, lifespan="off", server_header=False, date_header=False,
                ssl_certfile=certificate, ssl_keyfile=key, timeout_graceful_shutdown=GOODBYE_S, timeout_keep_alive=75,
                ws="none",
            )
        )  # fmt: skip
        self._ready = ready
        self._connections = gateway.connections = Connections(most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the listening sockets."""
        await super().startup(sockets=[])
        kind = counted(self.config.http_protocol_class, self._connections)

        def protocol(one: Connection) -> Any:
            return kind(config=self.config, server_state=self.server_state, app_state={"connection": one})

        self._acceptors = [Acceptor(each, self._connections, protocol, self.config.ssl) for each in sockets or []]
        for acceptor in self._acceptors:
            acceptor.open()
        if not self.should_exit:
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close them, and answer what is open."""
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets)


class AgentServer(threading.Thread):
    """The server of agents, in its thread; `failed` gets what ends it before `stop`."""

    def __init__(self, server: Server, listener: socket.socket, failed: Callable[[BaseException], object]) -> None:
        super().__init__(name="agents", daemon=True)
        self._server, self._listener, self._failed = server, listener, failed

    def run(self) -> None:
        """Serve until stopped."""
        try:
            asyncio.run(self._server._serve(sockets=[self._listener]))
        except BaseException as error:
            self._failed(error)

    def stop(self) -> None:
        """End the server, once open requests are answered."""
        self._server.should_exit = True


_LOG = logging.getLogger("plait.service")
#: A leader looks so often whether service.json still names it.
LOOK_S = 1.0
#: Share of a core that the check of the whole store takes after each start.
CHECK_SHARE = 0.02
#: Exit code of a service that has lost its lead: it should stand by from now on.
STAND_BY = 75


class Service:
    """One service, from its first answer to its last."""

    def __init__(
        self, options: ServiceOptions, layout: Layout, listeners: tuple[socket.socket, socket.socket],
        addresses: tuple[str, str], begin: float, lease: LeaderLease | None = None, lock: IO[str] | None = None,
    ) -> None:  # fmt: skip
        """Nothing runs yet. `listeners` and `addresses`: for users and for agents; `lock`: of this name in the home."""
        self.lock = lock
        self.options, self.layout, self.begin, self.lease = options, layout, begin, lease
        self.address, self.agents_address = addresses
        self._listener, self._agents_listener = listeners
        self.gateway, self.agents_gateway = Gateway(lease), Gateway(lease)
        #: Set once the service ends, for threads; and the threads that send notifications.
        self._ends, self._followers = threading.Event(), list[threading.Thread]()
        self._code = 0
        self._api: Api | None = None
        self._worker: Worker | None = None
        self._warm: str | None = None
        self._recording: asyncio.Future[None] | None = None
        self._error: PlaitError | None = None

    async def run(self, lead: Leadership | None) -> int:
        """Serve until a signal to end; without `lead`, stand by first. Returns the exit code."""
        self._loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
        self._answers = asyncio.Event()
        files, (users, agents) = (self.options.tls_cert, self.options.tls_key), shares()
        self._server = Server(self.gateway, users, *files, self._answers.set)
        agents_failed = partial(self._failed, what="the server of agents")
        self._agents = AgentServer(Server(self.agents_gateway, agents, *files), self._agents_listener, agents_failed)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.stop)
        if self.lease is not None:
            self.lease.lost = lambda why: self._loop.call_soon_threadsafe(self._step_down, why)
        if lead is not None:
            self._begin(lead)
            if self.lease is not None and self.lease.why:  # before anybody listened
                self._step_down(self.lease.why)
        serving = asyncio.ensure_future(self._server._serve(sockets=[self._listener]))
        self._agents.start()
        try:
            await asyncio.wait(
                {serving, answers := asyncio.ensure_future(self._answers.wait())}, return_when=asyncio.FIRST_COMPLETED
            )
            answers.cancel()
            serving.add_done_callback(lambda _: self.stop())
            if serving.done():
                self.stop()
            if lead is None and (lead := await self._stand_by()) is not None:
                self._begin(lead)
            if self._worker is not None and not self._ending.is_set():
                # Publish where the leader is.
                if self.lease is not None:
                    self._record("leader")
                discovery.write(self.layout.service_file, self._facts())
                after_s = round(time.monotonic() - self.begin, 3)
                _LOG.info("answers", extra={"facts": {"url": self.address, "after_s": after_s}})
                await self._stay()
            await serving
            await asyncio.to_thread(self._agents.join, GOODBYE_S)
            if self._worker is not None and self._api is not None:
                self._api.what_if.close()
                if self._recording is not None:
                    await asyncio.wait({self._recording}, timeout=GOODBYE_S)
                with contextlib.suppress(OSError):  # a full disk, or no home any more
                    await asyncio.to_thread(self._api.usage.save, everything=True)
                until_s = time.monotonic() + GOODBYE_S
                for follower in self._followers:
                    await asyncio.to_thread(follower.join, max(until_s - time.monotonic(), 0.0))
                self._worker.stop()
                await asyncio.to_thread(self._worker.join, 10.0)
        finally:
            self.stop()
            if lead is not None:
                lead.store.close()
        if self._error is not None:
            raise self._error
        return self._code

    def stop(self) -> None:
        """Let the service end, once open requests are answered."""
        self._ending.set()
        self._ends.set()
        if self._api is not None:
            self._api.closing.set()
            self._api.mailbox.close()
        self._server.should_exit = True
        self._agents.stop()

    # -- standing by --------------------------------------------------------------------------------

    async def _stand_by(self) -> Leadership | None:
        """Wait until this service can lead; None if a request to end comes before."""
        from plait.live.store.leader_lease import LOOK_S as look_s

        assert self.lease is not None
        self._record("standby")
        _LOG.info("stands by", extra={"facts": {"url": self.address}})
        said, prepared = "", False
        while not self._ending.is_set():
            try:
                if await asyncio.to_thread(self.lease.try_take):
                    break
                if not prepared:
                    policy = self.options.policy or await asyncio.to_thread(self.lease.policy)
                    threading.Thread(target=self._prepare, args=(policy,), name="prepare", daemon=True).start()
                said, prepared = "", True
            except Exception as error:  # the database is away: the leader has the same trouble
                if str(error) != said:
                    said = str(error)
                    _LOG.warning("the store does not answer", extra={"facts": {"why": said[:300]}})
            await _until(self._ending, look_s)
        if self._ending.is_set():
            return None
        began = time.monotonic()
        try:
            lead = await asyncio.to_thread(open_leadership, self.options, self.layout, self.lease)
        except PlaitError as error:
            _LOG.critical("cannot lead", exc_info=error)
            self._error = error
            self.stop()
            return None
        _LOG.info("leads", extra={"facts": {"term": lead.engine.term, "took_s": round(time.monotonic() - began, 3)}})
        return lead

    def _prepare(self, policy: str | None) -> None:
        """Load all that leading needs, while there is time."""
        import plait.live.scheduler.engine  # noqa: F401
        from plait.live.scheduler.engine import DEFAULT_POLICY
        from plait.live.service.http.app import make_app  # noqa: F401

        policy = policy or DEFAULT_POLICY
        try:
            warm_up(policy)
            self._warm = policy
        except Exception:  # then it is made ready when it decides
            _LOG.info("the policy is not made ready yet", exc_info=True)
        self.gateway.prepared = True
        compile_rest(policy)

    # -- leading --------------------------------------------------------------------------------------

    def _begin(self, lead: Leadership) -> None:
        """Answer as the leader from now on."""
        from plait.live.service.http.api import Api
        from plait.live.service.http.app import make_agents_app, make_app
        from plait.live.service.http.auth import Tokens
        from plait.live.service.logs import Mailbox
        from plait.live.service.notifications import start_followers
        from plait.live.service.worker import Worker

        store, engine = lead.store, lead.engine
        mailbox, tokens = Mailbox(), Tokens(store, lead.clock.by_date, self.layout)
        tokens.at_home(self.layout)
        worker = Worker(
            engine, lead.clock, mailbox.published, self._failed,
            (lambda: True) if self.lease is None else self.lease.holds,
            (lambda: lead.again(self.layout)) if self.lease is None else None,
        )  # fmt: skip
        if self.lease is not None:
            self.lease.pulse, self.lease.doing = lambda: worker.cycles, worker.doing
        self._worker = worker
        backups = Path(self.options.backup_folder).expanduser().resolve() if self.options.backup_folder else None
        self._api = Api(store, worker, tokens, mailbox, self.begin, self.options.prices, backups)
        self.gateway.app, self.gateway.rank = make_app(self._api, load_pages(self.options.web)), tokens.rank
        self.agents_gateway.app, self.agents_gateway.rank = make_agents_app(self._api), tokens.rank
        # Loaded objects stay; and a long listing need not be stopped to look through it.
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        policy = engine.state.policy_text
        engine.ready = policy == self._warm
        worker.start()
        threading.Thread(target=self._find_damage, args=(store,), name="checksums", daemon=True).start()
        self._recording = asyncio.ensure_future(self._api.usage.run(self._ending))

        def give_up(channel: str, number: int, event: str, why: str) -> None:
            worker.submit(lambda engine, now_s: engine.undelivered(channel, number, event, why, now_s)).result()

        self._followers = start_followers(self.options.channels, store, lead.clock, give_up, self._ends)
        if not engine.ready:
            threading.Thread(target=get_ready, args=(worker, policy), name="warm-up", daemon=True).start()

    def _find_damage(self, store: Store) -> None:
        """Log the rows of the store that do not match their checksums; the engine's own input was checked."""
        began_s = time.thread_time()

        def rest() -> None:
            nonlocal began_s
            time.sleep((time.thread_time() - began_s) / CHECK_SHARE)
            began_s = time.thread_time()

        for problem in store.damaged(rest):
            if self._ending.is_set():  # the store is closed
                return
            _LOG.error("the store is damaged; put a backup back: plait restore", extra={"facts": {"what": problem}})

    def _failed(self, error: BaseException, what: str = "the engine") -> None:
        """A thread has ended without which there is no service."""
        _LOG.critical(f"{what} stopped", exc_info=error)
        again = self.lease is not None and isinstance(error, StoreError)
        self._code = STAND_BY if again else 1
        self._loop.call_soon_threadsafe(self.stop)

    def _step_down(self, why: str) -> None:
        if not self._ending.is_set():
            _LOG.warning("leads no more", extra={"facts": {"why": why}})
            self._code = STAND_BY
            if self._worker is not None:
                self._worker.stop()  # open requests may take their time; nothing is done meanwhile
            self.stop()

    def _facts(self) -> dict[str, Any]:
        return {
            "url": self.address, "agents": self.agents_address, **discovery.own_process(),
            "backend": self.options.backend,
            "admin_token_file": str(self.layout.token_file),
            **({"certificate": certificates(self.options.tls_cert)} if self.options.tls_cert else {}),
        }  # fmt: skip

    def _record(self, role: str) -> None:
        words = {"name": self.options.name, "role": role, "standby": bool(self.options.standby)}
        discovery.write(discovery.record_file(self.layout, self.options.name), self._facts() | words)

    async def _stay(self) -> None:
        """Wait for a signal to end, or until files of the home vanish; keep service.json naming the leader."""
        trouble = ""
        while not self._ending.is_set():
            await _until(self._ending, LOOK_S)
            if self._ending.is_set():
                return
            if why := await asyncio.to_thread(self._files_lost):
                self._error = PlaitError(f"{why}; nothing can be kept there")
                _LOG.critical("files of the home were removed", extra={"facts": {"why": why}})
                self.stop()
                return
            leads = self.lease is None or self.gateway.leads
            if leads and not discovery.is_mine(self.layout.service_file):
                try:
                    discovery.write(self.layout.service_file, self._facts())
                    trouble = ""
                except OSError as error:  # a full disk: at the next look
                    if str(error) != trouble:
                        trouble = str(error)
                        _LOG.warning("service.json cannot be written", extra={"facts": {"why": trouble}})

    def _files_lost(self) -> str:
        """Which of the files that make this the only service of its home were removed or replaced; "" for none."""
        if not self.layout.home.is_dir():
            return f"the home folder {self.layout.home} has vanished"
        if self.lock is not None and not is_at_its_path(self.lock):
            return f"the lock {self.lock.name} was removed: another service may run in this home"
        try:
            if self._api is not None:
                self._api.store.check()
        except StoreError as error:
            return str(error)
        return ""


async def _until(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return


# The application for browsers, named by an option: the service imports nothing that is above it.

#: The value of `--web` for no pages.
NONE = "none"


def load_pages(name: str) -> Callable[[ASGIApp], ASGIApp] | None:
    """The function `MODULE:FUNCTION`, which makes pages over the API's application; None for `none`.

    Where it cannot be loaded that is logged, and there are no pages: jobs need none.
    """
    if name == NONE:
        return None
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception:  # whatever a module raises when it is imported
        _LOG.exception("no pages: %s cannot be loaded", name)
        return None
    return cast("Callable[[ASGIApp], ASGIApp]", found)
