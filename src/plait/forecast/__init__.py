"""Forecasts of when waiting jobs start: the live queue simulated from its present state, and checks of the forecasts.

Start at `queue.foresee`.
"""
