"""Muri's released simulator as a world of its own, and the published numbers next to ours.

Why not plait's own simulator with a few options? The released one is a closed set of rules that hang together:
no scheduling interval, an overhead that every event takes from every running job, placement from nothing at each
event, an AntMan whose choices follow the rounding residues of a sum, and ties between equal profiles that hang on
the last bit of a double and are broken by the order of a list that is never reset. Without any one of them
the numbers differ. Options for all of them would be branches through the general engine with no other use. So
the world is a small event loop here, written for one purpose: the published digits.

    trace          the artifact's files as columns
    speeds         how fast a group runs; efficiency of every pair
    yarn           placement on 8 x 8 GPUs
    state          the columns that a rule reads and writes; progress and completions
    queues, interleaved (with nodes), antman, themis
                   the policies, each a `Rule`
    settings       policies and options by name
    engine         `run`: where to start
"""
