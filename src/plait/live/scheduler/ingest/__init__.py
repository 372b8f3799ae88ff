"""What agents report, taken in: nodes, processes, measured profiles, estimates of adaptive jobs, costs of stops.

Start at `report.ingest`.
"""
