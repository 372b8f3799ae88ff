"""Processes of jobs on this node: a runner and a guardian beside each, started, watched, ended.

Start at `process_manager`; `runner` is the program beside each process and imports nothing that is installed.
"""
