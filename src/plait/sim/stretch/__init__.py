"""Compiled stretches of a simulation: instant after instant in one kernel, until something outside its language.

A run whose policy is an order of fixed gangs needs no Python between two instants. `run_stretches` finds out, hands the
arrays that simulator and controller own to the kernel `loop.run_stretch`, and passes on what happened in blocks of
rows. All rules are the parts that the other path calls, too. Start at `run.run_stretches`.
"""
