"""The live cluster: a service that decides, a store that remembers, an agent on each node that runs processes.

Start at `scheduler`, which decides; `service` puts it behind HTTP, and `supervisor` keeps services and agents alive.
"""
