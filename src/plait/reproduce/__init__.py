"""Published experiments, run again: each published simulator as it was, and the published figures beside ours.

Start at `worlds.published_world`; `muri` and `pollux` are the two published simulators.
"""
