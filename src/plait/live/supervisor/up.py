"""Implementation of `plait up`: the service, the agents of its nodes, and the wait until all of them work."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from plait.control.prices import Prices
from plait.core.errors import InputError, MissingExtra, PlaitError
from plait.core.files import replace_file
from plait.core.words import counted, duration
from plait.live.api.cluster import NodeRow
from plait.live.backends.base import NodeBackend
from plait.live.backends.registry import HALVES, PAIRS, UP_OPTIONS, open_backend
from plait.live.client.client import Client
from plait.live.client.transport import read_service_file
from plait.live.discovery import file_of
from plait.live.layout import FIRST, Layout, make_private
from plait.live.notes import note
from plait.live.protocol.leases import LEASE_SHARE, LOST_S, check_lease
from plait.live.supervisor import daemon, services
from plait.live.supervisor.down import stop
from plait.live.supervisor.options import and_remembered, for_backend, remember, remember_down, remembered, was_up
from plait.live.system import procs
from plait.live.system.procs import Patience
from plait.network.topology.declared import NONE, Declared, read_network
from plait.network.topology.shapes import SHAPES

#: A policy that grants memory of switches.
EXAMPLE = "plait:ina=inalloc"


def start(layout: Layout, given: dict[str, Any]) -> Client:
    """Start a cluster and wait until all its nodes work; options that are not given keep their previous values.

    Raises `InputError` if one runs already or the service does not come up, with the end of its log.
    """
    missing = [
        m for m in ("msgspec", "starlette", "uvicorn", "sqlalchemy", "httpx") if importlib.util.find_spec(m) is None
    ]
    if missing:
        raise MissingExtra(", ".join(missing), "live", "running a cluster")
    services.refuse_elsewhere(layout)
    running = services.any_service_process(layout)
    if running is not None:
        return _kept_again(layout, given, running.pid)
    if "policy" in given:
        from plait.live.scheduler.live_policy import live_policy
        from plait.policies.catalog import import_from_here

        import_from_here()
        # A typing mistake is found here, with a suggestion; whether there is a network, the service knows.
        live_policy(given["policy"], given.get("network") != NONE)
    network = _network_given(layout, given)
    services.refuse_taken_port(given.get("port"), given.get("host"))
    if make_private(layout.home).stat().st_mode & 0o066:
        note(f"other users can look into {layout.home}; close it with: chmod 700 {layout.home}")
    options = and_remembered(layout, given)
    unknown = sorted(for_backend(given).keys() - {*UP_OPTIONS, *PAIRS})
    if unknown and options.get("backend", "local") == "local":
        raise InputError(f"no option {unknown[0]!r} of nodes on this machine; there are: {', '.join(PAIRS)}")
    if options.get("as-owner"):
        _close_files(layout)
    if "lost" in given and "lease" not in given:
        options.pop("lease", None)  # by the new one
    lost_s = float(options.get("lost", LOST_S))
    check_lease(lost_s, float(options.get("lease", LEASE_SHARE * lost_s)))
    if network is not None and options.get("backend", "local") == "local":
        halves = HALVES if network.text.startswith("leaf-spine") else ""
        options["racks"] = ",".join(f"{name}={rack}" for name, rack in network.racks) or halves
    backend = open_backend(layout, for_backend(options))
    options.pop("expect-gpus", None)
    if expected := backend.expected_gpus():
        options["expect-gpus"] = expected
    options["most-gpus"] = backend.most_gpus()
    kept = daemon.stop(layout, daemon.KEEPER)  # it would restart the service with the old options
    try:
        return (
            _rejoin(layout, options, backend)
            if services.others_ready(layout)
            else _begin(layout, given, options, backend)
        )
    except BaseException:
        if kept:
            daemon.spawn(
                layout, daemon.KEEPER, "plait.live.supervisor.keeper"
            )  # with the old options, which still hold
        raise


def _close_files(layout: Layout) -> None:
    """Close the present and later files of the home to other accounts, which may enter it for their jobs' folders.

    Folders of plait are closed since they were made; another, as of its own installation, stays as it is.
    """
    os.umask(0o077)
    for path in layout.home.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode & ~0o077)


def _network_given(layout: Layout, given: dict[str, Any]) -> Declared | None:
    """The network that is given, if one is; a cluster file is copied into the home, where it stays unchanged."""
    network = read_network(given.get("network"))
    if network is not None and network.listed is not None:
        kept = make_private(layout.home) / "network.toml"
        replace_file(kept, Path(given["network"]).read_text(encoding="utf-8"))
        given["network"] = str(kept)
    return network


def _begin(layout: Layout, given: dict[str, Any], options: dict[str, Any], backend: NodeBackend) -> Client:
    """Start the only service of a home, and its nodes."""
    before, was = remembered(layout), was_up(layout)
    again = (
        bool(before)
        and {k: v for k, v in given.items() if k not in ("policy", "may-lose-work")}.items() <= before.items()
    )
    process = services.start_service(layout, options)
    try:
        remember(layout, options)  # so that `plait down` finds what is begun now
        service = services.own_client(layout)
        _refuse_losses(service, backend)
        backend.start()
        _await_nodes(service, layout, process, backend)
        # Report local nodes that no longer exist: `start` has ended their agents, so there is nothing to wait for
        for node in _no_longer_started(service, backend):
            service.node_gone(node, "the cluster was started with fewer nodes")
    except BaseException as error:
        if isinstance(error, PlaitError) and again and process.poll() is None:
            # Existing agents and jobs must not lose their service because of it.
            note(f"{error}; the service runs, and its nodes are tried again until they come")
            return services.own_client(layout)
        _undo(layout, process, before, was)
        raise
    return service


def _undo(layout: Layout, process: subprocess.Popen[bytes], before: dict[str, Any], was: bool) -> None:
    """End the processes of a failed start; where the cluster was up, its agents continue as without a service."""
    if was:
        services.end_child(process)
        remember(layout, before)
        return
    try:
        stop(layout, stop_jobs=False)
    except PlaitError as error:  # the same trouble again, likely
        note(str(error))
    if before:
        remember_down(layout, before)
    else:
        layout.options_file().unlink(missing_ok=True)


def restart_service(layout: Layout) -> None:
    """The service of a cluster that was up; its agents run without it, and its nodes are kept elsewhere."""
    options = remembered(layout)
    if services.others_ready(layout):  # one of them leads by now
        services.start_standby(layout, options, FIRST)
    else:
        services.start_service(layout, _with_last_port(layout, options))


def _with_last_port(layout: Layout, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a service that died, with the port it had, which others know (PLAIT_URL), if that is free."""
    said = read_service_file(layout) or {}
    try:
        port = urlsplit(str(said.get("url", ""))).port
        services.refuse_taken_port(port, options.get("host"))
    except (ValueError, InputError):
        return options
    return options if options.get("port") or not port else {**options, "port": port}


