"""The live demo of job classes (`plait demo --antman`).

demo      where to start: what is measured, printed and written
jobs      the two trainings: their command lines, and what they write down
trouble   a burst of memory, a killed agent, a killed guest
"""
