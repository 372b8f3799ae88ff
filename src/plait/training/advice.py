"""Tell a script, once and in its log, why it cannot resume from a checkpoint and which line to add.

The answer itself is in the job's page (`runtime.page.Saves`). A script that never called `attach` gets no advice.
"""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from plait.runtime.page import Saves

if TYPE_CHECKING:
    from plait.training.job import Rank


# Find variables that a training loop carries from one step to the next: a resume cannot restore them.
#
# A hidden state, a running sum or the best loss so far in a plain variable is in no checkpoint; after a resume it has
# its initial value. Such a variable is read in the loop before the same iteration assigns it, which the source of the
# loop shows without running it. Objects that are changed in place (a list, a dict) are not found: `plait rehearse`
# finds them.

_Loop = ast.For | ast.AsyncFor | ast.While
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
#: Calls whose results are of this process alone: losing them loses nothing.
_CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "process_time", "now"})
#: Trees that two threads make at the same time can raise `SystemError` (recursion depth mismatch, seen with CPython
#: 3.11.7); merged jobs are threads.
_PARSING = threading.Lock()
_LIBRARIES = tuple(
    path + os.sep for path in {*sysconfig.get_paths().values(), os.path.dirname(os.path.dirname(__file__))}
)


def unsaved_variables(frame: FrameType | None, registered: Collection[Any]) -> list[str]:
    """`name (file:line)` of each variable that the loops around `frame` carry, without those of `registered` objects.

    All functions of the script that have called one another count, from the one that trains to the main program.
    """
    known = {id(value) for value in registered}
    found: dict[str, None] = {}
    while frame is not None:
        file = frame.f_code.co_filename
        if not of_library(file) and os.path.exists(file):
            values = frame.f_locals
            for name, line in carried("".join(linecache.getlines(file)), frame.f_lineno):
                if name in values and id(values[name]) not in known and not _is_code(values[name]):
                    found[f"{name} ({os.path.basename(file)}:{line})"] = None
            if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__":
                break
        frame = frame.f_back
    return list(found)


def of_library(file: str) -> bool:
    """True if the file belongs to Python, to plait or to an installed package, not to the script."""
    return file.startswith(_LIBRARIES) or not {"site-packages", "dist-packages"}.isdisjoint(file.split(os.sep))


def _is_code(value: Any) -> bool:
    """Modules, functions, classes, and iterators: the loader continues those that draw from it."""
    return isinstance(value, ModuleType | FunctionType | type) or hasattr(type(value), "__next__")


def carried(source: str, line: int) -> list[tuple[str, int]]:
    r"""(variable, first line that assigns it) that the loops around `line` read before they assign it; in order.

    >>> carried("total = 0\nfor x in data:\n    y = x\n    total += y\n", 3)
    [('total', 4)]
    """
    try:
        with _PARSING:
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, SystemError):
        return []
    names: dict[str, int] = {}
    # The loops of the innermost function that contain the line, the outermost first.
    found: list[_Loop] = []
    node: ast.AST | None = tree
    while node is not None:
        node = next((child for child in _children(node) if child.lineno <= line <= (child.end_lineno or 0)), None)
        if isinstance(node, _Scope):
            found = []
        elif isinstance(node, _Loop):
            found.append(node)
    for loop in found:
        body = _Body(loop)
        names |= {name: body.stored[name] for name in body.carried - names.keys()}
    return sorted(names.items(), key=lambda item: (item[1], item[0]))


def _children(node: ast.AST) -> Iterator[Any]:
    """Statements and functions directly below a node; on one line with several, the last loop comes first."""
    children = [child for child in ast.iter_child_nodes(node) if hasattr(child, "lineno")]
    children += [
        grand for child in ast.iter_child_nodes(node) if not hasattr(child, "lineno") for grand in _children(child)
    ]
    return iter(sorted(children, key=lambda child: not isinstance(child, _Loop | _Scope)))


