"""In-network aggregation on a node: the switch that its agent serves.

Start at `switch_host.SwitchHost`, which has a thread of its own and brings the jobs that are served in line with the
service's order; `plane_processes` starts switch and aggregation server.
"""
