"""Find variables that a training loop carries from one step to the next: a resume cannot restore them.

A hidden state, a running sum or the best loss so far in a plain variable is in no checkpoint; after a resume it has its
initial value. Such a variable is read in the loop before the same iteration assigns it, which the source of the loop
shows without running it. Objects that are changed in place (a list, a dict) are not found: `plait rehearse` finds them.
"""

from __future__ import annotations

import ast
import linecache
import os
import sysconfig
import threading
from collections.abc import Collection, Iterator, Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

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
    for loop in _loops_around(tree, line):
        body = _Body(loop)
        names |= {name: body.stored[name] for name in body.carried - names.keys()}
    return sorted(names.items(), key=lambda item: (item[1], item[0]))


def _loops_around(tree: ast.AST, line: int) -> list[_Loop]:
    """The loops of the innermost function that contain the line, the outermost first."""
    found: list[_Loop] = []
    node: ast.AST | None = tree
    while node is not None:
        node = next((child for child in _children(node) if child.lineno <= line <= (child.end_lineno or 0)), None)
        if isinstance(node, _Scope):
            found = []
        elif isinstance(node, _Loop):
            found.append(node)
    return found


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
        """Read it."""
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
