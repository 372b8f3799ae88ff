"""Changes of the tables since the first version, applied when a store is opened.

Start at `env`, which Alembic runs; the changes are in `versions`.
"""
