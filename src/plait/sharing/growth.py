"""Growth of opportunistic jobs into free memory: trials, one at a time.

AntMan grows opportunistic jobs by greedy trial and error (Xiao et al., OSDI 2020, section 4.1): a twentieth of the
device for one job, kept if it makes the job faster. Where nothing is left it is another job that gives it, and gets it
back unless the first makes more of it. Trial length, retry and the comparison by relative speed a byte are plait's own.
"""

from __future__ import annotations

from dataclasses import replace

from plait.sharing.directive import Action, Device
from plait.sharing.memory_state import Grant, JobMemory, Trial

#: Part of the device that one trial moves, and steps at either limit that are compared.
PART, TRIAL_STEPS = 0.05, 5
#: Relative speed that a trial has to bring, and how long a job waits after one that did not.
LEAST_GAIN, AGAIN_S = 0.01, 60.0

Jobs = dict[str, JobMemory]


def tried(jobs: Jobs, trial: Trial | None, device: Device, now_s: float, spare_bytes: int) -> Trial | None:
    """The trial that is active from now on, if any; a finished one leaves its result in the grants of `jobs`.

    `spare_bytes` are unassigned. No trial is judged or started while a job has yet to apply a limit.
    """
    if any(job.held_bytes != job.cap_bytes for job in jobs.values()):
        return trial
    if trial is None:
        return _begun(jobs, device, now_s, spare_bytes)
    job = jobs[trial.job]
    if job.cap_bytes < job.least_bytes + job.granted_bytes + trial.size_bytes or job.meter.steps < TRIAL_STEPS:
        return trial
    gain = (job.meter.speed / trial.speed - 1.0) / trial.size_bytes if trial.speed > 0 else 0.0
    lost = trial.taken.gain if trial.taken is not None else 0.0
    if (gain - lost) * trial.size_bytes > LEAST_GAIN:
        jobs[trial.job] = replace(job, grants=(*job.grants, Grant(trial.size_bytes, gain)))
        return None
    jobs[trial.job] = replace(job, tried_at_s=now_s)
    if trial.giver is not None and trial.taken is not None:
        giver = jobs[trial.giver]
        jobs[trial.giver] = replace(giver, grants=(*giver.grants, trial.taken))
    return None


def _begun(jobs: Jobs, device: Device, now_s: float, spare_bytes: int) -> Trial | None:
    """A trial for the job that has waited longest for one; None if no job is due or none can give memory."""
    size = int(PART * device.capacity_bytes)
    due = [
        name for name in device.opportunistic
        if jobs[name].action is Action.RUN and jobs[name].meter.steps >= TRIAL_STEPS
        and (jobs[name].tried_at_s is None or now_s - (jobs[name].tried_at_s or 0.0) >= AGAIN_S)
    ]  # fmt: skip
    for name in sorted(due, key=lambda name: jobs[name].tried_at_s or 0.0):
        speed = jobs[name].meter.speed
        if spare_bytes >= size:
            return Trial(name, size, speed)
        giver = least_gain(jobs, except_for=name)
        own = jobs[name].grants
        if giver is not None and (not own or own[-1].gain > jobs[giver].grants[-1].gain):
            taken = jobs[giver].grants[-1]
            jobs[giver] = replace(jobs[giver], grants=jobs[giver].grants[:-1])
            return Trial(name, taken.size_bytes, speed, giver, taken)
    return None


def least_gain(jobs: Jobs, except_for: str | None = None) -> str | None:
    """The job whose newest grant brought it least per byte; None if no job has one."""
    owners = [name for name, job in jobs.items() if job.grants and name != except_for]
    return min(owners, key=lambda name: jobs[name].grants[-1].gain, default=None)
