"""One reader for each public trace format; all build the canonical table.

Start at `registry.read_trace`; `reader` holds what readers share.
"""
