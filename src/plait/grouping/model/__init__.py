"""Value of a group: times of its iterations, efficiency, the guard, interference, a bucket as classes of jobs.

Start at `times.interleaved_iteration_s`.
"""
