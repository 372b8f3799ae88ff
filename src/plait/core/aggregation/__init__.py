"""In-network aggregation: a job's request (`request`), and its part of a switch (`grants`).

Packets, memory managers and rates are in `plait.network`. Start at `request.InaRequest` and `grants.NetworkGrant`.
"""
