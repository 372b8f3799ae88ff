"""The runner's throttle of a guest that does not pace itself, in virtual time, and the freezer by signals."""

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.live.agent.pages import PageReader
from plait.live.agent.processes.throttle import PACED_S, QUANTUM_S, SIGNALLED_QUANTUM_S, WINDOW_S, Throttle, opened
from plait.live.system import procs
from plait.live.system.freezer import Freezer
from plait.runtime.page import JobState, Page, Throttled

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="runners need Linux")


class Recorded:
    """A freezer that counts seconds of a virtual clock."""

    def __init__(self, *, uses_group: bool = True) -> None:
        self.now_s, self.uses_group = 1000.0, uses_group
        self.frozen, self.closed, self.flips = False, False, 0
        self.ran_s, self.longest_s, self._run_s = 0.0, 0.0, 0.0

    def freeze(self) -> None:
        self.frozen, self._run_s = True, 0.0
        self.flips += 1

    def thaw(self) -> None:
        self.frozen = False

    def close(self) -> None:
        self.frozen, self.closed = False, True

    def clock(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        if not self.frozen:
            self.ran_s += seconds
            self._run_s += seconds
            self.longest_s = max(self.longest_s, self._run_s)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    with Page.create(tmp_path / "page.bin") as words:
        words.share, words.share_until = 0.0, 1e9
        yield words


@pytest.mark.parametrize("extended", [False, True])
def test_a_guest_that_cuts_its_page_short_is_frozen(page: Page, extended: bool) -> None:
    freezer, throttle = throttled(page)
    page.share = 1.0
    throttle.turn()
    assert not freezer.frozen
    with page.path.open("r+b") as file:
        size = file.seek(0, 2)
        file.truncate(0)
        file.truncate(size if extended else 0)
    for _ in range(100):
        freezer.wait(throttle.turn() or 0.0)
    assert freezer.frozen
    assert not freezer.closed


def made(page: Page, freezer: Recorded) -> Throttle:
    return Throttle(page.path, freezer, freezer.clock)  # type: ignore[arg-type]


def throttled(page: Page) -> tuple[Recorded, Throttle]:
    freezer = Recorded()
    return freezer, made(page, freezer)


def drive(throttle: Throttle, freezer: Recorded, seconds: float, late_s: float = 0.0) -> float:
    """Run it for so long, waking up to `late_s` too late; the part of the time that was not frozen."""
    draws, before_s, begin_s = random.Random(3), freezer.ran_s, freezer.now_s
    while freezer.now_s < begin_s + seconds:
        wait_s = throttle.turn()
        assert wait_s is not None
        assert wait_s > 0
        freezer.wait(wait_s + late_s * draws.random())
    return (freezer.ran_s - before_s) / (freezer.now_s - begin_s)


def test_what_starts_while_a_guest_without_a_share_stands_still_is_frozen_at_the_next_look(page: Page) -> None:
    freezer, throttle = throttled(page)
    throttle.turn()
    assert freezer.frozen
    freezer.frozen = False  # a process that no scan had found
    throttle.turn()
    assert freezer.frozen


@pytest.mark.parametrize("late_s", [0.0, 0.002, 0.03])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.35, 0.5, 0.8, 0.9, 0.97, 1.0])
def test_a_guest_runs_for_its_share(page: Page, share: float, late_s: float) -> None:
    freezer, throttle = throttled(page)
    page.share = share
    assert drive(throttle, freezer, 60.0, late_s) == pytest.approx(share, abs=0.02)
    assert page.throttle_duty == pytest.approx(share, abs=0.03)
    assert page.throttle == Throttled.CGROUP
    if share == 1.0:
        assert freezer.flips == 0
    elif share <= 0.8 and not late_s:
        assert freezer.longest_s == pytest.approx(QUANTUM_S, rel=0.01)


