"""Who asks: bearer tokens, of which the store keeps only hashes, and what each role may do.

admin    everything
user     submits; reads and cancels own jobs; sees the queue
viewer   reads everything, changes nothing
agent    reports a node, nothing else
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

from plait.live.layout import Layout, make_private
from plait.live.store import Store, Token

ROLES = ("admin", "user", "viewer", "agent")


class Denied(Exception):
    """Not allowed: 401 without a valid token, 403 with one."""

    def __init__(self, status: int, message: str, next_step: str | None = None) -> None:
        """Say what is missing and what would work."""
        super().__init__(message)
        self.status, self.next_step = status, next_step


def hashed(secret: str) -> str:
    """What is kept of a token. Tokens are random, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Tokens:
    """The valid tokens, by hash."""

    def __init__(self, store: Store) -> None:
        """Read them."""
        self._store = store
        self._known = {token.hash: token for token in store.tokens()}

    def make(self, user: str, role: str, project: str = "default", now_s: float = 0.0) -> tuple[str, Token]:
        """A new token; the secret is told once."""
        secret = "plait_" + secrets.token_urlsafe(32)
        return secret, self._add(secret, user, role, project, now_s)

    def _add(self, secret: str, user: str, role: str, project: str, now_s: float) -> Token:
        token = Token(hashed(secret), f"t-{secrets.token_hex(4)}", user, role, project, now_s)
        self._store.add_token(token)
        self._known[token.hash] = token
        return token

    def revoke(self, name: str) -> bool:
        """A token that counts no more; False if there is none of this id."""
        if not self._store.revoke_token(name):
            return False
        self._known = {h: t for h, t in self._known.items() if t.id != name}
        return True

    def all(self) -> list[Token]:
        """Oldest first."""
        return sorted(self._known.values(), key=lambda t: (t.created_s, t.id))

    def who(self, header: str | None) -> Token:
        """Whose token a request carries; raises `Denied`."""
        if not header:
            raise Denied(401, "no token; send it as Authorization: Bearer TOKEN", "plait token create")
        kind, _, secret = header.partition(" ")
        token = self._known.get(hashed(secret.strip())) if kind.lower() == "bearer" else None
        if token is None:
            raise Denied(401, "the token is not valid, or was revoked", "plait token create")
        return token

    def at_home(self, layout: Layout) -> None:
        """The administrator's token and the agents' are in files of the home folder; lost ones are made anew."""
        user = os.environ.get("USER") or "admin"
        for path, name, role in ((layout.token_file, user, "admin"), (layout.home / "enrol", "agents", "agent")):
            secret = _read(path)
            if secret and hashed(secret) in self._known:
                continue
            for old in [t for t in self.all() if t.role == role and t.project == "-"]:
                self.revoke(old.id)
            secret, _ = self.make(name, role, "default" if role == "admin" else "-")
            write_secret(path, secret)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def write_secret(path: Path, secret: str) -> None:
    """A file for its owner alone, there at once or not at all."""
    make_private(path.parent)
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(secret + "\n")
    os.replace(part, path)


def need(token: Token, *roles: str) -> None:
    """Refuse other roles."""
    if token.role not in roles:
        raise Denied(403, f"{token.user} is {token.role}; this needs {' or '.join(roles)}")


def owns(token: Token, job: str, owner: str, *, change: bool) -> None:
    """Refuse users who are not the owner; viewers may look."""
    if token.role == "admin" or (token.role == "viewer" and not change):
        return
    if token.role == "user" and token.user == owner:
        return
    raise Denied(403, f"job {job} is not yours to {'change' if change else 'look into'}")
