"""What Linux says of processes and control groups: who runs, whether it is the same one still, how to end all of it.

Standard library only, for agents, backends, the store and the supervisor. Start at `procs.Process`.
"""
