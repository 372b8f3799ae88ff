"""Entries of the event log as sentences: what happened and what was decided."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from plait.core.resources import CPU_KIND
from plait.core.words import QUOTED, counted, duration
from plait.live.scheduler.records.end_words import cause_line

Message = Mapping[str, Any]


def in_words(message: Message) -> str:
    """One event or command as a short sentence; the name of its type if it is unknown.

    >>> in_words({"type": "NodeJoined", "node": {"id": "n0"}}), in_words({"type": "JobFinished", "jobs": [3, 4]})
    ('node n0 joined', 'j-3, j-4 finished')
    """
    kind = str(message.get("type"))
    words = _WORDS.get(kind)
    return f"{kind} {_jobs(message)}".strip() if words is None else words(message)


#: Types of frequent events that users need only to explain a decision; as commands, the ones that only set an alarm.
QUIET = (
    "ProgressReported", "UsageReported", "NetworkReported", "GoodputReported", "ReplanDue", "JobKept", "JobUpdated",
    "JobProfiled", "ForecastRecorded", "ProfileRecorded", "Wake",
)  # fmt: skip


def telling(event: Message, commands: Sequence[Message]) -> bool:
    """Whether an entry shows an action of a user, a change of a job or node, or a decision."""
    return any(one["type"] not in QUIET for one in (event, *commands))


def step_in_words(event: Message, commands: Sequence[Message], *, whole: bool = False) -> str:
    """An event and the commands that it caused; a shared reason is printed once.

    Alarms are left out unless it is to be `whole`.
    """
    shown = [one for one in commands if whole or one["type"] not in QUIET]
    reason = _because(event)
    said = (in_words(command) for command in shown)
    caused = "; ".join(words.replace(reason, "", 1) if reason else words for words in said)
    return in_words(event) + (f"  ->  {caused}" if caused else "")


def brief(reason: str) -> str:
    """A reason without the quoted lines of the log; reasons of older logs do not begin with their cause.

    >>> brief("KeyError: 'a' (exit code 1); last lines of the log: Traceback: | line 1 | KeyError: 'a'")
    "KeyError: 'a' (exit code 1)"
    >>> brief("its process ended with exit code 1; last lines of the log: Traceback: | line 1 | KeyError: 'a'")
    "its process ended with exit code 1: KeyError: 'a'"
    """
    head, quoted, lines = reason.partition(QUOTED)
    return f"{head}: {cause_line(lines)}" if quoted and re.search(r"exit code \d+$", head) else head


#: Events of a job that gets another size from the policy.
RESIZED = ("shrunk", "grown")


def stop_in_words(why: str, reason: str) -> str:
    """Why an attempt has to stop, and for which user or jobs.

    >>> stop_in_words("requeued", "by ann"), stop_in_words("drained", "")
    ('requeued by ann', 'drained')
    >>> stop_in_words("moved", "grown from 2 GPUs to 4; policy pollux")
    'grown from 2 GPUs to 4; policy pollux'
    """
    return reason if reason.startswith(RESIZED) else f"{why} {reason}".strip()


def _jobs(message: Message) -> str:
    jobs = message.get("jobs", [message["job"]] if "job" in message else [])
    return ", ".join(str(job.get("id")) if isinstance(job, Mapping) else f"j-{job}" for job in jobs)


def _because(message: Message) -> str:
    reason = message.get("reason") or ", ".join(message.get("reasons") or ())
    return f": {brief(reason)}" if reason else ""


def _requested(message: Message) -> str:
    numbers = range(message["first"], message["first"] + len(message["requests"]))
    return f"{message['owner']} submitted {', '.join(f'j-{number}' for number in numbers)}"


def _groups(message: Message) -> str:
    """Who runs on how many GPUs, if several; the entry of the start names them, or the slot of a job without GPUs."""
    said = []
    for group in message["groups"]:
        names = [f"j-{m['job'] if isinstance(m, Mapping) else m}" for m in group["jobs"]]
        turns = f", taking turns by {group['gate']}" if group.get("gate") else ""
        guest = ", as a guest" if group.get("guest") else ""
        gpus = f" on {len(group['gpus'])} GPUs" if len(group["gpus"]) > 1 else ""
        said.append(f"{' with '.join(names)}{gpus}{turns}{guest}")
    return "; ".join(said)


def _stop(message: Message) -> str:
    how = " to memory" if message.get("suspend") else " after a checkpoint" if message.get("checkpoint", True) else ""
    return f"stop {_jobs(message)}{how}"


def _grant(message: Message) -> str:
    """Who has which memory of which switches from now on, and who has none any more, and why."""
    said = [
        f"j-{one['job']} aggregates at {one['switch']}" + (f" with {one['size']} aggregators" if one["size"] else "")
        for one in message["grants"]
    ]
    said += [f"memory of {', '.join(f'j-{job}' for job in message['released'])} is released"] * bool(
        message["released"]
    )
    said += [f"j-{job} runs without aggregation: {why}" for job, why in message.get("without", {}).items()]
    return "; ".join(said)


def _stop_costs(message: Message) -> str:
    each = zip(message["jobs"], message["checkpoints"], message["restart_s"], strict=True)
    return ", ".join(f"j-{job} {_stop_cost(saves, cost_s)}" for job, saves, cost_s in each)


def _stop_cost(saves: int, restart_s: float | None) -> str:
    """The cost of a stop of a job, by `plait.core.jobs.Checkpoints`."""
    if not saves:
        return "cannot resume from a checkpoint"
    return "can go on from a checkpoint" + ("" if restart_s is None else f"; a restart takes {duration(restart_s)}")


def _attempt(message: Message) -> str:
    """Which attempt, where it is not the first."""
    return f" (attempt {message['epoch']})" if message.get("epoch", 1) != 1 else ""


def _began(message: Message) -> str:
    gpus: dict[str, dict[int, None]] = {}
    for node, gpu in message["ranks"]:
        gpus.setdefault(node, {})[gpu] = None
    where = ", ".join(
        f"{node} {'slot' if node == CPU_KIND else 'GPU'}{'s' * (len(held) > 1)} {', '.join(map(str, held))}"
        for node, held in gpus.items()
    )
    return f"{_jobs(message)} started on {where}{_attempt(message)}"


def _rank_ended(message: Message) -> str:
    code = message.get("exit_code")
    how = "" if code is None else f" with exit code {code}"
    because = brief(message.get("reason") or "").removeprefix(f"exit code {code}").lstrip(":; ")
    return f"process {message['rank']} of {_jobs(message)} ended{how}{because and ': '}{because}{_attempt(message)}"


def _over(message: Message) -> str:
    lost = f", {duration(message['lost_work_s'])} of work lost" if message.get("lost_work_s") else ""
    outcome = str(message.get("outcome") or "it ended")
    return f"{_jobs(message)} left its GPUs: {outcome}{_because(message)}{lost}{_attempt(message)}"


def _by(message: Message) -> str:
    return f" by {message['by']}" if message.get("by") else ""


def _updated(message: Message) -> str:
    before, fields = message["before"], message["fields"]
    if list(fields) == ["hold"]:
        return f"{message['by']} {'held' if fields['hold'] else 'released'} {_jobs(message)}"
    said = [f"{name} from {_value(before.get(name))} to {_value(value)}" for name, value in fields.items()]
    return f"{message['by']} changed {_jobs(message)}: {', '.join(said)}"


def _value(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _held(message: Message) -> str:
    """Which jobs may not run yet, and which may from now on."""
    pairs = list(zip(message["jobs"], message["held"], strict=True))
    said = [(", ".join(f"j-{job}" for job, flag in pairs if bool(flag) is held), held) for held in (True, False)]
    return "; ".join(f"{names} {'may not run yet' if held else 'may run now'}" for names, held in said if names)


def _project_set(message: Message) -> str:
    if message.get("gone"):
        return f"project {message.get('name')} has no settings of its own any more"
    quota, weight = message.get("gpu_quota"), message.get("weight")
    most = "no limit of GPUs" if quota is None else f"at most {counted(quota, 'GPU')} at once"
    return f"project {message.get('name')}: {most}" + ("" if weight is None else f", weight {weight:g}")


#: Why the rest of an attempt stops after one of its processes went wrong by itself.
_FAULTS = {
    "failed": "a process failed",
    "start": "a process could not start",
    "requeue": "a process left to wait again",
}


def _stop_asked(message: Message) -> str:
    why = stop_in_words(message.get("why") or "", message.get("reason") or "")
    if why in _FAULTS:
        return f"all of {_jobs(message)} was asked to stop: {_FAULTS[why]}{_attempt(message)}"
    return f"{_jobs(message)} was asked to stop" + (f": {why}" if why else "") + _attempt(message)


def _ranks_told(message: Message) -> str:
    if message.get("granted"):
        return f"{_jobs(message)} may aggregate at {message['switch']}, region {message['lease']}{_attempt(message)}"
    return f"{_jobs(message)} exchanges gradients without switches{_because(message)}{_attempt(message)}"


def _served(message: Message) -> str:
    if not message["node"]:
        return f"no node serves switch {message['switch']}"
    how = "serves" if message.get("incarnation") else "is to serve"
    return f"node {message['node']} {how} switch {message['switch']}"


def _reserved(message: Message) -> str:
    one, at_s = message["reservation"], message["at_s"]
    begins = f"in {duration(one['from_s'] - at_s)}" if one["from_s"] > at_s else "from now on"
    lasts = duration(one["until_s"] - max(one["from_s"], at_s))
    by = one.get("by") or "the run"
    return f"{by} reserved {', '.join(one['nodes'])} for project {one['project']} {begins} for {lasts} ({one['id']})"


def _sentence(text: str) -> Callable[[Message], str]:
    """A function that fills jobs, node and reason of a message into `text`."""

    def words(message: Message) -> str:
        node = message.get("node")
        name = node.get("id") if isinstance(node, Mapping) else node
        return text.format(jobs=_jobs(message), node=name, because=_because(message))

    return words


_WORDS: Mapping[str, Callable[[Message], str]] = {
    "Requested": _requested,
    "JobSubmitted": _sentence("{jobs} joined the queue"),
    "JobFinished": _sentence("{jobs} finished"),
    "JobFailed": lambda m: f"{_jobs(m)} failed{_because(m)}" + ("; it is tried again" if m.get("again") else ""),
    "JobCancelled": lambda m: f"{_jobs(m)} was cancelled{_by(m)}",
    "CancelAsked": lambda m: f"{_jobs(m)} is to be cancelled{_by(m)}",
    "RequeueAsked": lambda m: f"{_jobs(m)} was sent back to the queue{_by(m)}",
    "UpdateAsked": _updated,
    "JobRequeued": _sentence("{jobs} waits again"),
    "JobUpdated": _sentence("what policies know of {jobs} was changed"),
    "LaunchFailed": _sentence("{jobs} could not start{because}"),
    "AttemptBegan": _began,
    "StopAsked": _stop_asked,
    "RankEnded": _rank_ended,
    "AttemptOver": _over,
    "Restarted": lambda m: f"{_jobs(m)} runs again; its restart took {duration(m.get('cost_s'))}{_attempt(m)}",
    "ProgressReported": _sentence("{jobs} made progress"),
    "GoodputReported": _sentence("{jobs} reported goodput"),
    "UsageReported": _sentence("the use of GPUs by {jobs} was measured"),
    "NetworkReported": _sentence("the exchange of gradients by {jobs} was measured"),
    "JobProfiled": _sentence("the stages of {jobs} were measured"),
    "ProfileRecorded": lambda m: "a measurement was kept for later jobs" + (f", from {_jobs(m)}" if "job" in m else ""),
    "StopCostReported": _stop_costs,
    "JobHeld": _held,
    "JobKept": _sentence("how long {jobs} keeps its GPUs was set"),
    "ForecastRecorded": _sentence("a forecast for {jobs} was kept"),
    "ServiceStarted": lambda m: f"the service went on from its store, {duration(m['away_s'])} after the entry before",
    "AgentRestarted": _sentence("the agent of node {node} started again"),
    "Undelivered": lambda m: f"channel {m['channel']} did not deliver {m['event']!r} of {_jobs(m)}: {m['why']}",
    "NodeJoined": _sentence("node {node} joined"),
    "NodeLost": _sentence("node {node} is out of service"),
    "NodeSuspected": lambda message: f"node {message['node']} {'is silent' if message['suspect'] else 'reports again'}",
    "NodesReserved": _reserved,
    "ReservationCancelled": lambda m: f"reservation {m['id']} was cancelled{_by(m)}",
    "SwitchLost": lambda m: f"switch {m['switch']} was lost",
    "SwitchJoined": lambda m: f"switch {m['switch']} joined",
    "SwitchServed": _served,
    "RanksTold": _ranks_told,
    "RanksMoved": _sentence("{jobs} no longer uses the memory of a switch that it had before"),
    "NumbersSpent": _sentence("{jobs} gets another number on the wire, for its packets have used up half of theirs"),
    "NetworkSet": lambda m: f"the network is {m['text']}" if m.get("text") else "there is no network any more",
    "NodeDrained": lambda m: f"node {m['node']} takes " + ("no new work" if m.get("drained", True) else "work again"),
    "NodeLeaving": lambda m: f"node {m['node']} " + ("is about to leave" if m.get("leaving", True) else "stays"),
    "NodeForgotten": _sentence("node {node} was taken off the list"),
    "PolicySet": lambda m: f"policy {m.get('policy')} decides from now on",
    "ProjectSet": _project_set,
    "ReplanDue": lambda m: "a decision was due",
    "Launch": lambda m: f"start {_groups(m)}",
    "Adjust": lambda m: f"change {_groups(m)}",
    "Stop": _stop,
    "Grant": _grant,
    "Refuse": _sentence("gave up on {jobs}{because}"),
    "Wake": lambda m: f"decide again at {m['at_s']:.2f} s",
}
