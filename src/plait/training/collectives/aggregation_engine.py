"""The engine of a rank: a thread that takes buckets of gradients in order and brings back their means.

For each bucket the ranks agree on exponent and grant, aggregate, and agree on success, for which a rank that has all
sums does not wait. A rank that misses sums gets them from another; if all miss some, they reduce the bucket by gloo.
Nothing here blocks the thread that computes gradients. Our design. Start at `Engine.submit`, and at `Reduction.mean`
for what happens to one bucket.
"""

from __future__ import annotations

import atexit
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from plait.network.protocol.fixed_point import FloatArray32
from plait.runtime.network.report import MOST_EVENTS, NetworkEvent, NetworkReport, write_report
from plait.training.collectives import aggregation_kernels as kernels
from plait.training.collectives.aggregation_client import transfer
from plait.training.collectives.aggregation_session import Proposal, RankGroup, Reason, Session, not_finite
from plait.training.process import note

#: Reports are written at most so often.
REPORT_EVERY_S = 1.0
#: Seconds to wait at the end for the bucket in work.
LAST_BUCKET_S = 10.0
_NARROW = (torch.float16, torch.bfloat16)


@dataclass
class Seconds:
    """What the time of buckets went into; `NetworkReport` has the meaning of each."""

    agreement_s: float = 0.0
    quantise_s: float = 0.0
    transfer_s: float = 0.0
    decode_s: float = 0.0
    success_s: float = 0.0
    gloo_s: float = 0.0


class Reduction:
    """Buckets of one rank, one after the other, and what has become of them so far."""

    def __init__(
        self, group: RankGroup, session: Session, *, give_up_after: int, changed: Callable[[str], None] = lambda _: None
    ) -> None:
        """`changed` hears of each change between aggregation and gloo, in words."""
        self._group, self._session = group, session
        self._give_up_after, self._changed = give_up_after, changed
        self._in_a_row = 0
        self._scale = 1.0
        self._way: tuple[str, Reason] = ("", Reason.NONE)
        self.seconds = Seconds()
        self.aggregated = self.aggregated_bytes = self.fallback_bytes = 0
        self.fallback: Counter[str] = Counter()

    def mean(self, tensor: torch.Tensor, deliver: Callable[[], None]) -> None:
        """Replace a contiguous tensor on the host by its mean over all ranks, and call `deliver` once it is there.

        What follows that call no longer reads or writes the tensor. Raises `RuntimeError` if a rank is gone.
        """
        size, reason = tensor.numel() * tensor.element_size(), Reason.DTYPE
        if tensor.dtype == torch.float32 or tensor.dtype in _NARROW:
            wide = tensor.to(torch.float32)  # itself if it is that

            def narrow() -> None:
                if wide is not tensor:
                    tensor.copy_(wide)
                deliver()

            reason, gradients = self._agree(wide.numpy()), wide.numpy()
            if reason is Reason.NONE and self._exchange(gradients, size, narrow):
                return
        if reason is not Reason.NONE:
            self._count_fallback(reason, size)
        begin_s = time.perf_counter()
        self._group.mean(tensor)
        self.seconds.gloo_s += time.perf_counter() - begin_s
        deliver()

    def _count_fallback(self, reason: Reason, size: int) -> None:
        self.fallback[reason.text] += 1
        self.fallback_bytes += size
        self._note_way(reason)

    def _agree(self, gradients: FloatArray32) -> Reason:
        """Agree on a bucket before it; NONE if all ranks use the network, else why all use gloo.

        The factor of fixed point is set then.
        """
        begin_s = time.perf_counter()
        version, newest, current = self._session.look(len(gradients))
        exponent = kernels.exponent_of(gradients)
        agreed = self._group.agree(Proposal(exponent, version, newest, current))
        reason = agreed.current
        if agreed.same:
            self._session.followed = agreed.version
            reason = agreed.newest
            if reason is Reason.NONE:
                if self._session.adopt():
                    self._in_a_row = 0
                reason = Reason.GIVEN_UP if self._session.given_up else Reason.NONE
        elif reason is not Reason.NONE:
            reason = Reason.CHANGING
        if reason is Reason.NONE and not_finite(agreed):
            reason = Reason.NOT_FINITE
        client = self._session.client
        if reason is Reason.NONE and client is not None:
            self._scale = client.scale_for(agreed.exponent)
            if self._scale == float("inf"):
                reason = Reason.OVERFLOW  # on all ranks, since all know the same exponent
        self.seconds.agreement_s += time.perf_counter() - begin_s
        return reason

    def _exchange(self, gradients: FloatArray32, size: int, deliver: Callable[[], None]) -> bool:
        """Send and receive, and agree whether all ranks have all sums; False if none has, and all use gloo.

        A rank that has all of them delivers at once. The others get the mean from it.
        """
        client, link, seconds = self._session.client, self._session.link, self.seconds
        assert client is not None
        assert link is not None
        client.start(gradients, self._scale, time.monotonic_ns())
        mine = Reason.SOCKET
        try:
            good, times = transfer(client, link)
            mine = Reason.NONE if good else Reason.TIMEOUTS
            if good and client.overflowed:
                mine = Reason.OVERFLOW
            seconds.quantise_s += times.quantise_s
            seconds.transfer_s += times.transfer_s
            seconds.decode_s += times.decode_s
        except OSError as error:
            self._session.trouble = str(error)
        outcome = self._group.worst(mine)
        if mine is Reason.NONE:
            begin_s = time.perf_counter()
            client.mean(gradients)
            seconds.decode_s += time.perf_counter() - begin_s
            self.aggregated += 1
            self.aggregated_bytes += size
            self._note_way(Reason.NONE)
            deliver()
        begin_s = time.perf_counter()
        reason, source = outcome()
        seconds.success_s += time.perf_counter() - begin_s
        if reason is Reason.NONE:
            self._in_a_row = 0
            return True
        if mine is Reason.NONE:
            self.aggregated -= 1
            self.aggregated_bytes -= size
        self._count_fallback(reason, size)
        if reason is not Reason.OVERFLOW:
            self._in_a_row += 1
            self._session.failed(give_up=self._in_a_row >= self._give_up_after)
        if source < 0:
            return False
        if mine is Reason.NONE:  # whoever has the tensor now may have changed it
            gradients = np.empty_like(gradients)
            client.mean(gradients)
        self._group.share(torch.from_numpy(gradients), source)
        if mine is not Reason.NONE:
            deliver()
        return True

    def _note_way(self, reason: Reason) -> None:
        """Say when buckets begin to go another way; single ones that are not finite are not worth it."""
        if reason in (Reason.NOT_FINITE, Reason.OVERFLOW, Reason.CHANGING, Reason.DTYPE) and self._way[0]:
            return
        way = ("aggregation" if reason is Reason.NONE else "gloo", reason)
        if way == self._way:
            return
        self._way = way
        grant = self._session.grant
        if reason is Reason.NONE and grant is not None:
            self._changed(
                f"gradients are added up by switch {grant.switch_name or grant.switch} (grant {grant.version})"
            )
        else:
            why = f"{reason.text}: {self._session.trouble}" if self._session.trouble else reason.text
            self._changed(f"gradients go by gloo: {why}")

    def report(self, events: list[NetworkEvent]) -> NetworkReport:
        counts, grant = self._session.counts, self._session.grant
        mode, reason = self._way
        return NetworkReport(
            mode=mode or "gloo",
            reason=reason.text,
            grant_version=self._session.followed,
            switch_name=grant.switch_name if grant is not None else "",
            aggregated=self.aggregated,
            aggregated_bytes=self.aggregated_bytes,
            fallback=dict(self.fallback),
            fallback_bytes=self.fallback_bytes,
            sent=counts.sent,
            resent=counts.resent,
            results=counts.results,
            collided=counts.collided,
            timeouts=counts.timeouts,
            numbers=self._session.client.numbers if self._session.client is not None else 0,
            events=tuple(events),
            **vars(self.seconds),
        )


