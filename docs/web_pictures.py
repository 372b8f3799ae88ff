"""Draw the pictures of the web page's screens in the documentation again, in a real Chromium.

    python docs/web_pictures.py [NAME ...]

Without names all of them. The cluster is the scene of the browser tests: a real service over nodes made by hand. Needs
the package with [sim], Playwright and Chromium.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "docs" / "assets"
sys.path[:0] = [str(ROOT / "tests" / "unit" / "dashboard"), str(ROOT / "tests")]
#: Bytes of a picture at most.
LARGEST = 150_000
#: Name of a picture -> path under /web, theme, width, height, and what has to be there first.
SCREENS = {
    "login": ("/login", "light", 1100, 480, "#token"),
    "narrow": ("/", "dark", 390, 844, ".map svg"),
    "jobs": ("/jobs", "light", 1300, 640, "tbody tr"),
    "job": ("/jobs/j-1", "light", 1300, 1100, "#log-text"),
    "overview": ("/", "light", 1300, 900, ".map svg"),
    "waiting": ("/jobs/j-33", "dark", 1300, 800, "#why"),
    "submit": ("/submit", "light", 1300, 680, "form.job"),
    "what-if": ("/what-if?nodes=%2B2x8&policy=srsf", "light", 1300, 720, "#gain"),
    "queue": ("/queue", "light", 1300, 560, "tbody tr"),
    "nodes": ("/nodes", "light", 1300, 760, "tbody tr"),
    "node": ("/nodes/n03", "light", 1300, 760, "h1"),
    "costs": ("/costs", "light", 1300, 900, "h1"),
    "events": ("/events", "light", 1300, 760, "tbody tr"),
    "policy": ("/policy", "light", 1300, 560, "#projects"),
}  # fmt: skip


def main(names: list[str]) -> int:
    """Draw; the exit code is 1 if a picture is too large."""
    from playwright.sync_api import sync_playwright
    from scene import scene
    from world import serving

    unknown = [name for name in names if name not in SCREENS]
    if unknown:
        print(f"no screen {unknown[0]!r}; there are {', '.join(SCREENS)}")
        return 2
    chromium = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    if chromium is None:
        print("no Chromium here; install chromium")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        world = scene(home)
        stop = threading.Event()
        thread = threading.Thread(target=_beat, args=(world, stop))
        with serving(world) as url, sync_playwright() as started:
            thread.start()
            browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            try:
                _draw_all(browser, url, world.tokens["root"], names or list(SCREENS))
            finally:
                browser.close()
                stop.set()
                thread.join()
        world.close()
    large = [name for name in names or SCREENS if (ASSETS / f"web-{name}.png").stat().st_size > LARGEST]
    for name in large:
        print(f"web-{name}.png has more than {LARGEST:,} bytes")
    return 1 if large else 0


def _draw_all(browser: Any, url: str, token: str, names: list[str]) -> None:
    """Log in once for each theme, and look at its screens."""
    for theme in ("light", "dark"):
        context = browser.new_context(base_url=url, color_scheme=theme)
        context.set_default_timeout(120_000)
        page = context.new_page()
        page.goto("/web/login")
        for name in sorted((n for n in names if SCREENS[n][1] == theme), key=lambda n: n != "login"):
            path, _, width, height, there = SCREENS[name]
            page.set_viewport_size({"width": width, "height": height})
            if path != "/login":
                if page.query_selector("#token"):
                    page.fill("#token", token)
                    page.click("button.main")
                    page.wait_for_selector("#map")
                page.goto(f"/web{path}", wait_until="domcontentloaded")
            page.wait_for_selector(there, state="attached")
            page.wait_for_timeout(1000)  # logs and charts come after the page
            page.screenshot(path=ASSETS / f"web-{name}.png")
            print(f"web-{name}.png", flush=True)
        context.close()


def _beat(world: Any, stop: threading.Event) -> None:
    while not stop.wait(0.2):
        for agent in world.agents.values():
            agent.sync()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
