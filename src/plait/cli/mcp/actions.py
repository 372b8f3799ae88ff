"""Tools that submit and change jobs, and the question that takes a job but submits nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from plait.cli.mcp.arguments import Format, Job, JobFile, Key, LoseWork, MaybeJobFields
from plait.cli.mcp.service import Asking, fields, readable_errors
from plait.cli.submission import as_submitted_here
from plait.live.protocol.job_file import jobs_of_text

Priority = Annotated[float | None, Field(description="Higher comes first, where the policy orders by it.")]
JobClass = Annotated[Literal["guaranteed", "opportunistic", "auto"] | None, Field(description="Class of the job.")]
Deadline = Annotated[
    float | None, Field(description="Seconds from submission until it should have ended; 0 removes the deadline.", ge=0)
]
Hold = Annotated[
    bool | None, Field(description="true: a waiting job does not start until it is released; false: release it.")
]
Gpus = Annotated[int | None, Field(description="Number of GPUs.", ge=1, le=100_000)]
LeastGpus = Annotated[int | None, Field(description="Minimum GPUs of an elastic job.", ge=1, le=100_000)]
MostGpus = Annotated[int | None, Field(description="Most GPUs of an elastic job.", ge=1, le=100_000)]


@dataclass(frozen=True)
class Actions:
    """Tools that take a job to submit, or change jobs; the role of the token decides whether they may."""

    asking: Asking

    def submit_job(
        self,
        job: MaybeJobFields = None,
        job_file: JobFile = None,
        file_format: Format = "yaml",
        key: Key = None,
    ) -> dict[str, Any]:
        """Submit a job, or all jobs of a job file (all or none): {jobs: [{id, number, remarks}]}.

        When this returns the jobs are stored and run as soon as the policy gives them GPUs. `remarks` are fields
        that the policy ignores. The command is started without a shell: write ["sh", "-c", "..."] for one.
        """
        ready = self._jobs(job, job_file, file_format)
        with self.asking.service() as service:
            return {"jobs": [fields(one) for one in service.submit(ready, key=key)]}

    def what_if_submit(
        self,
        job: MaybeJobFields = None,
        job_file: JobFile = None,
        file_format: Format = "yaml",
    ) -> dict[str, Any]:
        """Forecast when a job would start and end, what blocks it, and what would be sooner or cheaper; submit nothing.

        `start` and `end` are in seconds from now: `middle_s`, `half_s` (holds in one of two cases), `wide_s` (in four
        of five). `variants` are other sizes, GPU kinds, classes or times. Each job of a file is forecast by itself.
        """
        ready = self._jobs(job, job_file, file_format)
        with self.asking.service() as service:
            return {"jobs": [fields(service.what_if(one)) for one in ready]}

    def clone_job(
        self, job: Job, priority: Priority = None, job_class: JobClass = None, deadline_s: Deadline = None,
        gpus: Gpus = None, min_gpus: LeastGpus = None, max_gpus: MostGpus = None, key: Key = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Submit a job like another one, which may have ended; it begins at the beginning.

        Arguments that are left out are as in the other job.
        """
        changes = _changes(priority, job_class, deadline_s, gpus, min_gpus, max_gpus)
        with self.asking.service() as service:
            return fields(service.clone(job, changes, key=key))

    def update_job(
        self, job: Job, priority: Priority = None, job_class: JobClass = None, deadline_s: Deadline = None,
        gpus: Gpus = None, min_gpus: LeastGpus = None, max_gpus: MostGpus = None, hold: Hold = None,
        may_lose_work: LoseWork = False, key: Key = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Change priority, class, deadline or size of an unfinished job, hold or release it: {id, state, remarks}.

        Priority, class and deadline touch no process. A running job whose size no longer fits stops after a checkpoint
        and continues at its new size. Fields that are left out stay.
        """
        changes = _changes(priority, job_class, deadline_s, gpus, min_gpus, max_gpus)
        if hold is not None:
            changes["hold"] = hold
        if not changes:
            raise ToolError(
                "nothing is to change; give priority, job_class, deadline_s, hold, gpus, min_gpus or max_gpus"
            )
        with self.asking.service() as service:
            return fields(service.update(job, changes, may_lose_work=may_lose_work, key=key))

    def requeue_job(self, job: Job, may_lose_work: LoseWork = False, key: Key = None) -> dict[str, Any]:
        """Stop a running job after a checkpoint and send it back to the queue, without a failure: {id, state}."""
        with self.asking.service() as service:
            return fields(service.requeue(job, may_lose_work=may_lose_work, key=key))

    def cancel_job(self, job: Job) -> dict[str, Any]:
        """Cancel a job; a running one is stopped. It does not come back: clone_job submits it again."""
        with self.asking.service() as service:
            return fields(service.cancel(job))

    def _jobs(self, job: dict[str, Any] | None, job_file: str | None, file_format: str) -> list[dict[str, Any]]:
        """The jobs that were given, ready to be sent."""
        if (job is None) == (job_file is None):
            raise ToolError("give either job (fields) or job_file (text); one of them, not both")
        with readable_errors():
            given = [job] if job is not None else jobs_of_text(job_file or "", f"job_file.{file_format}")
            names = ["job"] if job is not None else [f"job_file: job {i}" for i in range(1, len(given) + 1)]
            here = self.asking.here()
            return [as_submitted_here(one, name, os.environ, here=here) for one, name in zip(given, names, strict=True)]


def _changes(
    priority: float | None, job_class: str | None, deadline_s: float | None, gpus: int | None, min_gpus: int | None,
    max_gpus: int | None,
) -> dict[str, Any]:  # fmt: skip
    """The changes, by the names of the fields of a job."""
    given = {"priority": priority, "class": job_class, "gpus": gpus, "min_gpus": min_gpus, "max_gpus": max_gpus}
    found: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return found if deadline_s is None else found | {"deadline_s": deadline_s or None}
