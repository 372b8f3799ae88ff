"""In-network aggregation: what a job asks for (`request`), and what it may use of a switch (`grants`).

Packets, memory managers and rates are in `plait.network`. Start at `request.InaRequest` and `grants.NetworkGrant`.
"""
