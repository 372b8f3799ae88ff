"""Parts of the state: jobs, attempts, nodes and groups; notes of the log; observations, which no log has.

Start at `attempts`; nothing here reads or changes the state as a whole.
"""