def test_no_share_or_no_lease_freezes_and_a_late_runner_is_no_excuse(page: Page) -> None:
    freezer, throttle = throttled(page)
    assert drive(throttle, freezer, 5.0) == 0.0
    page.share = 0.5
    drive(throttle, freezer, 5.0)
    freezer.wait(3.0)  # the runner did not get a CPU, whether it had frozen the guest or not
    drive(throttle, freezer, 3.0)
    assert drive(throttle, freezer, 10.0) == pytest.approx(0.5, abs=0.02)
    page.share_until = freezer.now_s + 2.0  # from now on without an agent
    assert drive(throttle, freezer, 2.1) == pytest.approx(0.5, abs=0.05)
    assert drive(throttle, freezer, 5.0) == 0.0
    page.share = float("nan")
    page.share_until = 1e9
    assert drive(throttle, freezer, 1.0) == 0.0
    page.share = 0.5
    assert drive(throttle, freezer, 10.0) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_guest_makes_up_for_seconds_at_most_after_a_runner_that_got_no_cpu(page: Page, frozen: bool) -> None:
    freezer, throttle = throttled(page)
    page.share = 0.5
    drive(throttle, freezer, 5.0)
    while freezer.frozen is not frozen:
        freezer.wait(throttle.turn() or 0.0)
    freezer.wait(30.0)
    drive(throttle, freezer, 2.1)
    assert drive(throttle, freezer, 10.0) == pytest.approx(0.5, abs=0.02)


def test_signals_are_sent_a_quarter_as_often(page: Page) -> None:
    freezer = Recorded(uses_group=False)
    throttle = made(page, freezer)
    page.share = 0.5
    assert drive(throttle, freezer, 20.0) == pytest.approx(0.5, abs=0.01)
    assert freezer.flips <= 20.0 / (2 * SIGNALLED_QUANTUM_S) + 2
    assert (page.throttle, page.throttle_quantum_s) == (Throttled.SIGNALS, SIGNALLED_QUANTUM_S)


def test_a_guest_that_paces_itself_is_left_alone_until_it_stops_doing_so(page: Page) -> None:
    freezer, throttle = throttled(page)
    assert drive(throttle, freezer, 1.0) == 0.0
    page.share = 0.2
    page.paced_monotonic = freezer.now_s  # it has attached, and checked its share
    freezer.wait(throttle.turn() or 0.0)
    assert (freezer.frozen, page.throttle, page.throttle_quantum_s) == (False, Throttled.NOT, 0.0)
    assert drive(throttle, freezer, PACED_S - 1.0) == pytest.approx(1.0)
    drive(throttle, freezer, 1.5)  # training is over, and an evaluation without plait began
    assert drive(throttle, freezer, 20.0) == pytest.approx(0.2, abs=0.02)
    assert page.throttle == Throttled.CGROUP
    page.paced_monotonic = freezer.now_s + 50.0  # no time that can be
    assert drive(throttle, freezer, 10.0) == pytest.approx(0.2, abs=0.05)


@pytest.mark.parametrize("sharing", [None, {"guest": False, "hosts": []}])
def test_a_host_is_free_for_good(page: Page, sharing: dict[str, object] | None) -> None:
    freezer, throttle = throttled(page)
    drive(throttle, freezer, 1.0)
    assert freezer.frozen
    page.share_until = 0.0
    (page.path.parent / "control.json").write_text(json.dumps({"sharing": sharing}))
    assert throttle.turn() is None
    assert (freezer.frozen, freezer.closed, page.throttle) == (False, True, Throttled.NOT)
    page.share_until = 1e9
    assert throttle.turn() is None
    throttle.release()


@pytest.mark.parametrize("control", [None, "{", '{"sharing": {"guest": true}}', '{"sharing": {"guest": 1}}'])
def test_a_guest_that_makes_itself_a_host_in_its_page_alone_is_frozen(page: Page, control: str | None) -> None:
    freezer, throttle = throttled(page)
    if control is not None:
        (page.path.parent / "control.json").write_text(control)
    page.share, page.share_until = 1.0, 0.0
    assert drive(throttle, freezer, 5.0) == 0.0
    page.share_until = 1e9
    assert drive(throttle, freezer, 5.0) == pytest.approx(1.0)


def test_a_guest_that_notes_checks_but_obeys_no_new_share_is_throttled(page: Page) -> None:
    freezer, throttle = throttled(page)
    page.share, page.share_number = 0.2, 1

    def ran(seconds: float, *, obeys: bool) -> float:
        before_s, end_s = freezer.ran_s, freezer.now_s + seconds
        while freezer.now_s < end_s:
            page.paced_monotonic = freezer.now_s
            if obeys:
                page.share_reached = page.share_number
            freezer.wait(throttle.turn() or 0.0)
        return (freezer.ran_s - before_s) / seconds

    assert ran(5.0, obeys=True) == pytest.approx(1.0, abs=0.01)
    page.share_number = 2
    assert ran(PACED_S - 0.5, obeys=False) == pytest.approx(1.0, abs=0.01)
    ran(4.0, obeys=False)
    assert ran(10.0, obeys=False) == pytest.approx(0.2, abs=0.02)
    assert page.throttle == Throttled.CGROUP
    ran(1.0, obeys=True)
    assert ran(5.0, obeys=True) == pytest.approx(1.0, abs=0.01)


