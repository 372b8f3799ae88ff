"""Many runs: a case as a value, runs over processes, sweeps that can be resumed, tuning of a policy's options.

Start at `cases`.
"""
