"""`plait rehearse`: train undisturbed, train with stops, compare step by step.

`running` starts the processes and reads what they recorded, `comparing` finds the first step that differs, `causes`
names what is likely behind it. Start at `rehearsing.rehearse`, which does all three.
"""
