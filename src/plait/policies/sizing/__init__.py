"""What policies that choose sizes share: rounds, pools of one GPU kind, ladders of sizes, seats on nodes.

Start at `rounds.InRounds`.
"""