def _kept_again(layout: Layout, given: dict[str, Any], pid: int) -> Client:
    """The service that runs, if it and its nodes lack only their keeper, which is then started; else `InputError`."""
    # A service that was started by itself has no nodes of ours.
    same = was_up(layout) and given.items() <= remembered(layout).items()
    if not same or daemon.running(layout, daemon.KEEPER) is not None:
        raise InputError(
            f"a service runs in {layout.home} already (process {pid}); look at it with: plait status, "
            "stop it with: plait down"
        )
    note("the service runs; its keeper is started again, and starts what else has died")
    return services.own_client(layout)


def _rejoin(layout: Layout, options: dict[str, Any], backend: NodeBackend) -> Client:
    """Where others stand ready one of them leads by now: the first service comes back to stand by for that one."""
    services.start_standby(layout, options, FIRST)
    remember(layout, options)
    try:
        backend.start()
    except PlaitError as error:
        note(f"{error}; the service runs, and its nodes are tried again until they come")
    service = services.own_client(layout)
    service.status()
    return service


def _await_nodes(service: Client, layout: Layout, process: subprocess.Popen[bytes], backend: NodeBackend) -> None:
    """Wait until as many nodes are ready as were started, each of its size, as long as service or agents work."""
    patience, wanted, sizes = Patience(round(services.IDLE_S / services.LOOK_S)), backend.expected(), _sizes(backend)
    while True:
        ready = [node for node in service.nodes() if node.state in ("ready", "drained")]
        # Until its agent has reported, an existing node is shown in its previous state.
        there = {node.id for node in ready if sizes is None or sizes.get(node.id) == node.gpus}
        if len(there) >= wanted:
            return
        if process.poll() is not None:
            log = file_of(layout, FIRST, "log")
            raise InputError(f"the service stopped: {procs.last_line(log, 'it printed nothing')}; all of it: {log}")
        missing = [node.pid for node in backend.list_nodes() if node.name not in there and node.pid]
        if patience.over([process.pid, *missing]):
            why = _held(ready, sizes or {}) or (
                f"the others have done nothing for {services.IDLE_S:g} s: look at "
                f"{layout.home / 'nodes' / '*' / 'agent.log'}"
            )
            raise InputError(f"{len(there)} of {counted(wanted, 'node')} joined; {why}")
        time.sleep(services.LOOK_S)


def _held(nodes: list[NodeRow], sizes: Mapping[str, int]) -> str:
    """Which running jobs keep nodes at their old size, and the next command; empty if none do."""
    held = [n for n in nodes if n.jobs and sizes.get(n.id, n.gpus) != n.gpus]
    if not held:
        return ""
    each = [f"{', '.join(n.jobs)} run on {n.id} with {counted(n.gpus or 0, 'slot')}" for n in held]
    return (
        f"{'; '.join(each)}, and it cannot have {sizes[held[0].id]} before they have ended. "
        f"Start it as it was with: plait up --gpus-per-node {held[0].gpus}"
    )


