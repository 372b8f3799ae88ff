"""Several jobs as threads of one process, each with its own streams, files and end.

Start at `jobs`; `host` is the process that agents start.
"""
