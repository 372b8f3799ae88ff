"""Authentication: bearer tokens, of which the store keeps only hashes, and the rights of each role.

admin    everything
user     submits; reads, changes and cancels own jobs; sees the queue
viewer   reads everything, changes nothing
agent    reports its node, nothing else
"""

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from plait.live.layout import NODE_NAME, Layout, write_secret
from plait.live.service.http.connections import AGENT, KNOWN, STRANGER
from plait.live.store import Store, Token

ROLES = ("admin", "user", "viewer", "agent")
#: Which token is that of the home folder's file.
HOME_TOKEN = "home_token"
#: Secrets of nodes are not shorter, so that an empty or cut-off file admits no agent.
SECRET_LENGTH = 40
#: The files of nodes are read again after this many times the last reading: anybody can send unknown secrets.
REST = 10.0


class Denied(Exception):
    """Not allowed: 401 without a valid token, 403 with one."""

    def __init__(self, status: int, message: str, next_step: str | None = None) -> None:
        """`message` names the missing right, `next_step` the remedy."""
        super().__init__(message)
        self.status, self.next_step = status, next_step


def hashed(secret: str) -> str:
    """The stored form of a token. Tokens are random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """The valid tokens, by hash."""

    def __init__(self, store: Store, clock: Callable[[], float] = lambda: 0.0, layout: Layout | None = None) -> None:
        """Read the tokens. `clock` returns the time by which they expire, `now`; `layout` has this machine's nodes."""
        self._store, self.now, self._layout = store, clock, layout
        self._known = {token.hash: token for token in store.tokens()}
        self._lock = threading.Lock()  # they are made and revoked in threads
        self._enrolling = threading.Lock()  # an agent opens two connections at once
        #: Nodes by the hashes of the secrets in their files, and the time from which the files may be read again.
        self._found: dict[str, str] = {}
        self._look_at = 0.0

    def make(
        self, user: str, role: str, project: str = "default", now_s: float = 0.0, *, expires_s: float | None = None,
        node: str | None = None,
    ) -> tuple[str, Token]:  # fmt: skip
        """A new token; the secret is returned once. It is valid until `expires_s`; an agent's is for one node."""
        secret = new_secret()
        return secret, self._add(secret, user, role, project, now_s, expires_s, node)

    def _add(
        self, secret: str, user: str, role: str, project: str, now_s: float, expires_s: float | None, node: str | None
    ) -> Token:
        name = f"t-{secrets.token_hex(4)}"
        token = Token(hashed(secret), name, user, role, project, now_s, expires_s, node)
        self._store.add_token(token)
        with self._lock:
            self._known[token.hash] = token
        return token

    def revoke(self, name: str) -> bool:
        """A token that counts no more; False if there is none of this id."""
        if not self._store.revoke_token(name):
            return False
        with self._lock:
            self._known = {h: t for h, t in self._known.items() if t.id != name}
        return True

    def all(self) -> list[Token]:
        """Oldest first; expired tokens are still listed."""
        with self._lock:
            return sorted(self._known.values(), key=lambda t: (t.created_s, t.id))

    def who(self, header: str | None) -> Token:
        """Whose token a request carries; raises `Denied`."""
        secret = _secret(header)
        token = self._known.get(hashed(secret))
        if token is None:
            raise Denied(401, "the token is not valid, or was revoked", "plait token new")
        if token.expires_s is not None and self.now() >= token.expires_s:
            raise Denied(401, "the token has expired; ask an administrator for a new one", "plait token new")
        return token

    def agent(self, header: str | None) -> Token:
        """An agent's token; raises `Denied`. For which node it may speak is in it: see `speaks_for`.

        An unknown token is looked up in files: call this in a thread unless `knows` returns True.
        """
        try:
            token = self.who(header)
        except Denied as error:
            found = self._enrolled_here(header)
            if found is None:
                raise Denied(error.status, str(error), "plait nodes enrol NODE") from None
            token = found
        need(token, "agent")
        return token

    def rank(self, header: str) -> tuple[int, str]:
        """The rank of a connection with this header, and the holder of its token; see `connections`."""
        try:
            token = self.who(header)
        except Denied:
            return STRANGER, ""
        return (AGENT if token.role == "agent" else KNOWN), token.id

    def knows(self, header: str | None) -> bool:
        """Whether a request carries a token that is valid."""
        try:
            self.who(header)
        except Denied:
            return False
        return True

    def _enrolled_here(self, header: str | None) -> Token | None:
        """A node of this machine: its secret lies in the home folder, which only our own user can write to."""
        secret = _secret(header)
        if self._layout is None or len(secret) < SECRET_LENGTH:
            return None
        with self._enrolling:
            if self.knows(header):
                return self.who(header)
            node = self._node_of(hashed(secret), self._layout.home / "nodes")
            if node is None or self._store.knows_token(hashed(secret)):  # revoked
                return None
            return self._add(secret, node, "agent", "-", self.now(), None, node)

    def _node_of(self, key: str, folder: Path) -> str | None:
        """The node whose file has the secret of this hash."""
        began = time.monotonic()
        if key not in self._found and began >= self._look_at:
            names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
            self._found = {}
            for name in filter(NODE_NAME.fullmatch, names):
                self._found.setdefault(hashed(_read(folder / name / "enrol")), name)
            self._look_at = time.monotonic() + REST * (time.monotonic() - began)
        node = self._found.get(key)
        return node if node is not None and hashed(_read(folder / node / "enrol")) == key else None

    def at_home(self, layout: Layout) -> None:
        """The administrator's token is in a file of the home folder; if that is lost a new one takes its place."""
        user = os.environ.get("USER") or "admin"
        secret, before = _read(layout.token_file), self._store.fact(HOME_TOKEN)
        if secret and hashed(secret) in self._known:
            if before != hashed(secret):
                self._store.set_fact(HOME_TOKEN, hashed(secret))
            return
        for old in self.all():
            if old.role == "admin" and old.hash == before:
                self.revoke(old.id)
        secret, token = self.make(user, "admin", "default", self.now())
        write_secret(layout.token_file, secret)
        self._store.set_fact(HOME_TOKEN, token.hash)


def _secret(header: str | None) -> str:
    """The text after Bearer; raises `Denied` where it is missing."""
    if not header:
        raise Denied(401, "no token; send it as Authorization: Bearer TOKEN", "plait token new")
    kind, _, secret = header.partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def new_secret() -> str:
    """A token that cannot be guessed."""
    return "plait_" + secrets.token_urlsafe(32)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def need(token: Token, *roles: str) -> None:
    """Raise `Denied` unless the token has one of these roles."""
    if token.role not in roles:
        raise Denied(403, f"{token.user} is {token.role}; this needs {' or '.join(roles)}")


def speaks_for(token: Token, node: str) -> None:
    """Refuse agents that speak for another node than their own."""
    if token.node != node:
        mine = f"is for node {token.node}" if token.node else "names no node"
        raise Denied(403, f"this agent's token {mine}; it cannot speak for {node!r}", "plait nodes enrol NODE")


def only_of(token: Token) -> str | None:
    """The owner of whose jobs alone this token may see names and commands; None: of all."""
    return None if token.role in ("admin", "viewer") else token.user


def owns(token: Token, job: str, owner: str, *, change: bool) -> None:
    """Refuse users who are not the owner; viewers may look."""
    if token.role == "admin" or (token.role == "viewer" and not change):
        return
    if token.role == "user" and token.user == owner:
        return
    raise Denied(403, f"job {job} is not yours to {'change' if change else 'look into'}")
