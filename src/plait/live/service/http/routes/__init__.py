"""Handlers of the HTTP API, one module a topic: they check user and request, and leave the rest to others.

Start at `agents`, where the reports of agents arrive.
"""
