"""Reports that operators have put into the folder of the service: their list, and each as the page that it is."""

from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as Named
from fastapi.responses import HTMLResponse, Response

from plait.live.service.http.answers.reports import ReportList
from plait.live.service.http.api import Json, api_of
from plait.live.service.http.openapi.routes import answers

#: Names of reports, their maximum bytes, and the number that is listed.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._ -]{0,120}\.html")
LARGEST, MOST = 50 * 2**20, 500
#: Bytes in which the title is searched.
_HEAD = 4096
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL | re.IGNORECASE)
#: A report draws its own charts. It has no origin, so it can send no request to the service, and it loads nothing.
HEADERS = {
    "content-security-policy": "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "x-frame-options": "SAMEORIGIN",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}

router = APIRouter(tags=["cluster"])


@router.get("/v1/reports", **answers(ReportList))
async def reports(request: Request) -> Response:
    """Reports, newest first: name, title, bytes, age in seconds; for administrators also the folder they are in."""
    api = api_of(request)
    token = api.who(request)
    folder = api.worker.engine.layout.reports
    found: dict[str, Any] = {"reports": await asyncio.to_thread(_listed, folder)}
    return Json({**found, "folder": str(folder)} if token.role == "admin" else found)


@router.get(
    "/v1/reports/{name}",
    response_class=HTMLResponse,
    **answers(None, texts={"text/html": "The report, for a sandbox."}),
)
async def report(request: Request, name: Annotated[str, Named(description="Its `name`.")]) -> Response:
    """A report as HTML, for a sandbox."""
    api = api_of(request)
    api.who(request)
    content = await asyncio.to_thread(_content, api.worker.engine.layout.reports, name)
    return Response(content, media_type="text/html; charset=utf-8", headers=HEADERS)


def _listed(folder: Path) -> list[dict[str, Any]]:
    found = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if _is_report(path):
            facts = path.stat()
            found.append((facts.st_mtime, path, facts.st_size))
    found.sort(key=lambda one: (-one[0], one[1].name))
    now = time.time()
    return [
        {"name": path.name, "title": _title(path), "bytes": size, "age_s": round(max(now - at, 0.0), 3)}
        for at, path, size in found[:MOST]
    ]


def _content(folder: Path, name: str) -> bytes:
    path = folder / name
    if not NAME.fullmatch(name) or not _is_report(path):
        raise LookupError(f"no report {name[:128]!r}; GET /v1/reports lists the present ones")
    return path.read_bytes()


def _is_report(path: Path) -> bool:
    """Whether this is a file of the folder itself, of a name and size that are shown."""
    if not NAME.fullmatch(path.name) or path.is_symlink() or not path.is_file():
        return False
    return path.stat().st_size <= LARGEST


def _title(path: Path) -> str:
    with path.open("rb") as file:
        found = _TITLE.search(file.read(_HEAD).decode("utf-8", "replace"))
    return " ".join(unescape(found[1]).split())[:200] if found else path.name.removesuffix(".html")
