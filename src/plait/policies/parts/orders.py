"""Orders: one key a job, smaller first. Each is one expression over the columns of the job table."""

from __future__ import annotations

from plait.core.arrays import FloatArray, IntArray
from plait.core.policy import View


def by_arrival(view: View) -> IntArray:
    """First come, first served: numbers are in order of submission."""
    return view.jobs.number


def by_duration(view: View) -> FloatArray:
    """Shortest job first: whole solo run time, seconds."""
    return view.jobs.duration_s


def by_remaining_time(view: View) -> FloatArray:
    """Shortest remaining time first, seconds."""
    return view.jobs.remaining_s


def by_remaining_service(view: View) -> FloatArray:
    """Shortest remaining service first: remaining time times GPUs (Tiresias; Muri-S), GPU-seconds."""
    return view.jobs.remaining_s * view.jobs.gpus


def by_gpus(view: View) -> IntArray:
    """Smallest gang first: GPUs of each job."""
    return view.jobs.gpus


def by_run_time(view: View) -> FloatArray:
    """Least attained service in one dimension: seconds on GPUs so far (Nuyens and Wierman 2008)."""
    return view.jobs.run_s


def by_attained_service(view: View) -> FloatArray:
    """Least attained service in two dimensions: GPU-seconds so far (Tiresias, section 3; Muri-L)."""
    return view.jobs.attained_gpu_s
