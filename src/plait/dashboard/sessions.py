"""Who looks at the pages: sessions of browsers, one-time codes of login links, and tokens of forms.

The cookie of a session names it and is no token of the API: tokens stay in the memory of the service. A restart of the
service therefore ends all sessions, and `plait web` begins the next one.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

#: Seconds after its last use at which a session ends, and for which the code of a login link counts.
SESSION_S, CODE_S = 12 * 3600.0, 120.0
#: Sessions and codes that are kept at most; the oldest go first.
MOST = 1000


@dataclass
class Session:
    """One browser that has shown a token: whose it is, and what its forms have to send."""

    secret: str
    user: str
    role: str
    project: str
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    used_s: float = 0.0

    @property
    def may_submit(self) -> bool:
        """Whether it may submit jobs and change its own."""
        return self.role in ("admin", "user")

    @property
    def may_manage(self) -> bool:
        """Whether it may change nodes and the policy."""
        return self.role == "admin"

    def sent(self, token: str) -> bool:
        """Whether a form came from a page of this session."""
        return hmac.compare_digest(token.encode(), self.csrf.encode())


class Sessions:
    """All sessions and codes of one service."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """No session yet. `clock`: seconds."""
        self._clock = clock
        self._open: OrderedDict[str, Session] = OrderedDict()
        self._codes: OrderedDict[str, tuple[str, float]] = OrderedDict()

    def begin(self, session: Session) -> str:
        """The name of a new session, for its cookie."""
        name = secrets.token_urlsafe(32)
        session.used_s = self._clock()
        self._open[name] = session
        while len(self._open) > MOST:
            self._open.popitem(last=False)
        return name

    def find(self, name: str) -> Session | None:
        """The session of a cookie, if it has not ended."""
        session = self._open.get(name)
        if session is None:
            return None
        if self._clock() - session.used_s > SESSION_S:
            del self._open[name]
            return None
        session.used_s = self._clock()
        self._open.move_to_end(name)
        return session

    def end(self, name: str) -> None:
        """Log out."""
        self._open.pop(name, None)

    def code_for(self, secret: str) -> str:
        """A code that stands for this token once, for a short time: links end up in histories, codes are dead then."""
        code = secrets.token_urlsafe(24)
        self._codes[code] = (secret, self._clock() + CODE_S)
        while len(self._codes) > MOST:
            self._codes.popitem(last=False)
        return code

    def redeem(self, code: str) -> str | None:
        """The token that a code stands for; None if it was used or is too old."""
        secret, until_s = self._codes.pop(code, ("", 0.0))
        return secret if secret and self._clock() < until_s else None
