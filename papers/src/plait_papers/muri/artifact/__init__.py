"""The world of Muri's released simulator: its event loop, placement, policies and matching, tie by tie.

Start at `engine`.
"""
