"""Handlers of the HTTP API, one module a topic: they check who asks and what, and leave the rest to others.

Start at `agents`, where the reports of agents arrive.
"""
