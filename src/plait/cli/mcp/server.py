"""The MCP server: its tools, and its instructions to hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

from plait.cli.mcp.actions import Actions
from plait.cli.mcp.logs import Logs
from plait.cli.mcp.questions import Questions
from plait.cli.mcp.service import Asking
from plait.cli.mcp.skill import skill_text
from plait.core.version import __version__

INSTRUCTIONS = (
    "plait schedules training jobs on a GPU cluster. Call what_if_submit before submit_job; explain_job shows why a "
    "job waits and forecast_job when it starts and ends; read_log and search_log show its output. Tools act with the "
    "token of the user and refuse what its role may not do (cluster_status shows it). An error is a sentence that "
    "names the next step. Seconds and bytes everywhere."
)
#: Where hosts find the skill file.
SKILL_URI = "plait://skill"

_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False)
_CHANGES = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False)
_ENDS = ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False)


def make_server(asking: Asking, *, read_only: bool = False) -> MCPServer[Any]:
    """The server with its tools; with `read_only` only tools that change nothing."""
    server: MCPServer[Any] = MCPServer(
        "plait", title="plait, a scheduler of GPU clusters", instructions=INSTRUCTIONS, version=__version__,
        log_level="WARNING",
    )  # fmt: skip
    for tool, hints in _tools(asking):
        if hints.read_only_hint or not read_only:
            server.add_tool(tool, annotations=hints, structured_output=True)
    server.resource(SKILL_URI, name="skill", title="How to work with plait", mime_type="text/markdown")(skill_text)
    return server


def _tools(asking: Asking) -> list[tuple[Callable[..., dict[str, Any]], ToolAnnotations]]:
    ask, logs, act = Questions(asking), Logs(asking), Actions(asking)
    reads: list[Callable[..., dict[str, Any]]] = [
        ask.cluster_status, ask.list_nodes, ask.list_jobs, ask.list_queue, ask.show_job, ask.explain_job,
        ask.forecast_job, ask.job_usage, ask.job_events, ask.wait_for_job, logs.read_log, logs.search_log,
        act.what_if_submit, ask.what_if_queue,
    ]  # fmt: skip
    return [
        *((tool, _READS) for tool in reads),
        (act.submit_job, _ADDS),
        (act.clone_job, _ADDS),
        (act.update_job, _CHANGES),
        (act.requeue_job, _CHANGES),
        (act.cancel_job, _ENDS),
    ]
