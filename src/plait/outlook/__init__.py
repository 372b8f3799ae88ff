"""What will happen: when jobs start and end, what other policies would change, and checks of both by what happened.

Start at `queue.foresee` for the live queue, and at `advice.advise` for a history.
"""