def test_a_guest_may_load_what_it_needs_until_it_opens_the_gpu(page: Page) -> None:
    freezer, used = Recorded(), False
    throttle = Throttle(page.path, freezer, freezer.clock, uses_gpu=lambda: used)  # type: ignore[arg-type]
    assert drive(throttle, freezer, 5.0) == pytest.approx(1.0)
    assert page.throttle == Throttled.NOT
    used = True
    drive(throttle, freezer, 0.5)
    used = False  # once is enough
    assert drive(throttle, freezer, 5.0) == 0.0
    page.share = 0.4
    drive(throttle, freezer, 2.0)  # it makes up for the moment before it was noticed
    assert drive(throttle, freezer, 10.0) == pytest.approx(0.4, abs=0.02)


def test_open_files_of_processes_are_found(tmp_path: Path) -> None:
    files = (str(tmp_path / "nvidia"),)
    (tmp_path / "nvidia0").touch()
    code = "import sys\nfor line in sys.stdin: file = open(line.strip()); print('open', flush=True)"
    job = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert job.stdin is not None
        assert job.stdout is not None
        assert not opened([job.pid], files)
        job.stdin.write(f"{tmp_path / 'nvidia0'}\n")
        assert job.stdout.readline() == "open\n"
        assert opened([2**22 + 1, job.pid], files)
        assert not opened([job.pid])
    finally:
        job.kill()
        job.communicate()
    assert not opened([job.pid], files)


def test_without_a_page_nothing_runs(tmp_path: Path) -> None:
    freezer = Recorded()
    throttle = Throttle(tmp_path / "none", freezer, freezer.clock)  # type: ignore[arg-type]
    assert drive(throttle, freezer, WINDOW_S) == 0.0
    throttle.release()
    assert not freezer.frozen


def test_time_in_which_a_job_is_frozen_is_no_hang(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = time.monotonic()
    page.state, page.in_stage, page.step_s, page.stage_since = JobState.RUNNING, 3, 0.1, now_s
    page.frozen_s = 7.0
    reader = PageReader(page.path)

    def stuck(after_s: float) -> str | None:
        monkeypatch.setattr(time, "monotonic", lambda: now_s + after_s)
        return reader.stuck(30.0)

    assert stuck(1.0) is None
    page.frozen_s = 107.0
    assert stuck(120.0) is None
    assert "hung: 34 s" in str(stuck(134.0))
    reader.close()


def test_signals_stop_and_wake_those_that_ran_and_nobody_else() -> None:
    code = "import time\nwhile True: time.sleep(0.01)"
    jobs = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(3)]
    runs, own, late = jobs
    found = {runs.pid, own.pid}
    freezer = Freezer("no such attempt", lambda: found, lambda: clock_s)
    clock_s = 0.0

    def states() -> list[str]:
        deadline_s = time.monotonic() + 10
        while True:  # a signal takes effect a moment later
            fields = [procs.stat_fields(job.pid) for job in jobs]
            now = ["T" if at and at[0] == b"T" else "-" for at in fields]
            if now == wanted or time.monotonic() > deadline_s:
                return now
            time.sleep(0.005)

    try:
        assert not freezer.uses_group
        own.send_signal(signal.SIGSTOP)  # by the job itself
        wanted = ["-", "T", "-"]
        assert states() == wanted
        freezer.freeze()
        wanted = ["T", "T", "-"]
        assert states() == wanted
        freezer.thaw()
        wanted = ["-", "T", "-"]
        assert states() == wanted
        found.add(late.pid)  # started since the last scan
        clock_s = 1.0
        freezer.freeze()
        wanted = ["T", "T", "T"]
        assert states() == wanted
        late.kill()
        late.wait()
        freezer.thaw()
        freezer.freeze()
        freezer.close()
        wanted = ["-", "T", "-"]
        assert states() == wanted
        assert not freezer._fds
    finally:
        for job in jobs:
            job.kill()
            job.wait()
