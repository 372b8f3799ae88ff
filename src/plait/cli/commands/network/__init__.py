"""`plait network`: networks of clusters, and what they are worth to jobs.

Start at `commands`, which declares the commands; their results are in the modules beside it.
"""

from plait.cli.commands.network.commands import app

__all__ = ["app"]
