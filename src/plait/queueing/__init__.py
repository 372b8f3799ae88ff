"""A queue as arrays: jobs in a fixed order over pools of GPUs, played forward in a millisecond, many times.

Which node a job gets, stages and neighbours are left out: the price of that is judged by how often the intervals hold.
Start at `schedule.play`.
"""
