"""The gang rule: GPU and network are granted to all processes of a job together.

Tokens taken rank by rank would deadlock: rank 0 of A holds node 1 and waits in a collective for rank 1, which waits for
node 2, held by B, whose other rank waits for node 1. So rank 0 takes the token for all: it waits until its peers have
arrived (meanwhile they hold nothing that others need), takes the token, opens, and returns the token when all have
left. The n-th stage of a peer belongs to the n-th opening; a peer that comes late finds it open and enters.

Gates only pace, so every wait here is limited: a rank that waits longer than its patience for another one, which may be
in a different part of the program (evaluation on rank 0 only), continues and counts from the newest opening.
"""

from __future__ import annotations

import os
import time

from plait.core.resources import Resource
from plait.runtime.group_files import ASKED, INSIDE, OPENED, RANK_BELL, RANK_PID, GroupPage, LockFiles

GANG = (Resource.GPU, Resource.NETWORK)
PATIENCE_S = 1.0
_LOOK_S = 0.02


class Gang:
    """One process of a job with several, by the job's words in the group's page."""

    def __init__(self, page: GroupPage, files: LockFiles, index: int, rank: int, world_size: int) -> None:
        """Join as rank `rank` of `world_size` of member `index`; `page` and `files` are the group's."""
        self._page, self._files, self._index, self._rank = page, files, index, rank
        self._opened = page.at.member(index) + OPENED
        self._ranks = [page.at.rank(index, r) for r in range(world_size)]
        self._own = self._ranks[rank]
        self._patience = [PATIENCE_S] * len(Resource)
        for word in range(ASKED, INSIDE + len(Resource)):
            page.words[self._own + word] = 0
        if rank:  # a peer that starts after its rank 0 takes the next opening
            for r in Resource:
                page.words[self._own + ASKED + r] = page.words[self._opened + r]
        page.words[self._own + RANK_PID] = os.getpid()

    def _until(self, done: object, until_s: float) -> bool:
        """Sleep until `done()`; returns False if it is not true by `until_s`."""
        bell = self._own + RANK_BELL
        while True:
            seen = self._page.bells.read(bell)
            if done():  # type: ignore[operator]
                return True
            left = until_s - time.monotonic()
            if left <= 0 or self._page.stale:
                return False
            self._page.bells.wait(bell, seen, min(left, _LOOK_S))

    def _peers(self) -> list[tuple[int, int]]:
        """Living peers that have joined: (rank, first word)."""
        words = self._page.words
        return [
            (r, at)
            for r, at in enumerate(self._ranks)
            if r != self._rank and words[at + RANK_PID] and not self._files.is_free(f"alive-{self._index}-{r}.lock")
        ]

    def gather(self, r: int, until_s: float) -> bool:
        """On rank 0, before it takes the token: wait until all peers have arrived, at most for its patience."""
        words, peers = self._page.words, self._peers()

        def asked() -> bool:
            opened = words[self._opened + r]
            return all(words[at + ASKED + r] > opened or words[at + INSIDE + r] for _, at in peers)

        begin = time.monotonic()
        while not self._until(asked, min(until_s, time.monotonic() + 5 * _LOOK_S, begin + self._patience[r])):
            peers = self._peers()  # without peers that died meanwhile
            if time.monotonic() >= min(until_s, begin + self._patience[r]) or self._page.stale:
                self._patience[r] /= 2  # they may never come; the full patience returns when they do
                return False
        self._patience[r] = PATIENCE_S
        return True

    def open(self, r: int) -> None:
        """On rank 0, with the token: let the peers in."""
        self._page.words[self._opened + r] += 1
        for at in self._ranks[1:]:
            self._page.bells.ring(at + RANK_BELL)

    def gone(self, r: int, until_s: float) -> None:
        """On rank 0, before it returns the token: wait until all peers have left."""
        words = self._page.words
        while True:
            inside = [at for _, at in self._peers() if words[at + INSIDE + r]]
            look = min(until_s, time.monotonic() + 5 * _LOOK_S)
            if self._until(lambda inside=inside: not any(words[at + INSIDE + r] for at in inside), look):
                return
            if time.monotonic() >= until_s or self._page.stale:
                return

    def enter(self, r: int, until_s: float) -> None:
        """On a peer: wait for the opening of this stage, at most for its patience or until rank 0 ends."""
        words, own = self._page.words, self._own
        ask = words[own + ASKED + r] = words[own + ASKED + r] + 1
        self._page.bells.ring(self._ranks[0] + RANK_BELL)
        leader = f"alive-{self._index}-0.lock"
        patient_until = 0.0
        while not self._until(lambda: words[self._opened + r] >= ask, min(until_s, time.monotonic() + 5 * _LOOK_S)):
            now = time.monotonic()
            # Patience runs only while rank 0 does not wait for the token.
            if words[self._ranks[0] + ASKED + r] > words[self._opened + r]:
                patient_until = 0.0
            elif not patient_until:
                patient_until = now + PATIENCE_S
            elif now >= patient_until:
                break
            if now >= until_s or self._page.stale or self._files.is_free(leader):
                break
        words[own + INSIDE + r] = 1
        words[own + ASKED + r] = words[self._opened + r]

    def leave(self, r: int) -> None:
        """On a peer: leave the stage."""
        self._page.words[self._own + INSIDE + r] = 0
        self._page.bells.ring(self._ranks[0] + RANK_BELL)

    def announce(self, r: int) -> None:
        """On rank 0: announce the next opening, so that peers are patient."""
        self._page.words[self._own + ASKED + r] = self._page.words[self._opened + r] + 1
