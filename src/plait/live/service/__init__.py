"""The service: the engine behind an HTTP API, with users, metrics and logs. `python -m plait.live.service --home H`."""
