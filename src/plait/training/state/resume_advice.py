"""Tell a script, once and in its log, why it cannot resume from a checkpoint and which line to add.

The answer itself is in the job's page (`runtime.page.Saves`). A script that never called `attach` gets no advice.
"""

from __future__ import annotations

import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

from plait.runtime.page import Saves
from plait.training.loop_variables import unsaved_variables

if TYPE_CHECKING:
    from plait.training.rank import Rank

#: Seconds after `attach` at which the advice is given.
ADVISE_AFTER_S = 20.0
#: Iterations after which a state that has not changed is suspicious.
FEW_ITERATIONS = 3
#: Variables that a warning names.
NAMED = 6


class ResumeAdvice:
    """Finds out what keeps the work of a job from being saved, and writes each reason to its log once."""

    def __init__(self, job: Rank) -> None:
        """For this job; nothing is written before `begin`."""
        self._job = job
        self._begun_s: float | None = None
        self._timer: threading.Timer | None = None
        self._given: set[str] = set()
        self._tried = False  # whether the position in the data can be restored
        #: True once the log says that there is no step boundary: then a stop does not wait for one.
        self.boundary_missing = False

    def begin(self) -> None:
        """The script has called `attach`."""
        if self._begun_s is not None or self._job.around.rank:
            return
        self._begun_s = time.monotonic()
        self._timer = threading.Timer(ADVISE_AFTER_S, self._check_for_loop)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        """Give no more advice: the job ends."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_for_loop(self) -> None:
        """Warn if no iteration has ended: a loop without boundaries never calls `check`."""
        job = self._job
        if job.saves == Saves.NO_BOUNDARY and not job.had_loop:
            self.boundary_missing = True
            self.warn(
                f"{ADVISE_AFTER_S:.0f} s after attach() no iteration has ended: no torch optimizer has stepped, and no "
                "loop of plait's has begun. If training has begun, it can be neither stopped nor saved: write "
                "`for step in job.steps(n):`, or call job.step_boundary() at the end of each iteration"
            )

    def check(self) -> None:
        """At a boundary: warn if the job cannot resume from its checkpoints."""
        if self._begun_s is None or time.monotonic() - self._begun_s < ADVISE_AFTER_S:
            return
        job = self._job
        if job.saves == Saves.NOTHING:
            self.warn_unregistered()
        elif job.saves == Saves.NOT_RESUMED:
            self.warn(
                "this loop does not go on from its checkpoints: started again, it begins at step 0. Write "
                "`for step in job.steps(n):` or `for epoch in job.epochs(n):`, or call job.resume() before the loop "
                "and begin at the step that it returns"
            )
        elif job.counted >= FEW_ITERATIONS:
            self.warn_stale()
            if not self._tried and job.around.world_size == 1:  # several ranks try it together, at a checkpoint
                self._tried = True
                if why := job.kept.trouble:
                    job.not_restorable()
                    self.warn(why)

    def warn_unregistered(self) -> None:
        """Warn that the work cannot be saved, since too little of it is registered."""
        torch = "torch" in sys.modules
        line = "attach(model=model, optimizer=optimizer)" if torch else "attach(state=state)"
        kinds = "" if torch else ", with a dict (or NumPy array, list, object) that the loop changes in place"
        self.warn(
            f"the work of this job cannot be saved: {self._job.kept.missing}. Stopped or moved, it begins again at "
            f"step 0. Register what the loop changes: job = {line}{kinds}; a loop that keeps nothing from step to "
            "step registers an empty dict: attach(state={})"
        )

    def warn_stale(self) -> None:
        """Warn, once, of registered values that have not changed: the loop may use other objects."""
        if "stale" in self._given:
            return
        self._given.add("stale")
        for name in self._job.kept.stale:
            self.warn(
                f"{name!r} is as it was when it was registered, {self._job.counted} iterations ago: checkpoints will "
                "have it so. If the loop makes a new object in its place, register a dict and assign into it: "
                f"state = {{{name!r}: ...}}; attach(state=state); state[{name!r}] = ..."
            )

    def warn_count(self, way: str) -> None:
        """Warn that the script counts batches by `way`, which begins at 0 after a resume within an epoch."""
        self.warn(
            f"this loop counts its batches by {way}; after a resume in the middle of an epoch that does not go on from "
            "the batch that comes next. Write `for i, batch in enumerate(loader):` or "
            "`for i, batch in job.batches(loader):`, whose i does"
        )

    def warn_loop_count(self, loop: str, way: str) -> None:
        """Warn that the script counts the numbers of `job.<loop>` by `way`, which begins at 0 after a resume."""
        self.warn(
            f"the script counts the {loop} of job.{loop}() by {way}; after a resume that begins at 0. Use the number "
            f"that job.{loop}() yields"
        )

    def look_at_loop(self, frame: FrameType | None) -> None:
        """Warn, once, of variables that the loops around `frame` carry from step to step without registering them."""
        if self._begun_s is None or "variables" in self._given:
            return
        self._given.add("variables")
        if found := unsaved_variables(frame, [self._job, *self._job.kept.values.values()]):
            more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
            self.warn(
                f"a resume does not restore variables that the training loop carries from step to step: "
                f"{', '.join(found[:NAMED])}{more}. Where they matter, keep them in a dict and register it: "
                "attach(state=state); `plait rehearse -- python train.py` shows what differs"
            )

    def warn_new_loader(self) -> None:
        """Warn that adaptive loaders are made in several epochs: a new process cannot know which one was in use."""
        self.warn(
            "the script makes new adaptive loaders in later epochs; a resume in the middle of an epoch begins that "
            "epoch again, with other samples. Make each one once, before the loop over the epochs"
        )

    def note_left_out(self) -> None:
        """Report, at a resume, that an epoch goes on in a later one of its loops over data."""
        self.warn(
            "the checkpoint was made after the first loops over data of this epoch: they are left out now. What the "
            "script does between the loops of an epoch, such as a step of a scheduler, runs for the second time"
        )

    def warn_cycle(self) -> None:
        """Warn that an `itertools.cycle` draws from a loader that cannot repeat a part of its pass."""
        self.warn(
            "itertools.cycle() draws from a loader over a stream: a resume in the middle of an epoch is not exact, "
            "because the cycle then begins with another pass. Use a map-style data set, or call iter(loader) again "
            "where it ends"
        )

    def warn(self, what: str) -> None:
        """Write one line to the job's log, once."""
        if what not in self._given:
            self._given.add(what)
            print(f"plait: {what}", file=sys.stderr, flush=True)
