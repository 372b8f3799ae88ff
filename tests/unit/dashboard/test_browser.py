"""Every page and action in a real browser: drawn without errors, accessible, and up to date by itself."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from scene import scene
from world import HOSTILE, World, serving

from sampling import sample

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
playwright = pytest.importorskip("playwright.sync_api", reason="no Playwright here; pip install playwright")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install chromium to open the pages"),
]
#: axe-core 4.14.1 (npm `axe-core`, MPL-2.0, see axe.LICENSE): rules of accessibility.
AXE = Path(__file__).with_name("axe.min.js")
SCREENS = (
    "/", "/jobs", "/jobs/j-1", "/jobs/j-33", "/jobs/j-2", "/queue", "/nodes", "/nodes/n03", "/events", "/costs",
    "/policy",
    "/submit", "/jobs/j-1/change", "/what-if", "/what-if?nodes=%2B2x8&policy=srsf",
)  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str]]:
    world = scene(tmp_path_factory.mktemp("home"), 4)
    with serving(world) as url, beating(world):
        yield world, url
    world.close()


@contextmanager
def beating(world: World) -> Iterator[None]:
    """The agents of a world report all the time."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.2):
            for agent in world.agents.values():
                agent.sync()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


class Errors(list[str]):
    def watch(self, page: Any) -> None:
        page.on("console", lambda said: self.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.append(str(error)))


def opened(browser: Any, service: tuple[World, str], **options: Any) -> tuple[Any, Errors]:
    world, url = service
    page, errors = browser.new_context(base_url=url, **options).new_page(), Errors()
    errors.watch(page)
    page.goto("/")
    page.fill("#token", world.tokens["root"])
    page.click("button.main")
    page.wait_for_selector("#map")
    page.wait_for_load_state()  # scripts too: a key that is pressed before is lost
    return page, errors


@pytest.mark.parametrize("scheme", sample(["dark"], ["light", "dark"]))
def test_every_screen_is_drawn_and_accessible(browser: Any, service: tuple[World, str], scheme: str) -> None:
    page, errors = opened(browser, service, color_scheme=scheme, viewport={"width": 1300, "height": 850})
    for path in SCREENS:
        assert page.goto(f"/web{path}").status == 200
        page.evaluate(AXE.read_text(encoding="utf-8"))
        found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']}).then(r => r.violations)")
        wrong = [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found]
        assert wrong == [], path
    assert errors == []
    page.context.close()


@pytest.fixture(scope="module")
def wordy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, str]]:
    """Jobs with long words: j-0 has failed with one of 3,000 letters, j-1 runs, j-2 waits."""
    world = World(tmp_path_factory.mktemp("wordy"))
    world.add("n0-" + "n" * 40, 8)
    long = {"name": "n" * 150, "model": "m" * 150, "command": ["python", "c" * 900], "retries": 0}
    world.submit("ann", gpus=1, **long)
    world.settle(4)
    for agent in world.agents.values():
        agent.end(0, 1, reason=f"exit code 1; last lines of the log: Traceback | RuntimeError: {'x' * 3000}")
    world.settle(4)
    world.submit("ann", gpus=8, **long)
    world.submit("ann", gpus=8, **long)
    world.settle(4)
    with beating(world), serving(world) as url:
        yield world, url
    world.close()


OPEN = "() => document.querySelectorAll('details').forEach((one) => { one.open = true; })"
#: Tables whose text is cut off at the right end, until somebody scrolls sideways.
CUT = """() => [...document.querySelectorAll(".scroll")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth + 1)
  .map((one) => one.innerText.slice(0, 80))"""


