"""Each command of `plait`, one file a topic: it reads options, calls the package that does the work, and shows the result.

Start at `plait.cli.app`, which puts the commands together.
"""