class _Body:
    """One iteration of a loop, read in the order in which it runs."""

    def __init__(self, loop: _Loop) -> None:
        self.stored: dict[str, int] = {}
        self.carried: set[str] = set()
        self._clocked: set[str] = set()
        for node in _of_this_scope(loop.body):
            self._note_store(node)
        if isinstance(loop, ast.While):
            before = self._read(loop.test, set())
        else:
            before = {name.id for name in ast.walk(loop.target) if isinstance(name, ast.Name)}
        self._run(loop.body, before)
        self.carried -= self._clocked

    def _note_store(self, node: ast.AST) -> None:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            self.stored.setdefault(node.id, node.lineno)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in _CLOCKS:
                self._clocked |= {target.id for target in node.targets if isinstance(target, ast.Name)}

    def _run(self, body: Sequence[ast.stmt], assigned: set[str] | None) -> set[str] | None:
        """Variables that are assigned for certain after these statements; None if their end is never reached."""
        for statement in body:
            if assigned is None:
                return None
            assigned = self._step(statement, assigned)
        return assigned

    def _step(self, statement: ast.stmt, assigned: set[str]) -> set[str] | None:
        match statement:
            case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
                self._read(statement, assigned)
                return None
            case ast.If(test=test, body=body, orelse=orelse):
                assigned = self._read(test, assigned)
                return _all(self._run(body, set(assigned)), self._run(orelse, set(assigned)))
            case ast.For() | ast.AsyncFor():
                assigned = self._read(statement.iter, assigned)
                target = {name.id for name in ast.walk(statement.target) if isinstance(name, ast.Name)}
                self._run(statement.body, assigned | target)
                return _all(set(assigned), self._run(statement.orelse, set(assigned)))
            case ast.While():
                assigned = self._read(statement.test, assigned)
                self._run(statement.body, set(assigned))
                return _all(set(assigned), self._run(statement.orelse, set(assigned)))
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    assigned = self._read(item, assigned)
                return self._run(statement.body, assigned)
            case ast.Try() | ast.TryStar():
                end = self._run([*statement.body, *statement.orelse], set(assigned))
                for handler in statement.handlers:
                    caught = assigned | ({handler.name} if handler.name else set())
                    end = _all(end, self._run(handler.body, caught))
                after = self._run(statement.finalbody, set(assigned) if end is None else end)
                return None if end is None else after
            case ast.Match(subject=subject, cases=cases):
                assigned = self._read(subject, assigned)
                ends = [self._run(one.body, set(assigned)) for one in cases]
                return _all(set(assigned), *ends)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return assigned | {statement.name}
        return self._read(statement, assigned)

    def _read(self, node: ast.AST, assigned: set[str]) -> set[str]:
        """Note what an expression or a simple statement reads, and return what is assigned after it."""
        own = {
            name.id
            for part in ast.walk(node)
            if isinstance(part, ast.comprehension)
            for name in ast.walk(part.target)
            if isinstance(name, ast.Name)
        }
        stored = set()
        for part in _of_this_scope([node]):
            if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name):
                self._load(part.target.id, assigned)
            if isinstance(part, ast.Name):
                if isinstance(part.ctx, ast.Load) and part.id not in own:
                    self._load(part.id, assigned)
                elif isinstance(part.ctx, ast.Store) and part.id not in own:
                    stored.add(part.id)
        return assigned | stored

    def _load(self, name: str, assigned: set[str]) -> None:
        if name in self.stored and name not in assigned:
            self.carried.add(name)


def _of_this_scope(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and all below them, without the bodies of functions."""
    for node in nodes:
        yield node
        if not isinstance(node, _Scope):
            yield from _of_this_scope(list(ast.iter_child_nodes(node)))


def _all(*ends: set[str] | None) -> set[str] | None:
    """Variables that every branch assigns; a branch whose end is never reached is left out."""
    reached = [end for end in ends if end is not None]
    return set.intersection(*reached) if reached else None


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
        if job.saves == Saves.NO_BOUNDARY and not job.iterations.had_loop:
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
        elif job.iterations.counted >= FEW_ITERATIONS:
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
                f"{name!r} is as it was when it was registered, {self._job.iterations.counted} iterations ago: "
                "checkpoints will have it so. If the loop makes a new object in its place, register a dict and assign "
                f"into it: state = {{{name!r}: ...}}; attach(state=state); state[{name!r}] = ..."
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
