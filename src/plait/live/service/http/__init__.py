"""The HTTP API: who may connect and ask, handlers by topic in `routes`, answers as JSON, limits, metrics.

Start at `app.make_app`.
"""
