"""Whether a job can go on from a checkpoint, and what its script has to say so that it can: told once, in its log.

The page has the answer as a `Saves`; the log has the line to add. A script that never called `attach` is told nothing.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING

from plait.runtime.page import Saves

if TYPE_CHECKING:
    from plait.training.rank import Rank

#: Seconds after `attach` at which a job is told what keeps its work from being saved.
TELL_AFTER_S = 20.0
#: Iterations after which a state that has not changed is suspicious.
FEW_ITERATIONS = 3


class Advice:
    """Looks after a while what keeps a job's work from being saved, and says each reason once."""

    def __init__(self, job: Rank) -> None:
        """For this job; nothing is said before `begin`."""
        self._job = job
        self._begun_s: float | None = None
        self._timer: threading.Timer | None = None
        self._said: set[str] = set()
        #: Whether it was told that it gives no boundary: then a stop need not wait for one.
        self.hopeless = False

    def begin(self) -> None:
        """The script has called `attach`."""
        if self._begun_s is not None or self._job.around.rank:
            return
        self._begun_s = time.monotonic()
        self._timer = threading.Timer(TELL_AFTER_S, self._look_once)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """The job ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_once(self) -> None:
        """The time is up: a loop without boundaries comes by nowhere else."""
        job = self._job
        if job.saves == Saves.NO_BOUNDARY and not job.had_loop:
            self.hopeless = True
            self.say(
                f"{TELL_AFTER_S:.0f} s after attach() no iteration has ended: no torch optimizer has stepped, and no "
                "loop of plait's has begun. If training has begun, it can be neither stopped nor saved: write "
                "`for step in job.steps(n):`, or call job.step_boundary() at the end of each iteration"
            )

    def look(self) -> None:
        """At a boundary."""
        if self._begun_s is None or time.monotonic() - self._begun_s < TELL_AFTER_S:
            return
        job = self._job
        if job.saves == Saves.NOTHING:
            self.nothing()
        elif job.saves == Saves.NOT_RESUMED:
            self.say(
                "this loop does not go on from its checkpoints: started again, it begins at step 0. Write "
                "`for step in job.steps(n):` or `for epoch in job.epochs(n):`, or call job.resume() before the loop "
                "and begin at the step that it returns"
            )
        elif job.counted >= FEW_ITERATIONS:
            self.stale()

    def nothing(self) -> None:
        """Its work cannot be saved."""
        torch = "torch" in sys.modules
        line = "attach(model=model, optimizer=optimizer)" if torch else "attach(state=state)"
        kinds = "" if torch else ", with a dict (or NumPy array, list, object) that the loop changes in place"
        self.say(
            f"the work of this job cannot be saved: {self._job.kept.missing}. Stopped or moved, it begins again at "
            f"step 0. Register what the loop changes: job = {line}{kinds}; a loop that keeps nothing from step to "
            "step registers an empty dict: attach(state={})"
        )

    def stale(self) -> None:
        """Registered values that the loop may have left behind: looked at once."""
        if "stale" in self._said:
            return
        self._said.add("stale")
        for name in self._job.kept.stale:
            self.say(
                f"{name!r} is as it was when it was registered, {self._job.counted} iterations ago: checkpoints will "
                "have it so. If the loop makes a new object in its place, register a dict and assign into it: "
                f"state = {{{name!r}: ...}}; attach(state=state); state[{name!r}] = ..."
            )

    def say(self, what: str) -> None:
        """One line in the job's log, once."""
        if what not in self._said:
            self._said.add(what)
            print(f"plait: {what}", file=sys.stderr, flush=True)
