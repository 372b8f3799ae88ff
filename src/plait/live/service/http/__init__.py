"""The HTTP API: connections and authentication, handlers by topic in `routes`, answers as JSON, limits, metrics.

Start at `app.make_app`.
"""
