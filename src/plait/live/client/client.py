"""The service as an object: one method a request, with timeouts, and retries of requests that may be repeated.

    with Client.at() as plait:
        job = plait.submit([{"command": ["python", "train.py"], "workdir": "/data/run1"}])[0]
        plait.job(job.id).state

The service and the user come from PLAIT_URL and PLAIT_TOKEN, otherwise from the files that `plait up` leaves in the
home folder. Answers are frozen structs of `plait.live.api`, whose attributes have units in their names; an attribute
that the service left out is None. `msgspec.to_builtins(answer)` makes plain dictionaries of them, for example for
`pandas.DataFrame`. Entries of the event log and the state for simulations are plain dictionaries, as in saved files.

All methods raise `NotRunning` where no service answers, `Refused` where it refuses the request, and `ServiceError`
where its answer is an error of its own or of another version; each is a sentence that names the next command.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from plait.live.api import admin, cluster
from plait.live.api.costs import Costs, UsageOfJob
from plait.live.api.explain import ComparedQueues, Explanation, SubmissionOutlook
from plait.live.api.jobs import (
    FINAL,
    CancelledJob,
    ChangedJob,
    ConsoleOutput,
    JobId,
    JobRow,
    LogPart,
    SubmittedJob,
    WholeJob,
)
from plait.live.client import transport
from plait.live.client.transport import (
    Broken,
    Caller,
    Json,
    NotRunning,
    Refused,
    ServiceError,
    read_service_file,
    segment,
    sent_events,
    service_url,
)
from plait.live.layout import array_index, job_number
from plait.live.trackers import addresses_in

__all__ = ["FINAL", "PAGE", "Client", "NotRunning", "Refused", "ServiceError", "read_service_file", "service_url"]

T = TypeVar("T")
#: Entries of a job's history that come in one answer.
PAGE = 1000


class Entries(msgspec.Struct):
    """Entries of the event log, as they are stored: {seq, at_s, event, commands}."""

    events: list[Json]


class Client(Caller):
    """Requests to a service, one method each."""

    # -- jobs ---------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Mapping[str, Any]], *, key: str | None = None) -> list[SubmittedJob]:
        """Submit jobs, all or none; when this returns they are stored.

        `jobs`: fields as in a job file. Repeated where no answer comes: by the `key`, a generated one unless given,
        the service recognises the repetition.
        """
        if len(jobs) == 1:
            return [self._change(SubmittedJob, "POST", "/v1/jobs", jobs[0], key)]
        return self._change(list[SubmittedJob], "POST", "/v1/jobs", {"jobs": [dict(job) for job in jobs]}, key)

    def what_if(self, job: Mapping[str, Any]) -> SubmissionOutlook:
        """When a job like this would start and end, and what blocks it; nothing is submitted."""
        return self._request(SubmissionOutlook, "POST", "/v1/what-if", body=dict(job), again=True)

    def what_if_queue(
        self, *, policy: str | None = None, nodes: str | None = None, without: Sequence[str] = (),
        priority: Mapping[str, float] | None = None,
    ) -> ComparedQueues:  # fmt: skip
        """Who of the queue would gain and lose under another policy, with other nodes or priorities."""
        body: Json = {"policy": policy, "nodes": nodes, "without": list(without), "priority": dict(priority or {})}
        return self._request(ComparedQueues, "POST", "/v1/what-if/queue", body=body, again=True)

    def jobs(
        self, *, state: str | None = None, user: str | None = None, text: str = "", tags: Sequence[str] = (),
        array: str | None = None, arrays: bool = False, limit: int = 100, offset: int = 0,
    ) -> list[JobRow]:  # fmt: skip
        """Jobs, newest first, as the service lists them.

        `state`: one or several, separated by commas. `text`: only jobs that have it in id, name, user, project, model,
        tags, command or nodes, in any case. `tags`: only jobs with all of these; `array`: only its members; `arrays`:
        each array is one row.
        """
        return self._get(
            list[JobRow], "/v1/jobs", state=state, user=user, text=text or None, tag=list(tags), array=array,
            arrays=arrays or None, limit=limit, offset=offset,
        )  # fmt: skip

    def job(self, job: str) -> WholeJob:
        """Everything about one job, given by its id or its name."""
        return self._get(WholeJob, f"/v1/jobs/{segment(job)}")

    def id_of(self, job: str) -> str:
        """The id of a job that is given by its id or its name.

        Later requests, and a repeated one, mean the same job, whatever is submitted meanwhile.
        """
        known = job_number(job) is not None or array_index(job) is not None
        return job if known else self.job(job).id

    def cancel(self, job: str) -> CancelledJob:
        """Cancel a job; doing it twice is the same as once."""
        return self._request(CancelledJob, "DELETE", f"/v1/jobs/{segment(self.id_of(job))}", again=True)

    def requeue(self, job: str, *, may_lose_work: bool = False, key: str | None = None) -> ChangedJob:
        """Send a job back to the queue after a checkpoint; `Refused` if it has ended.

        `may_lose_work`: also if it would begin at the beginning. Sent again where no answer comes, under its `key`.
        """
        body = {"may_lose_work": may_lose_work}
        return self._change(ChangedJob, "POST", f"/v1/jobs/{segment(self.id_of(job))}/requeue", body, key)

    def update(
        self, job: str, fields: Mapping[str, Any], *, may_lose_work: bool = False, key: str | None = None
    ) -> ChangedJob:
        """Change `priority`, `class`, `deadline_s`, `hold` or the size of a job.

        None: as if it had not been given. `may_lose_work`: another size also if the job would begin at the beginning.
        """
        body = {**fields, "may_lose_work": may_lose_work}
        return self._change(ChangedJob, "PATCH", f"/v1/jobs/{segment(self.id_of(job))}", body, key)

    def clone(
        self, job: str, fields: Mapping[str, Any] | None = None, *, from_checkpoint: bool = False,
        key: str | None = None,
    ) -> SubmittedJob:  # fmt: skip
        """Submit a job like this one, but for these `fields`; it begins at the beginning.

        `from_checkpoint`: it starts from the last checkpoint of this one; `Refused` if that has none, has not ended or
        is another user's.
        """
        body = {**(fields or {}), **({"from_checkpoint": True} if from_checkpoint else {})}
        return self._change(SubmittedJob, "POST", f"/v1/jobs/{segment(self.id_of(job))}/clone", body, key)

    def _change(self, kind: type[T], method: str, path: str, body: Mapping[str, Any], key: str | None) -> T:
        headers = {"Idempotency-Key": key or uuid.uuid4().hex}
        return self._request(kind, method, path, body=dict(body), again=True, headers=headers)

    def console(self, job: str, name: str, fields: Mapping[str, Any]) -> ConsoleOutput:
        """One exchange with a console of a job, whose `name` is new for each; `fields` as the API describes them."""
        path = f"/v1/jobs/{segment(self.id_of(job))}/consoles/{segment(name)}"
        return self._request(ConsoleOutput, "POST", path, body=dict(fields), again=True)

    def explain(self, job: str) -> Explanation:
        """Why a job waits, or how it shares."""
        return self._get(Explanation, f"/v1/jobs/{segment(job)}/explain")

    def usage(self, job: str, *, points: int | None = None) -> UsageOfJob:
        """Use of a job over time, in at most so many `points`: GPUs, CPU, memory, disk, stages, goodput, batch."""
        return self._get(UsageOfJob, f"/v1/jobs/{segment(job)}/usage", points=points)

    def costs(self, *, hours: int = 24, job: str | None = None, limit: int = 100) -> Costs:
        """Costs of the cluster in the last `hours`, by user, project and job, or one `job` alone."""
        return self._get(Costs, "/v1/costs", hours=hours, job=job, limit=limit)

    def tell_forecast(self, job: str, start: Sequence[float | None] | None, end: Sequence[float | None]) -> None:
        """Have a forecast kept: early end, middle, late end, seconds from now, None for never; see `track_record`."""
        body: Json = {"start": start, "end": end}
        self._request(JobId, "POST", f"/v1/jobs/{segment(job)}/forecast", body=body, again=True)

    def job_events(self, job: str, *, newest: int | None = None) -> list[Json]:
        """Events of one job, oldest first: all of them, page by page, or the `newest` so many."""
        path = f"/v1/jobs/{segment(job)}/events"
        if newest is not None and newest <= PAGE:
            return self._get(Entries, path, newest=True, limit=newest).events
        entries: list[Json] = []
        while page := self._get(Entries, path, after=entries[-1]["seq"] if entries else 0, limit=PAGE).events:
            entries += page
            if len(page) < PAGE:
                break
        return entries if newest is None else entries[-newest:]

    def logs(
        self, job: str, *, rank: int = 0, offset: int = 0, limit: int = 65_536, epoch: int | None = None
    ) -> LogPart:
        """Part of a log; `offset` and `limit` in bytes, `epoch`: attempt, None for the newest."""
        path = f"/v1/jobs/{segment(job)}/logs"
        return self._get(LogPart, path, rank=rank, offset=offset, limit=limit, epoch=epoch)

    def addresses(self, job: str) -> list[str]:
        """Addresses of experiment trackers that the newest attempt of a job has printed, at the beginning or lately."""
        first = self.logs(job)
        texts = [first.text]
        if first.next < first.size:
            texts.append(self.logs(job, offset=-65_536).text)
        return addresses_in("\n".join(texts))

    def follow(
        self, job: str, *, rank: int = 0, offset: int = 0, notice: Callable[[str], object] | None = None,
        waits: Callable[[], bool] = lambda: False,
    ) -> Iterator[str]:  # fmt: skip
        """The log as it grows, over all attempts, until the job has ended; reconnects and continues where it was.

        `notice` gets a sentence when an attempt is over and when the next one begins. `waits` returns whether to keep
        trying while the service does not answer; without it `NotRunning` is raised after a few tries.
        """
        path = f"/v1/jobs/{segment(job)}/logs"
        failed, heard = 0, time.monotonic()
        while True:
            try:
                query = {"rank": rank, "offset": offset, "follow": 1}
                with self._http.stream("GET", path, params=query, timeout=transport.quiet()) as answer:
                    if answer.status_code >= 400:
                        answer.read()
                        if self._follows(answer, heard):
                            continue
                        self._refuse(answer)
                    self.answered = True
                    for kind, data in sent_events(answer.iter_lines()):
                        failed, heard = 0, time.monotonic()
                        if kind == "end":
                            return
                        if kind == "error":
                            raise ServiceError(str(data.get("message", data)))
                        if kind == "notice":
                            if notice is not None:
                                notice(str(data.get("message", "")))
                            continue
                        text = str(data.get("text", ""))
                        offset = int(data.get("next", data.get("offset", offset) + len(text.encode())))
                        if text:
                            yield text
            except Broken as error:
                if self._follows(error, heard) or self._moves():
                    continue
                failed, heard = 0 if self.alive() else failed + 1, time.monotonic()
                if failed > len(transport.PAUSES_S) and not waits():
                    raise self._gone(error) from error
                time.sleep(transport.PAUSES_S[min(max(failed, 1), len(transport.PAUSES_S)) - 1])
            else:
                try:
                    if self.job(job).state in FINAL:
                        return
                except NotRunning:
                    if not waits():
                        raise

    # -- the cluster --------------------------------------------------------------------------------------

    def status(self) -> cluster.ClusterStatus:
        """The service in a few figures."""
        return self._get(cluster.ClusterStatus, "/v1/status")

    def state(self) -> Json:
        """Everything a forward simulation needs, as `plait.outlook.queue` reads it."""
        return self._get(dict[str, Any], "/v1/state")

    def network(self) -> cluster.NetworkOfCluster:
        """The network: switches, who serves them, and what jobs have of them."""
        return self._get(cluster.NetworkOfCluster, "/v1/network")

    def queue(self, limit: int = 100, offset: int = 0) -> cluster.Queue:
        """Jobs that run or wait in the order of the last decision, with the numbers behind it."""
        return self._get(cluster.Queue, "/v1/queue", limit=limit, offset=offset)

    def nodes(self) -> list[cluster.NodeRow]:
        """The nodes and what they are doing."""
        return self._get(list[cluster.NodeRow], "/v1/nodes")

    def drain(self, node: str, *, may_lose_work: bool = False) -> cluster.NodeRow:
        """Give a node no new work, and stop what runs there, after a checkpoint where there can be one.

        `Refused` if a job there would lose work and not `may_lose_work`.
        """
        body = {"may_lose_work": True} if may_lose_work else None
        return self._request(cluster.NodeRow, "POST", f"/v1/nodes/{segment(node)}/drain", body=body, again=True)

    def losses(self, jobs: Sequence[str] = (), nodes: Sequence[str] = ()) -> cluster.Losses:
        """Work that running jobs would lose if they were stopped now; all jobs if none is named."""
        return self._get(cluster.Losses, "/v1/losses", job=list(jobs), node=list(nodes))

    def resume(self, node: str) -> cluster.NodeRow:
        """Let a drained node work again."""
        return self._request(cluster.NodeRow, "POST", f"/v1/nodes/{segment(node)}/resume", again=True)

    def node_gone(self, node: str, why: str = "", *, certain: bool = True) -> cluster.NodeRow:
        """Report a node as dead, on the word of its backend: once it is silent, no job waits for it.

        Not `certain`: it may only be out of reach, so that its lease is waited for.
        """
        body = {"why": why, "certain": certain}
        return self._request(cluster.NodeRow, "POST", f"/v1/nodes/{segment(node)}/gone", body=body, again=True)

    def forget_node(self, node: str) -> cluster.NodeForgottenAnswer:
        """Take a node that has gone out of the lists; `Refused` while something may run there."""
        return self._request(cluster.NodeForgottenAnswer, "DELETE", f"/v1/nodes/{segment(node)}")

    def reservations(self) -> list[cluster.ReservationRow]:
        """Reservations of nodes that have not ended, the first to begin first."""
        return self._get(list[cluster.ReservationRow], "/v1/reservations")

    def reserve(
        self, nodes: Sequence[str], project: str, *, for_s: float, in_s: float = 0.0, key: str | None = None
    ) -> cluster.ReservationRow:
        """Keep nodes for jobs of `project` alone for `for_s` seconds, in `in_s` seconds from now.

        Raises `Refused` for unknown nodes and projects, and where one of the nodes is reserved at that time.
        """
        body: Json = {"nodes": list(nodes), "project": project, "for_s": for_s, "in_s": in_s}
        return self._change(cluster.ReservationRow, "POST", "/v1/reservations", body, key)

    def cancel_reservation(self, reservation: str) -> cluster.ReservationGone:
        """Let jobs of all projects use reserved nodes again."""
        return self._request(cluster.ReservationGone, "DELETE", f"/v1/reservations/{segment(reservation)}")

    def policy(self) -> cluster.PolicyAnswer:
        """The policy that decides."""
        return self._get(cluster.PolicyAnswer, "/v1/policy")

    def set_policy(self, policy: str, *, may_lose_work: bool = False) -> cluster.PolicyAnswer:
        """Let another policy decide from now on; with `may_lose_work` it may stop jobs without a checkpoint."""
        body = {"policy": policy} | ({"may_lose_work": True} if may_lose_work else {})
        return self._request(cluster.PolicyAnswer, "PUT", "/v1/policy", body=body, again=True)

    def events(self, after: int = 0, limit: int = 1000) -> list[Json]:
        """The event log after this number: [{seq, at_s, event, commands}]."""
        return self._get(Entries, "/v1/events", after=after, limit=limit).events

    def all_events(self, after: int = 0) -> Iterator[Json]:
        """The whole event log, page by page."""
        while page := self.events(after):
            yield from page
            after = int(page[-1]["seq"])

    def backup(self, path: str) -> admin.BackupMade:
        """Write a consistent copy of the store on the machine of the service."""
        return self._request(admin.BackupMade, "POST", "/v1/backup", body={"path": path})

    # -- people -------------------------------------------------------------------------------------------

    def me(self) -> admin.Me:
        """Whose token is used."""
        return self._get(admin.Me, "/v1/me")

    def web_link(self) -> str:
        """A link that logs a browser in, once, within two minutes; `Refused` where the service has no pages."""
        return self.url + self._request(dict[str, str], "POST", "/web/codes")["path"]

    def tokens(self) -> list[admin.TokenRow]:
        """The tokens, without their secrets."""
        return self._get(list[admin.TokenRow], "/v1/tokens")

    def create_token(
        self, user: str, role: str, project: str | None = None, *, expires_in_s: float | None = None,
        node: str | None = None,
    ) -> admin.NewToken:  # fmt: skip
        """A new token; its secret is shown only in this answer. Tokens of agents (role agent) name their node."""
        given = {"project": project, "expires_in_s": expires_in_s, "node": node}
        body = {"user": user, "role": role} | {name: value for name, value in given.items() if value}
        return self._request(admin.NewToken, "POST", "/v1/tokens", body=body)

    def revoke_token(self, token: str) -> admin.RevokedToken:
        """A token that counts no more."""
        return self._request(admin.RevokedToken, "DELETE", f"/v1/tokens/{segment(token)}", again=True)

    def projects(self) -> list[admin.ProjectRow]:
        """The projects with their quotas and shares."""
        return self._get(list[admin.ProjectRow], "/v1/projects")

    def set_project(self, name: str, **given: float | None) -> admin.ProjectSettings:
        """Make a project, or change what is given of one: quota_gpus, weight, default_time_s, most_time_s,
        most_idle_s.

        None lifts a quota or time limit; times are in seconds.
        """
        body = {"name": name, **given}
        return self._request(admin.ProjectSettings, "POST", "/v1/projects", body=body)

    def delete_project(self, name: str) -> admin.ProjectGone:
        """Remove a project."""
        return self._request(admin.ProjectGone, "DELETE", f"/v1/projects/{segment(name)}", again=True)
