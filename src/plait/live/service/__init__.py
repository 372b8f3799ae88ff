"""The service: the live scheduler behind an HTTP API, with users, metrics and logs.

Start at `main.run`; `python -m plait.live.service --home HOME` starts it.
"""
