"""What `plait reproduce` does, a module for each paper: it finds out which runs are needed, makes and shows them.

Start at the function of a module that has its name: `reproduce_muri`.
"""
