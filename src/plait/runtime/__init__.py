"""Shared by agents and training processes, without torch: the page of a rank, the files of a group, and gates.

Start at `page.Page` for what the two exchange, and at `gates.open_gate` for how jobs take turns.
"""
