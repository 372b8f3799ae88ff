"""Histories of cluster managers: the accounting of Slurm, the Workloads of Kueue, archived logs.

Times are of what happened there, so a reader keeps submission, start and end. Start reading at `sacct.py`.
"""
