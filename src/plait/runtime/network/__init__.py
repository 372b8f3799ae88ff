"""Files and packets of a rank, its agent and a switch about in-network aggregation, without torch and NumPy.

`grant` has the file from which ranks learn which switch memory they may use, `report` the file in which they report
what they made of it. `datagrams` moves UDP datagrams in batches. Start at `grant.GrantFile`.
"""
