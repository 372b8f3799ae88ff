"""The simulated demo (`plait demo --simulate`).

demo      where to start: traces, printed blocks, report
blocks    the four comparisons: which runs, their columns, and the sentence below each
"""