class Engine:
    """The thread of a rank, and the queue of its buckets."""

    def __init__(self, group: RankGroup, session: Session, *, give_up_after: int, folder: str | None) -> None:
        """Start at the first bucket. `folder`: of the rank under plait (PLAIT_RUN_DIR), for reports and plait.log."""
        self._group, self._session, self._folder = group, session, folder
        self._events: list[NetworkEvent] = []
        self.reduction = Reduction(group, session, give_up_after=give_up_after, changed=self.say)
        self._work: queue.SimpleQueue[tuple[torch.Tensor, Any, Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._written_s, self._written = 0.0, -1
        self._pid = os.getpid()
        self._broken: Exception | None = None

    def submit(self, tensor: torch.Tensor) -> Any:
        """A future of the mean over all ranks of a tensor, which is replaced by it; in the order of the calls."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="plait-aggregation", daemon=True)
            self._thread.start()
            atexit.register(self.close)
        future: Any = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else [])
        ready = None
        if tensor.is_cuda:
            ready = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ready.record()
        self._work.put((tensor, future, ready))
        return future

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            tensor, future, ready = work
            try:
                if self._broken is not None:
                    raise self._broken
                if ready is None:
                    self.reduction.mean(tensor, partial(future.set_result, tensor))
                else:
                    self._mean_of_device(tensor, future, ready)
            except Exception as error:  # whatever it is, the thread that waits for the bucket must hear of it
                self._broken = error
                if not future.done():
                    future.set_exception(error)
            self._report()
        self._report(now=True)

    def _mean_of_device(self, tensor: torch.Tensor, future: Any, ready: Any) -> None:
        """As for a tensor on the host, by a copy; the future carries the stream of the copy back."""
        stream: Any = torch.cuda.Stream(tensor.device)  # type: ignore[no-untyped-call]
        with torch.cuda.device(tensor.device), torch.cuda.stream(stream):
            ready.wait()
            host = tensor.cpu()

            def deliver() -> None:
                tensor.copy_(host)
                future.set_result(tensor)

            self.reduction.mean(host, deliver)

    def say(self, text: str) -> None:
        """Record an event: in the report, in plait.log, and outside plait on the standard error of rank 0."""
        self._events = [*self._events, NetworkEvent(time.time(), text)][-MOST_EVENTS:]
        note(self._folder, text)
        if not self._folder and self._group.rank == 0:
            print(f"plait: {text}", file=sys.stderr)
        self._written_s = 0.0

    def report(self) -> NetworkReport:
        """All counters so far; may be called in any thread."""
        return self.reduction.report(self._events)

    def _report(self, *, now: bool = False) -> None:
        now_s, followed = time.monotonic(), self._session.followed
        now = now or followed != self._written  # somebody may wait for the memory of the grant before
        if self._folder and (now or now_s - self._written_s >= REPORT_EVERY_S or not self._written_s):
            self._written_s, self._written = now_s, followed
            write_report(self._folder, self.report())

    def close(self) -> None:
        """End the thread after the bucket in work, write the last report, and close sockets and group."""
        atexit.unregister(self.close)
        if self._pid != os.getpid():
            return
        if self._thread is not None:
            self._work.put(None)
            self._thread.join(LAST_BUCKET_S)
            if self._thread.is_alive():  # a rank is gone, and gloo has not noticed: the process ends with the thread
                return
        self._session.close()
        self._group.close()
