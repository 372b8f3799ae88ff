"""Options of the processes, each declared once with help, unit and default."""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.options import option


@dataclass(frozen=True)
class SwitchOptions:
    """The options of `plait network switch`."""

    control: str = option("Path of the control socket", default="")
    name: str = option("Name of the switch in the cluster", default="switch")
    aggregators: int = option("Aggregators, each of one payload", default=4096, least=1, most=1 << 24)
    payload: int = option("Payload of packets, bytes", default=1024, least=12, most=65_480)
    listen: str = option("HOST:PORT for datagrams; port 0: any", default="127.0.0.1:0")
    server: str = option("HOST:PORT of the aggregation server", default="", unset="dedicated slots alone")
    max_age_s: float = option(
        "Seconds after which incomplete aggregators are freed",
        default=0.0,
        least=0,
        unset="the minimum of the jobs' values",
    )
    one_by_one: bool = option("Move datagrams one by one even where the kernel has batches", default=False)


@dataclass(frozen=True)
class ServerOptions:
    """The options of `plait network server`."""

    control: str = option("Path of the control socket", default="")
    name: str = option("Name of the server", default="server")
    payload: int = option("Payload of packets, bytes", default=1024, least=12, most=65_480)
    window: int = option("Largest window of a job, packets", default=1024, least=1, most=65_536)
    jobs: int = option("Most jobs at once", default=16, least=1, most=65_536)
    slots: int = option("Most aggregators of a switch, for index shared_cycle", default=16_384, least=0, most=1 << 24)
    listen: str = option("HOST:PORT for datagrams; port 0: any", default="127.0.0.1:0")
    one_by_one: bool = option("Move datagrams one by one even where the kernel has batches", default=False)


#: Options by kind of process.
KINDS: dict[str, type[SwitchOptions] | type[ServerOptions]] = {"switch": SwitchOptions, "server": ServerOptions}