def _sizes(backend: NodeBackend) -> dict[str, int] | None:
    """GPUs of each node by name, where all nodes are this machine's; None elsewhere."""
    if getattr(backend, "name", "") != "local":
        return None
    return {place.name: place.gpus for place in backend.list_nodes()}


def _refuse_losses(service: Client, backend: NodeBackend) -> None:
    """Raise `InputError` if local nodes that are not started any more still run jobs that would lose work."""
    gone = _no_longer_started(service, backend)
    losses = service.losses(nodes=gone).text if gone else ""
    if losses:
        raise InputError(
            f"{losses}; nothing was done, because {', '.join(gone)} would be taken away. Start as many nodes as "
            f"before, then move the jobs away: plait nodes drain {gone[-1]} --may-lose-work"
        )


def _no_longer_started(service: Client, backend: NodeBackend) -> list[str]:
    mine = _sizes(backend)
    if mine is None:
        return []
    known = (node.id for node in service.nodes() if node.state not in ("lost", "left"))
    return [name for name in known if re.fullmatch(r"n\d+", name) and name not in mine]


def welcome(service: Client, layout: Layout, home: str | None, took_s: float) -> list[str]:
    """Lines to print after the start of a cluster: URL, token and the next command.

    `home`: as given to `plait up`; `took_s`: seconds of the start.
    """
    found = service.status()
    known = service.nodes()
    there = [node for node in known if node.state in ("ready", "drained") and not node.gone]
    gone = [node.id for node in known if node.gone]
    nodes, gpus = len(there), sum(node.gpus or 0 for node in there)
    size = f"{counted(nodes, 'node')}, {counted(gpus, 'slot')}"
    with_home = "" if home is None else f" --home {home}"
    lines = [f"plait is up at {service.url} ({duration(took_s)}): {size}, policy {found.policy}"]
    if remembered(layout).get("web") != NONE:
        lines.append(f"web page: {service.url}/web/, logged in with: plait web{with_home}")
    lines.append(f"token of the administrator: {layout.token_file}")
    here = {state: n for state, n in found.jobs.items() if n and state not in ("finished", "failed", "cancelled")}
    active = ", ".join(f"{count} {state}" for state, count in here.items())
    if active:
        lines.append(f"jobs that were here go on: {active}")
    lines += _network_lines(service, found.policy)
    if found.prices:
        lines += price_lines(service.costs(limit=0).prices or {}, [str(node.gpu_kind) for node in there])
    if gone:
        lines.append(
            f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} no longer started; "
            f"remove it: plait nodes forget {gone[0]}{with_home}"
        )
    lines.append(f"next: plait submit{with_home} -- python train.py")
    lines.append(f"then: plait ls{with_home}; at the end: plait down{with_home}")
    return lines


def price_lines(per_gpu_h: Mapping[str, float], kinds: Sequence[str]) -> list[str]:
    """A warning where prices do not fit the GPU kinds that are there; nodes of other kinds may still join.

    >>> for line in price_lines({"a100": 2.5}, ["l4"]):
    ...     print(line)
    warning: price a100=2.5: no GPU is a 'a100'; the nodes have l4
    warning: l4 has no price and counts as free; plait down, then: plait up --price a100=2.5 --price l4=PRICE
    """
    prices, known = Prices(per_gpu_h), sorted(set(kinds))
    if not known:
        return []
    lines = [
        f"warning: price {kind}={per_gpu_h[kind]:g}: no GPU is a {kind!r}; the nodes have {', '.join(known)}"
        for kind in prices.unused(known)
    ]
    if free := prices.missing(known):
        all_of_them = [*(f"{kind}={price:g}" for kind, price in per_gpu_h.items()), *(f"{kind}=PRICE" for kind in free)]
        words, verb = " ".join(f"--price {one}" for one in all_of_them), "has" if len(free) == 1 else "have"
        counts = "counts" if len(free) == 1 else "count"
        lines.append(
            f"warning: {', '.join(free)} {verb} no price and {counts} as free; plait down, then: plait up {words}"
        )
    return lines


def _network_lines(service: Client, policy: str) -> list[str]:
    network = service.network()
    if network.network is None:
        return []
    there = [one for one in network.switches if one.aggregators]
    grants = "" if network.grants else f"; policy {policy} grants none of it, choose one with ina=, e.g. {EXAMPLE}"
    each = ", ".join(f"{one.switch} ({one.aggregators} aggregators, on {one.node or 'no node'})" for one in there)
    if not there:
        return [
            f"network {network.network}: no switch aggregates, for none has memory; {_give_memory(network.network)}"
        ]
    return [f"network {network.network}: {each}{grants}"]


def _give_memory(network: str) -> str:
    """Options that give memory to switches of a network without aggregators."""
    shape, _, options = network.partition(":")
    if shape not in SHAPES:
        return "give them some: aggregators = 4096 at its switches in the cluster file"
    return f"give them some: plait down, then plait up --network {shape}:{options}{',' * bool(options)}aggregators=4096"