@pytest.mark.parametrize("width", [390, 1400])
def test_long_words_need_no_scrolling_sideways(browser: Any, wordy: tuple[World, str], width: int) -> None:
    page, errors = opened(browser, wordy, viewport={"width": width, "height": 800})
    node = next(iter(wordy[0].agents))
    for path in (
        "/", "/jobs", "/queue", "/events", "/jobs/j-0", "/jobs/j-1", "/jobs/j-2", "/nodes", f"/nodes/{node}", "/costs",
        "/what-if?nodes=%2B2x8",
    ):  # fmt: skip
        page.goto(f"/web{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        if path == "/jobs/j-2":
            page.wait_for_selector("table.outlook")
        page.evaluate(OPEN)
        assert page.evaluate(CUT) == [], path
    page.goto("/web/")
    assert page.locator(".failed .clamp").bounding_box()["height"] < 60
    assert errors == []
    page.context.close()


def test_a_telephone_shows_state_gpus_and_reason_of_every_job(browser: Any, wordy: tuple[World, str]) -> None:
    page, _ = opened(browser, wordy, viewport={"width": 390, "height": 800})
    for path, states in (("/jobs", ("waiting", "running", "failed")), ("/queue", ("running", "waiting"))):
        page.goto(f"/web{path}")
        for row, state in zip(page.locator("table.list tbody tr").all(), states, strict=True):
            assert state in row.inner_text()
            assert row.locator("td[data-unit^=GPU]").inner_text() in ("1", "8")
            assert "nnnnnnnn" in row.inner_text()
            for part in row.locator("td:visible").all():
                box = part.bounding_box()
                assert box["x"] >= 0
                assert box["x"] + box["width"] <= 390
            assert row.locator("a.id").bounding_box()["height"] < 30  # on one line
        assert page.locator("table.list tr", has_text="waiting").locator("td.why").is_visible()
    assert "RuntimeError" in page.goto("/web/jobs").text()
    page.context.close()


def test_a_slash_searches_on_every_page(browser: Any, wordy: tuple[World, str]) -> None:
    page, _ = opened(browser, wordy)
    for path in ("/", "/queue", "/jobs"):
        page.goto(f"/web{path}")
        page.keyboard.press("/")
        page.wait_for_function("() => document.activeElement.type === 'search'")
        assert "/web/jobs" in page.url
    page.keyboard.type("nothing has this name")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=nothing**")
    page.context.close()


@pytest.mark.parametrize("width", [390, 1400])
def test_no_screen_needs_scrolling_sideways(browser: Any, service: tuple[World, str], width: int) -> None:
    page, _ = opened(browser, service, viewport={"width": width, "height": 800})
    for path in SCREENS:
        page.goto(f"/web{path}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        page.evaluate(OPEN)
        assert page.evaluate(CUT) == [], path
    page.goto("/web/submit")
    page.fill("#workdir", "/home/ann/nlp")
    page.click("button:text-is('What if')")
    page.wait_for_selector("#outlook")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.context.close()


def test_the_page_follows_what_happens_and_jobs_are_cancelled(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    name = world.submit(name=f"fresh {HOSTILE}", gpus=1)
    page.goto(f"/web/jobs/{name}")
    page.on("dialog", lambda dialog: dialog.accept())
    assert HOSTILE in page.inner_text("h1")
    page.click("text=Cancel")
    page.wait_for_selector(".head .state.cancelled, .head .state.stopping")
    page.goto("/web/")
    before = page.inner_text(".strip > div:nth-child(3) dd")
    for _ in range(3):
        world.submit(name="another", gpus=8)
    page.wait_for_function(
        "text => document.querySelector('.strip > div:nth-child(3) dd').innerText !== text", arg=before
    )
    assert errors == []
    page.context.close()


def test_what_a_job_uses_is_drawn(browser: Any, service: tuple[World, str]) -> None:
    page, errors = opened(browser, service, color_scheme="light")
    page.goto("/web/jobs/j-1")
    page.wait_for_selector("#usage-charts canvas")
    titles = page.eval_on_selector_all("#usage-charts figcaption", "all => all.map(one => one.textContent)")
    assert titles[:4] == ["GPU utilisation", "GPU memory", "CPU", "Memory"]
    assert {"Disk", "Stages of an iteration", "Goodput", "Batch size"} <= set(titles)
    inked = """() => [...document.querySelectorAll('#usage-charts canvas')].every(one =>
        one.getContext('2d').getImageData(0, 0, one.width, one.height).data.some(x => x))"""
    page.wait_for_function(inked)
    before = page.eval_on_selector("#usage-charts", "one => one.firstChild.querySelector('canvas').toDataURL()")
    page.keyboard.press("t")
    page.wait_for_function(
        "before => document.querySelector('#usage-charts canvas').toDataURL() !== before", arg=before
    )
    page.hover("#usage-charts figure:nth-child(3) .u-over")
    page.wait_for_function("() => /\\d/.test(document.querySelectorAll('#usage-charts .u-legend')[2].innerText)")
    page.click("text=The same as a table")
    assert "iterations a second" in page.inner_text("details:has(> summary:text('The same as a table'))")
    assert errors == []
    page.context.close()


def test_jobs_are_changed_requeued_and_chosen_together(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    names = [world.submit(name="chosen", gpus=8) for _ in range(2)]
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(f"/web/jobs/{names[0]}")
    page.click("text=Change…")
    page.fill("#priority", "-5")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/web/jobs/{names[0]}")
    assert "changed" in page.inner_text(".events")
    page.click("button:text-is('Requeue')")
    page.wait_for_function("() => document.querySelector('.events')?.innerText.includes('sent back to the queue')")
    page.goto("/web/jobs")
    for name in names:
        page.focus(f"[aria-label='Choose {name}']")
        page.keyboard.press("Space")
    page.click("#several button.danger")
    page.wait_for_url("**/web/jobs")
    page.goto(f"/web/jobs/{names[1]}")
    page.wait_for_selector(".head .state.cancelled")
    assert errors == []
    page.context.close()


def test_a_log_is_followed_and_searched(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    page.goto("/web/jobs/j-1")
    page.wait_for_function("() => document.getElementById('log-text').textContent.includes('step')")
    page.fill("#log-search", "step   100")
    page.wait_for_selector("#log-text mark")
    assert page.inner_text("#log-found") == "1 found"
    page.fill("#log-search", "")
    for agent in world.agents.values():
        agent.log += "the <i>last</i> line\n"
    page.wait_for_function("() => document.getElementById('log-text').textContent.includes('the <i>last</i> line')")
    assert page.evaluate("document.querySelector('canvas.timeline').height") > 60
    assert errors == []
    page.context.close()


def test_keys_and_the_theme(browser: Any, service: tuple[World, str]) -> None:
    page, _ = opened(browser, service, color_scheme="light")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/web/jobs")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("/")
    page.keyboard.type("gpt2")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=gpt2**")
    assert "gpt2" in page.inner_text("tbody")
    page.context.close()


def test_a_node_is_drained_and_a_job_submitted(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/web/nodes/n00")
    page.click("text=Drain")
    page.wait_for_selector("text=Resume")
    assert world.engine.state.nodes["n00"].drained
    page.click("text=Resume")
    page.wait_for_selector("text=Drain")
    page.goto("/web/submit?from=j-1")
    page.click("button.main")
    page.wait_for_url("**/web/jobs/j-*")
    assert "gpt2 pretrain 1" in page.inner_text("h1")
    assert errors == []
    page.context.close()


def test_what_if_fills_in_a_variant_and_submits_nothing(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    numbers = world.engine.state.numbers
    page.goto("/web/submit?from=j-4")
    page.fill("#name", "asked only")
    page.click("button:text-is('What if')")
    page.wait_for_selector("#outlook")
    assert page.url.endswith("/web/submit?from=j-4")
    assert page.input_value("#name") == "asked only"
    before = page.input_value("#gpus")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']}).then(r => r.violations)")
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
    variant = page.locator("button:has-text('--gpus')").first
    wanted = variant.inner_text().split()[-1]
    assert 0 < int(wanted) < int(before)
    variant.click()
    page.wait_for_function("wanted => document.querySelector('#gpus').value === wanted", arg=wanted)
    assert world.engine.state.numbers == numbers
    page.click("button:text-is('Submit')")
    page.wait_for_url("**/web/jobs/j-*")
    assert "asked only" in page.inner_text("h1")
    assert errors == []
    page.context.close()


def test_a_job_that_waits_loads_what_other_sizes_would_bring(browser: Any, service: tuple[World, str]) -> None:
    page, errors = opened(browser, service)
    page.goto("/web/jobs/j-39")
    page.wait_for_selector("#like-it-section table")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21aa']}).then(r => r.violations)")
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found] == []
    assert "80 %: " in page.inner_text("#like-it-section")
    assert errors == []
    page.context.close()


def test_the_queue_under_another_choice_names_who_gains(browser: Any, service: tuple[World, str]) -> None:
    page, errors = opened(browser, service)
    page.goto("/web/policy")
    page.click("text=More nodes, a node less")
    page.wait_for_url("**/web/what-if")
    page.fill("#nodes", "+4x8")
    page.keyboard.press("Enter")
    page.wait_for_selector("#gain")
    assert page.locator("section[aria-labelledby=gain] tbody tr").count() > 0
    assert "sooner" in page.inner_text("section[aria-labelledby=gain] tbody tr:first-child")
    page.fill("#nodes", "many")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    errors[:] = [one for one in errors if "422" not in one]
    assert errors == []
    page.context.close()


def test_what_is_open_stays_open_when_the_page_is_refreshed(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    page.goto("/web/jobs/j-1")
    page.focus("summary:text('Its file')")
    page.keyboard.press("Enter")
    page.evaluate("document.addEventListener('htmx:after:swap', () => { window.refreshed = true; })")
    world.submit(name="something new", gpus=8)
    page.wait_for_function("() => window.refreshed")
    assert page.locator("details:has(> summary:text('Its file'))").evaluate("one => one.open")
    assert page.evaluate("document.activeElement.textContent") == "Its file"
    assert errors == []
    page.context.close()


def test_a_log_is_not_read_aloud_and_odd_bytes_in_it_are_text(browser: Any, service: tuple[World, str]) -> None:
    world, _ = service
    page, errors = opened(browser, service)
    before = {name: agent.log for name, agent in world.agents.items()}
    for agent in world.agents.values():
        agent.log = f"{HOSTILE}\n\x1b[31mred\x1b[0m \x00 \ufffd \u202eabc\n{'x' * 300_000}\nafter the long line\n"
    page.goto("/web/jobs/j-1")
    page.wait_for_function("() => document.getElementById('log-text').textContent.includes('after the long line')")
    text = page.evaluate("document.getElementById('log-text').textContent")
    assert text.startswith(f"{HOSTILE}\n\x1b[31mred")
    assert text.count("x" * 300_000) == 1
    assert page.locator("#log-text *").count() == 0
    assert page.get_attribute("#log-text", "aria-live") == "off"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    for name, agent in world.agents.items():
        agent.log = before[name]
    assert errors == []
    page.context.close()


def test_filters_of_events_combine_and_follow_the_address(browser: Any, service: tuple[World, str]) -> None:
    page, errors = opened(browser, service)
    page.goto("/web/events")
    page.select_option("[name=kind]", "starts")
    page.fill("[name=q]", "j-1 ")
    page.keyboard.press("Enter")
    page.wait_for_url("**kind=starts&q=j-1**")
    address, rows = page.url, page.locator("tbody tr").count()
    assert rows
    assert all("started" in text for text in page.locator("tbody td:nth-child(3)").all_inner_texts())
    page.fill("[name=q]", "nobody has this name")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=nobody**")
    page.wait_for_selector(".empty")
    page.go_back()
    page.wait_for_url(address)
    assert (page.input_value("[name=kind]"), page.input_value("[name=q]")) == ("starts", "j-1")
    assert page.locator("tbody tr").count() == rows
    assert errors == []
    page.context.close()
