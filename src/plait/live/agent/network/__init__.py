"""In-network aggregation on a node: the switch that its agent serves, and the files of the ranks that run there.

Start at `switch_host.SwitchHost`, which has a thread of its own; `plane_processes` starts switch and aggregation
server, `leases` brings the jobs that they serve in line with the service's order, `rank_files` writes grants and reads
reports.
"""
