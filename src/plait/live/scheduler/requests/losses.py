"""Work of running jobs that would be lost if they were stopped now, and the refusal to lose it without consent.

Requeue, update, drain, a switch of the policy, nodes that are taken away and `plait down --stop-jobs` use the same rule
and the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from plait.core.errors import Conflict
from plait.core.words import counted, duration
from plait.live.api.cluster import JobLoss, Losses
from plait.live.layout import job_name
from plait.live.protocol.wire import RUNNING
from plait.live.scheduler.context import Context
from plait.live.scheduler.measured import lost_work_s, never_saved, served_s
from plait.live.scheduler.records.attempts import FROM_START, JobRecord

#: Jobs that a sentence names.
NAMED = 8


@dataclass(frozen=True)
class Loss:
    """Work that a stop of a job would lose: seconds on `gpus` GPUs, and iterations if its processes report them.

    `from_start`: all of its attempt, because there is no checkpoint to resume from.
    """

    job: int
    gpus: int
    work_s: float
    steps: float | None
    from_start: bool

    @property
    def gpu_s(self) -> float:
        """GPU-seconds of the work."""
        return self.work_s * self.gpus

    def __str__(self) -> str:
        """The loss as a sentence.

        >>> str(Loss(3, 2, 75.0, None, True))
        'j-3 would lose 1 min 15 s of work on 2 GPUs (150 GPU-seconds) and begin at the beginning'
        >>> str(Loss(4, 1, 40.0, 120.0, False))
        'j-4 would lose 120 steps, 40.0 s of work on 1 GPU (40 GPU-seconds), since its newest checkpoint'
        """
        steps = "" if self.steps is None else f"{counted(round(self.steps), 'step')}, "
        end = " and begin at the beginning" if self.from_start else ", since its newest checkpoint"
        work = f"{duration(self.work_s)} of work on {counted(self.gpus, 'GPU')} ({self.gpu_s:,.0f} GPU-seconds)"
        return f"{job_name(self.job)} would lose {steps}{work}{end}"

    def shown(self) -> JobLoss:
        return JobLoss(**asdict(self), id=job_name(self.job), gpu_s=self.gpu_s, text=str(self))


def loss_of(ctx: Context, job: JobRecord) -> Loss | None:
    """The loss of a stop of the job now; None if it saves when it is stopped, does not run, or is stopping."""
    attempt = job.live
    if attempt is None or attempt.stop is not None or not never_saved(ctx, job):
        return None
    held_s = served_s(ctx, job, attempt)
    runs = any(rank.seen is not None and rank.seen.state == RUNNING for rank in attempt.ranks)
    if not runs and held_s <= 0:
        return None
    lead = attempt.lead
    saved = None if lead is None or lead.saves in FROM_START else lead.checkpoint_steps
    done = None if lead is None or not lead.steps else max(lead.steps - (saved or 0.0), 0.0)
    return Loss(job.number, len(attempt.gpus), lost_work_s(attempt, held_s, never=True), done, saved is None)


def report(ctx: Context, jobs: Sequence[int], nodes: Sequence[str], owner: str | None) -> Losses:
    """The losses of these jobs and of all on these nodes, of all jobs if neither is given; see `Engine.losses`."""
    unknown = [node for node in nodes if node not in ctx.state.nodes]
    if unknown:
        raise LookupError(f"no node {unknown[0]!r}; there are: {', '.join(ctx.state.nodes) or 'none yet'}")
    numbers = {*jobs, *(job.number for node in nodes for job in on_node(ctx, node))}
    if not jobs and not nodes:
        numbers = set(ctx.state.live)
    known = (ctx.state.jobs[number] for number in numbers if number in ctx.state.jobs)
    found = losses(ctx, (job for job in known if owner in (None, job.owner)))
    return Losses([one.shown() for one in found], sentence(found))


def losses(ctx: Context, jobs: Iterable[JobRecord]) -> list[Loss]:
    """Losses of stops of these jobs, the largest loss first."""
    each = (loss_of(ctx, job) for job in jobs)
    return sorted((one for one in each if one is not None), key=lambda one: (-one.gpu_s, one.job))


def on_node(ctx: Context, node: str) -> list[JobRecord]:
    return [job for job, a in ctx.state.attempts if any(r.node == node and not r.ended for r in a.ranks)]


def sentence(found: Sequence[Loss]) -> str:
    """The losses as one sentence; "" for none."""
    text = "; ".join(map(str, found[:NAMED]))
    more = found[NAMED:]
    if more:
        rest_s = sum(one.gpu_s for one in more)
        text += f"; {counted(len(more), 'more job')} would lose {rest_s:,.0f} GPU-seconds"
    return text


def refusal(text: str, jobs: int) -> str:
    """The refusal of what would lose the work that `text` states, of so many jobs."""
    return (
        f"{text}; nothing was done, because {'it' if jobs == 1 else 'they'} cannot resume from a checkpoint. "
        "To do it all the same: --may-lose-work (may_lose_work)"
    )


def refuse(found: Sequence[Loss]) -> None:
    """Raise `Conflict` if there is a loss."""
    if found:
        raise Conflict(refusal(sentence(found), len(found)))
