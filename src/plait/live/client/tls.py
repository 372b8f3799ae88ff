"""By which certificate agents and clients know the service: that of its own file, beside the usual authorities.

The home folder says where the service is and holds the secrets that are shown to it, so it may as well say by what it
is known. No node has to be told of a private authority then, and a certificate that is replaced is replaced everywhere.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
from pathlib import Path

from plait.live.agent import procs
from plait.live.layout import Layout

_PUBLIC = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


def certificates(path: str | Path) -> str:
    """The certificates in a file, without a key that may be beside them."""
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
    """Trust what a home folder names for this URL too, if it does."""
    if url.startswith("https://") and not made.cert_store_stats()["x509_ca"]:
        made.load_default_certs()
    said = None if layout is None else procs.read_json(layout.service_file)
    known = said.get("certificate") if said and said.get("url") == url else None
    if isinstance(known, str):
        with contextlib.suppress(ssl.SSLError):  # not one: then it is not trusted
            made.load_verify_locations(cadata=known)
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # the certificate itself, whoever signed it
