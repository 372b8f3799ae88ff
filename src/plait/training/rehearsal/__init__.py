"""Recording of a rehearsed training run: what each step computed, and which files the script wrote.

`plait rehearse` starts a script several times, with `PLAIT_REHEARSAL` naming a file of `order.Order`.
Start at `recorder.Recorder`.
"""
