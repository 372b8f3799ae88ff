"""Reports of agents: nodes, processes, measured profiles, estimates of adaptive jobs, costs of stops.

Start at `report.ingest`.
"""
