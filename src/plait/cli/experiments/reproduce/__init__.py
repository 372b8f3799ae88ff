"""Implementation of `plait reproduce`, a module for each paper: finds, makes and shows the runs needed.

Start at the function of a module that has its name: `reproduce_muri`.
"""
