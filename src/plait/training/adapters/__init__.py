"""plait in the trainers of other libraries: a callback or a helper each. Each file imports its library.

Start at `foreign`, which says what all of them do.
"""
