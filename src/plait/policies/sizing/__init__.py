"""Shared by policies that choose sizes: rounds, pools of one GPU kind, ladders of sizes, free GPUs of nodes.

Start at `rounds.InRounds`.
"""
