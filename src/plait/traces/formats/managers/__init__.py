"""Histories that cluster managers print of themselves: the accounting of Slurm, the Workloads of Kueue.

Times are of what happened there, so a reader keeps submission, start and end. Start reading at `sacct.py`.
"""
