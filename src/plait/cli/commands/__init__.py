"""The commands of `plait`, one file a topic: each reads options, calls what does the work, and shows the result.

Start at `plait.cli.app`, which puts the commands together.
"""
