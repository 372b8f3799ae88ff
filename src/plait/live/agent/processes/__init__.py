"""Processes of jobs on this node, each with a runner and a guardian: started, watched, ended.

Start at `process_manager`; `runner` is the program next to each process and imports nothing that is installed.
"""
