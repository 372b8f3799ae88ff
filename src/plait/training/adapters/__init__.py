"""Callbacks and helpers for trainers of other libraries; each file imports its library.

Start at `foreign`, which says what all of them do.
"""
