"""Certificates by which agents and clients verify the service: its own, and the usual authorities'.

The home folder names the service's address and holds the tokens for it, so it also holds its certificate. Nodes need no
configuration of a private authority, and replacing the certificate takes effect everywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from pathlib import Path

from plait.live.layout import Layout
from plait.live.system import procs

_PUBLIC = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


def certificates(path: str | Path) -> str:
    """The certificates in a file, without a key that may be there, too."""
    return "".join(_PUBLIC.findall(Path(path).read_text(encoding="ascii", errors="replace")))


def context(layout: Layout | None, url: str) -> ssl.SSLContext:
    """Trusts authorities of this machine, or PLAIT_CA, and what a home names for this URL.

    Names and dates are checked as ever. Raises OSError for a PLAIT_CA that is not there. Reading the authorities takes
    longer than most questions, so for a URL without TLS that waits until it may be needed (`trust`).
    """
    if not url.startswith("https://") and not os.environ.get("PLAIT_CA"):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made = ssl.create_default_context(cafile=os.environ.get("PLAIT_CA") or None)
    trust(made, layout, url)
    return made


def trust(made: ssl.SSLContext, layout: Layout | None, url: str) -> None:
    """Make the context `made` also trust the certificate that the home folder `layout` names for `url`, if any."""
    if url.startswith("https://") and not made.cert_store_stats()["x509_ca"]:
        made.load_default_certs()
    said = None if layout is None else procs.read_json(layout.service_file)
    known = said.get("certificate") if said and url in (said.get("url"), said.get("agents")) else None
    if isinstance(known, str):
        with contextlib.suppress(ssl.SSLError):  # not one: then it is not trusted
            made.load_verify_locations(cadata=known)
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself, whatever its issuer
