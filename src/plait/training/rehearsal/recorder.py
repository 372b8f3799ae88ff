"""Record each training step of a rehearsed process, and stop it at the given step.

A step ends with the step of any optimizer, or, where none steps, with an iteration of the job. Its position is saved
in checkpoints, so the records of a resumed process continue those of the process before.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from plait.training.rehearsal.digests import (
    NoValue,
    digest,
    script_variables,
    streams_digest,
    unsaved_buffers,
)
from plait.training.rehearsal.order import Order, trace_of

if TYPE_CHECKING:
    from plait.training.rank import Rank

#: Steps, or batches, that a process may still take after SIGTERM: an accumulated step ends only after some batches.
PATIENCE = 64
#: Exit code of a process that did not stop.
DEAF = 3


class Recorder:
    """Writes a line a step to `trace-RANK.jsonl`: batches, losses, learning rates, state, streams, variables."""

    def __init__(self, order: Order, job: Rank) -> None:
        """Record `job` as `order` says."""
        self.position = 0
        self._order, self._job, self._pid = order, job, os.getpid()
        self._step: dict[str, Any] = {}
        self._asked_since: int | None = None
        self._optimizers: list[Any] = []
        self._stepped = False  # an optimizer has stepped, so iterations of the job end no step
        self._losses_seen = False
        self._file = trace_of(order.folder, job.around.rank).open("a", encoding="utf-8")
        self._write({"begin": os.getpid()})

    def saved(self) -> dict[str, Any]:
        """The position, for a checkpoint."""
        return {"position": self.position, "step": self._step}

    def resumed(self, saved: dict[str, Any] | None) -> None:
        """Continue at the position of a checkpoint."""
        if saved is not None:
            self.position, self._step = saved["position"], saved["step"]
        self._write({"resumed": self.position})

    def begins(self) -> None:
        """Note the variables of the script where a batch or a loop step begins; only the first of a step."""
        self._watch_losses()
        if "before" not in self._step:
            self._step["before"] = script_variables()
            self._step["streams"] = streams_digest()

    def batch(self, passes: Any, number: int, length: int | None, batch: Any) -> None:
        """Note a training batch, the `number`th of `length` in its pass, and stop a process that ignored SIGTERM."""
        name = self._job.kept.name_of(*[v for v in self._job.kept.values.values() if _passes(v) is passes]) or "loader"
        try:
            made = digest(batch)
        except NoValue:
            made = ""
        self._step.setdefault("batches", []).append([name, number, length, made])
        self._check_stopped()

    def optimizer_stepped(self, optimizer: Any) -> None:
        """End a step with that of an optimizer."""
        self._stepped = True
        if not any(known is optimizer for known in self._optimizers):
            self._optimizers.append(optimizer)
        self._step["optimizer"] = type(optimizer).__name__
        self._end_step()

    def iteration_ended(self) -> None:
        """End a step with an iteration of the job, where no optimizer steps."""
        if not self._stepped:
            self._end_step()

    def end(self, how: str) -> None:
        """Write the last line: how the process ended, and the state at its end."""
        if os.getpid() == self._pid and not self._file.closed:
            self._write({"end": how, "n": self.position, "state": self._state()})
            self._file.close()

    def _end_step(self) -> None:
        if os.getpid() != self._pid or self._file.closed:
            return
        self._watch_losses()
        step, self._step = self._step, {}
        self.position += 1
        self._write(
            {"n": self.position}
            | step
            | {"rates": self._rates(), "state": self._state(), "size": self._size()}
            | {"after": script_variables()}
        )
        if self.position >= self._order.end_at:
            self.end("bound")
            _exit(0)  # without the rest of the script
        if self._order.stop_at and self.position >= self._order.stop_at and self._asked_since is None:
            self._asked_since = self.position
            self._batches_since = 0
            os.kill(os.getpid(), signal.SIGTERM)
        self._check_stopped()

    def _check_stopped(self) -> None:
        """End a process that goes on after SIGTERM."""
        if self._asked_since is None:
            return
        self._batches_since += 1
        if self._batches_since > PATIENCE:
            self.end("deaf")
            _exit(DEAF)

    def _rates(self) -> list[Any]:
        """The learning rates of all optimizers that have stepped or are registered."""
        known = [value for value in self._job.kept.values.values() if hasattr(value, "param_groups")]
        known += [one for one in self._optimizers if all(one is not other for other in known)]
        return [[float(group["lr"]) for group in optimizer.param_groups if "lr" in group] for optimizer in known]

    def _state(self) -> dict[str, str]:
        """Digests of the registered state, and of the buffers that it leaves out."""
        found = {}
        for name, value in self._job.kept.values.items():
            if _passes(value) is None and name in self._job.kept.given:
                found[name] = digest(value.state_dict())
                found |= dict(unsaved_buffers(name, value))
        return found

    def _size(self) -> float:
        """The sum of the squared weights."""
        models = [value for value in self._job.kept.values.values() if hasattr(value, "parameters")]
        return sum(float(p.detach().double().square().sum()) for model in models for p in model.parameters())

    def _watch_losses(self) -> None:
        """From now on note what `backward` is called on."""
        torch = sys.modules.get("torch")
        if self._losses_seen or not hasattr(torch, "autograd"):
            return
        self._losses_seen = True
        autograd: Any = torch.autograd  # type: ignore[union-attr]
        backward = autograd.backward

        def recorded(tensors: Any, *args: Any, **options: Any) -> Any:
            roots = [tensors] if hasattr(tensors, "detach") else list(tensors)
            if os.getpid() == self._pid:
                self._step.setdefault("losses", []).append(sum(float(root.detach().double().sum()) for root in roots))
            return backward(tensors, *args, **options)

        autograd.backward = recorded

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _exit(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _passes(value: Any) -> Any:
    """The counter of passes of a wrapped loader; None for other values."""
    return vars(value).get("_passes") if hasattr(value, "__dict__") else None


def recorder_of(job: Rank) -> Recorder | None:
    """The recorder of a rehearsed process; None for all others."""
    order = Order.of(os.environ)
    return Recorder(order, job) if order is not None else None
