"""A loop without torch; untorched.py FILE KIND [DELAY]: a line for each step, and the result at the end."""

import sys
import time
from collections import deque

import numpy as np

from plait.training import advice, attach

advice.ADVISE_AFTER_S = float(sys.argv[4]) if len(sys.argv) > 4 else 20.0
out, kind = sys.argv[1:3]
delay = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
TURNS = 30


class Average:
    """Some object without methods for checkpoints."""

    def __init__(self):
        self.value, self.seen = 0.0, []

    def add(self, x):
        self.value = 0.9 * self.value + 0.1 * x
        self.seen.append(x)


state, weights, average = {"w": np.zeros(3), "t": 0}, np.ones(3), Average()
recent, rng = deque(maxlen=4), np.random.default_rng(7)


def learn(step):
    """Everything changes: values in a dict, an array in place, an object, a generator."""
    x = rng.normal(size=3)
    state["w"] = state["w"] + x + weights
    state["t"] += 1
    weights[:] = 0.5 * weights + x
    average.add(float(x.sum()))
    recent.append(float(x[0]) + np.random.rand())  # noqa: NPY002
    with open(out, "a") as file:
        print("step", step, file=file)
    time.sleep(delay)


np.random.seed(1)  # noqa: NPY002
everything = {"state": state, "weights": weights, "average": average, "recent": recent, "rng": rng}
if kind == "steps":
    job = attach(**everything)
    for step in job.steps(TURNS):
        learn(step)
elif kind == "own":
    job = attach(**everything)
    for step in range(job.resume(), TURNS):
        learn(step)
        job.step_boundary()
elif kind == "epochs":
    job = attach(**everything)
    for epoch in job.epochs(TURNS // 3):
        for step in range(3 * epoch, 3 * epoch + 3):
            learn(step)
elif kind == "loader":
    from torch.utils.data import DataLoader

    job = attach(**everything)
    loader = job.wrap_loader(DataLoader(list(range(TURNS // 2)), batch_size=1))
    for epoch in job.epochs(2):
        for batch in loader:
            learn(epoch * TURNS // 2 + int(batch))
elif kind == "asked":  # to save in the middle of a turn
    job = attach(**everything)
    for step in job.steps(TURNS):
        if step == 12:
            assert job.checkpoint(block=True) is None
        learn(step)
        if step == 13 and job.page.checkpoint_steps == 0:
            raise SystemExit(3)
elif kind == "nothing":
    job = attach()
    for step in job.steps(TURNS):
        learn(step)
elif kind == "rebound":
    kept = {"w": state["w"], "rest": 1}
    job = attach(w=weights.copy(), kept=kept, done=(done := []))
    for step in job.steps(TURNS):
        learn(step)
        done.append(step)
elif kind == "forgotten":  # saves, and begins at 0 whatever was saved
    job = attach(**everything)
    for step in range(TURNS):
        learn(step)
        job.step_boundary()
elif kind == "no boundary":
    job = attach(**everything)
    job.resume()
    for step in range(TURNS):
        learn(step)
with open(out, "a") as file:
    parts = [*state["w"], state["t"], *weights, average.value, len(average.seen), *recent, np.random.rand()]  # noqa: NPY002
    print("result", *parts, "torch" in sys.modules, file=file)
