"""A resumed job that has nothing left to do but to end, and is asked to stop then and once more at the very end."""

import functools
import os
import signal

from plait.training import attach


class Last:
    """Gone when Python takes its modules apart."""

    def __init__(self):
        self.ask = functools.partial(os.kill, os.getpid(), signal.SIGTERM)

    def __del__(self):
        self.ask()


last = Last()
job = attach()
job.resume()
os.kill(os.getpid(), signal.SIGTERM)
print("written")
