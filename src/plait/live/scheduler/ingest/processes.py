"""Reports on each process: that it starts, runs or ends, its measurements, and which processes are gone."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from plait.live.protocol.validation import NONSENSE, check_entry, sane_seen, sane_text
from plait.live.protocol.wire import ENDED, STARTING, STATES, Observed, Seen
from plait.live.scheduler.context import Context, Step
from plait.live.scheduler.ingest.adaptive import report_estimate, report_restart
from plait.live.scheduler.ingest.profiles import learn, learn_beside, protect
from plait.live.scheduler.ingest.stop_costs import report_stop_cost
from plait.live.scheduler.records.attempts import Key, NodeRecord
from plait.live.scheduler.records.end_words import NOT_STARTED
from plait.live.scheduler.records.notes import Note, RankEnded, note_to_json
from plait.live.scheduler.records.observations import AttemptKnown, ProcessSeen, ReportRefused
from plait.live.scheduler.stops import YIELDS, ask_stop


def see_each(ctx: Context, node: NodeRecord, seen: Observed, now_s: float) -> Iterator[Step]:
    """Process the report `seen` of each process on `node`; an invalid report fails its own job only."""
    for one in seen.attempts:
        try:
            for step in _see(ctx, node, one, now_s):
                if isinstance(step, Note):
                    check_entry(note_to_json(step))
                yield step
        except Exception as error:
            yield from _refuse(ctx, one, error, now_s)


def end_unlisted(ctx: Context, seen: Observed, told_to_stop: Collection[Key], now_s: float) -> Iterator[Step]:
    """End processes of `told_to_stop` that the report `seen` does not list: they have not been running."""
    listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
    for number, epoch, rank in told_to_stop:
        job = ctx.state.jobs.get(number)
        attempt = job.live if job else None
        if attempt is None or attempt.epoch != epoch or attempt.ranks[rank].ended:
            continue
        if (number, epoch, rank) not in listed:
            yield RankEnded(now_s, number, epoch, rank, None, "it was not running", started=False)


def end_untracked(ctx: Context, node: NodeRecord, seen: Observed, now_s: float) -> Iterator[Step]:
    """After a new agent took over `node`: end processes that its report `seen` does not list; they did not survive."""
    listed = {(s.job, s.epoch, s.rank) for s in seen.attempts}
    for number in sorted(ctx.state.live):
        attempt = ctx.state.jobs[number].live
        for i, rank in enumerate(attempt.ranks if attempt else ()):
            if not attempt or rank.node != node.id or rank.seen is None or rank.ended:
                continue
            if rank.seen.state == STARTING:  # it waited for its GPUs and had no process: nothing is lost
                yield ProcessSeen(number, i, None)
            elif (number, attempt.epoch, i) not in listed:
                why = "the agent has lost track of it"
                yield RankEnded(now_s, number, attempt.epoch, i, None, why, started=True)


def end_all(ctx: Context, node: str, why: str, now_s: float) -> Iterator[Step]:
    """Nothing runs on a node any more."""
    for number in sorted(ctx.state.live):
        attempt = ctx.state.jobs[number].live
        for i, rank in enumerate(attempt.ranks if attempt else ()):
            if attempt and rank.node == node and not rank.ended:
                yield RankEnded(now_s, number, attempt.epoch, i, None, why, started=True)


def _refuse(ctx: Context, seen: Seen, error: Exception, now_s: float) -> Iterator[Step]:
    """A report on one process is invalid: fail that job with the reason, and do nothing else."""
    yield ReportRefused(seen.job, seen.epoch, error)
    job = ctx.state.jobs.get(seen.job)
    attempt = job.live if job else None
    if attempt is not None and attempt.epoch == seen.epoch and not attempt.ranks[seen.rank].ended:
        why = sane_text(f"the agent sent an invalid report about this process: {error}")
        yield RankEnded(now_s, seen.job, seen.epoch, seen.rank, NONSENSE, why, started=True)


def _see(ctx: Context, node: NodeRecord, seen: Seen, now_s: float) -> Iterator[Step]:
    job = ctx.state.jobs.get(seen.job)
    attempt = job.live if job else None
    if job is None or attempt is None or attempt.epoch != seen.epoch or not 0 <= seen.rank < len(attempt.ranks):
        return  # of an attempt that is over or was replaced: it is not assigned, so the agent stops it
    rank = attempt.ranks[seen.rank]
    if rank.node != node.id or rank.ended or seen.state not in STATES:
        return
    if seen.job in ctx.unfenced:  # an agent has it, so it was fenced before a restart, whatever the disk shows now
        yield AttemptKnown(seen.job)
    seen = sane_seen(seen)
    if rank.seen is not None:
        if STATES.index(seen.state) < STATES.index(rank.seen.state):
            return  # an old message
        seen = _never_less(seen, rank.seen)
    yield ProcessSeen(seen.job, seen.rank, seen)
    if seen.sharing is not None and seen.sharing.leaves and attempt.stop is None:
        yield ask_stop(ctx, attempt, YIELDS, now_s)
    if seen.rank == 0:
        yield from learn(ctx, job, attempt.ranks[0], seen, now_s)
        yield from learn_beside(ctx, job, attempt.ranks[0], seen, now_s)
        yield from protect(ctx, job, attempt, seen, now_s)
        yield from report_restart(ctx, job, seen, now_s)
        yield from report_estimate(ctx, job, seen, now_s)
    yield from report_stop_cost(ctx, job, attempt, now_s)
    if seen.state == ENDED:
        if node.leaving and attempt.stop is None:  # its agent stopped it without a request
            yield ask_stop(ctx, attempt, "leaving", now_s)
        started = seen.pid != 0 or seen.exit_code not in NOT_STARTED
        yield RankEnded(
            now_s,
            seen.job,
            seen.epoch,
            seen.rank,
            seen.exit_code,
            seen.reason,
            started=started,
            merged=seen.merged,
            ended_s=now_s - seen.ended_s_ago,
        )


def _never_less(seen: Seen, before: Seen) -> Seen:
    """The report with no less work done than in the previous one."""
    seen = replace(seen, held_s=max(seen.held_s, before.held_s), steps=max(seen.steps, before.steps))
    if seen.adaptive is not None and before.adaptive is not None:
        done = max(seen.adaptive.progress, before.adaptive.progress)
        seen = replace(seen, adaptive=replace(seen.adaptive, progress=done))
    return seen
