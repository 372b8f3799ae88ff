"""Networks of clusters: built from a short text or a cluster file, and the paths of packets through them.

Start at `read.networked`; `cluster_file` reads clusters from TOML, and `paths.Graph` finds paths.
"""
