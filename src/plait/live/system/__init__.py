"""Processes and control groups of Linux: who runs, whether it is still the same one, how to end all of it.

Standard library only, for agents, backends, the store and the supervisor. Start at `procs.Process`.
"""
