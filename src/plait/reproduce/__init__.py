"""Reproductions of published experiments: the published simulators, and published figures next to ours.

Start at `worlds.published_world`; `muri` and `pollux` are the two published simulators. AntMan had none: `antman` runs
its experiment in plait's own world.
"""
