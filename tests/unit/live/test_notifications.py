"""Notifications: which events are told to whom, retries, restarts, the ways to send, and the file of channels."""

import json
import math
import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from live_cases import Cluster, Node

from plait.control.messages import JobCancelled
from plait.core.errors import InputError
from plait.live.protocol.requests import EVENTS
from plait.live.service import notifications
from plait.live.store import StoreError

Make = Callable[..., Cluster]
NOTICE = notifications.Notice(
    "7-j-3", "failed", "j-3", "net", "ann", "vision", "2026-11-27T08:00:00+00:00", "boom", "j-3 of ann"
)


@dataclass
class World:
    """A cluster, and followers of its log by an inbox; waiting moves the clock."""

    cluster: Cluster
    inbox: list[notifications.Notice] = field(default_factory=list)
    #: Tries that fail before one succeeds.
    failures: int = 0
    tries: int = 0
    pauses: list[float] = field(default_factory=list)
    ends: bool = False

    def is_set(self) -> bool:
        return self.ends

    def wait(self, timeout: float) -> bool:
        self.pauses.append(timeout)
        self.cluster.now += timeout
        return self.ends

    def send(self, notice: notifications.Notice) -> None:
        self.tries += 1
        if self.failures:
            self.failures -= 1
            raise notifications.Undeliverable("it answered 500")
        self.inbox.append(notice)

    def give_up(self, channel: str, job: int, event: str, why: str) -> None:
        self.cluster.engine.undelivered(channel, job, event, why, self.cluster.now)

    def deliver(self, follower: notifications.Follower) -> None:
        """Follow until nothing is late."""
        follower.follow()
        while math.isfinite(pause_s := follower.next_try_s()):
            self.wait(pause_s)
            follower.follow()

    def follower(self, **choice: Any) -> notifications.Follower:
        """A follower as a service that starts has it."""
        channel = notifications.NotificationChannel("mail", self.send, **{"events": EVENTS, **choice})
        made = notifications.Follower(channel, self.cluster.store, lambda: self.cluster.now, self.give_up, self)
        made.follow()
        return made

    @property
    def sent(self) -> list[tuple[str, str]]:
        return [(one.job, one.event) for one in self.inbox]

    def undelivered(self) -> list[dict[str, Any]]:
        return [json.loads(one.entry) for one in self.cluster.store.entries() if one.type == "Undelivered"]


def end(cluster: Cluster, job: int, exit_code: int = 0, **more: Any) -> None:
    for node in cluster.nodes:
        node.end(job, exit_code, **more)
    cluster.pass_s(3.0)


def test_each_event_of_a_job_is_told_once(cluster: Make) -> None:
    world = World(cluster([2]))
    c, follower = world.cluster, world.follower()
    done, fails, waits = c.submit({}, {"retries": 1, "name": "net"}, {"gpus": 2}, then_s=3.0)
    end(c, fails, 1, reason="boom 1")  # is retried, which nobody has to know
    end(c, fails, 2, reason="boom 2")
    end(c, done)
    c.engine.cancel(waits, c.now, by="bob")
    c.pass_s(3.0)
    follower.follow()
    j = [f"j-{number}" for number in (done, fails, waits)]
    assert [event for job, event in world.sent if job == j[0]] == ["started", "finished"]
    assert [event for job, event in world.sent if job == j[1]] == ["started", "failed"]
    assert [event for job, event in world.sent if job == j[2]][-1] == "cancelled"
    failed = next(one for one in world.inbox if one.event == "failed")
    assert failed.text == f"{j[1]} (net) of ann: failed, boom 2 (exit code 2); failed 2 times"
    assert next(one.reason for one in world.inbox if one.event == "cancelled") == "by bob"
    follower.follow()
    assert len(world.inbox) == len({one.id for one in world.inbox}) == 6


def test_a_preemption_is_told_with_the_job_it_is_for_and_a_requeue_is_none(cluster: Make) -> None:
    world = World(cluster([1], policy="srsf"))
    c, follower = world.cluster, world.follower(events=("preempted",))
    (long,) = c.submit({"iterations": 1e6, "profile": {"gpu": 1.0}}, then_s=3.0)
    c.engine.requeue(long, c.now, by="ann", may_lose_work=True)
    c.pass_s(5.0)
    follower.follow()
    assert world.sent == []
    (short,) = c.submit({"iterations": 10, "profile": {"gpu": 1.0}}, owner="bob", then_s=5.0)
    follower.follow()
    assert world.sent == [(f"j-{long}", "preempted")]
    assert f"for j-{short} of bob" in world.inbox[0].reason


def test_the_warning_before_a_time_limit_is_told(cluster: Make) -> None:
    world = World(cluster([1]))
    c, follower = world.cluster, world.follower(events=("time-limit",))
    (job,) = c.submit({"time_limit_s": 10.0, "signal_s": 4.0}, then_s=2.2)
    c.nodes[0].obeys = False
    for held_s in (3.0, 7.0):
        c.nodes[0].report(job, held_s=held_s, then_s=4.0)
    follower.follow()
    assert world.sent == [(f"j-{job}", "time-limit")]
    assert world.inbox[0].reason == "is asked to stop for its time limit of 10.0 s (--time)"
    c.nodes[0].obeys = True


def test_of_ranks_that_hang_the_first_is_told(cluster: Make) -> None:
    world = World(cluster([2]))
    c, follower = world.cluster, world.follower(events=("hung",))
    (job,) = c.submit({"gpus": 2, "retries": 1})
    for _ in range(2):
        c.pass_s(3.0)
        for rank in (0, 1):
            c.nodes[0].end(job, -9, rank, reason="hung: 31 s in its gpu stage, where 30 s are allowed")
        c.pass_s(3.0)
    follower.follow()
    assert world.sent == [(f"j-{job}", "hung")] * 2  # one an attempt
    assert world.inbox[0].reason.startswith("rank 0 hung: 31 s in its gpu stage")


@pytest.mark.parametrize(
    ("choice", "request_", "expected"),
    [
        ({}, {}, True),
        ({"events": ("failed",)}, {}, False),
        ({"users": ("bob",)}, {}, False),
        ({"users": ("bob", "ann")}, {}, True),
        ({"projects": ("vision",)}, {}, False),
        ({"projects": ("vision",)}, {"project": "vision"}, True),
        ({"named": True}, {}, False),
        ({"named": True}, {"notify": ["mail"]}, True),
        ({"named": True, "users": ("bob",)}, {"notify": ["mail"]}, True),
        ({"events": ("failed",)}, {"notify": ["mail:finished+started"]}, True),
        ({}, {"notify": ["mail:failed"]}, False),
    ],
)
def test_channels_choose_by_event_user_project_and_the_jobs_own_wish(
    cluster: Make, choice: dict[str, Any], request_: dict[str, Any], expected: bool
) -> None:
    world = World(cluster(channels=("mail",)))
    c, follower = world.cluster, world.follower(**choice)
    c.engine.set_project("vision", gpu_quota=None, weight=1.0, now_s=c.now)
    (job,) = c.submit(request_, then_s=2.0)
    end(c, job)
    follower.follow()
    assert ((f"j-{job}", "finished") in world.sent) == expected


def test_failed_tries_are_repeated_with_longer_pauses_and_in_order(cluster: Make) -> None:
    world = World(cluster(), failures=4)
    c, follower = world.cluster, world.follower(events=("started", "finished"))
    (job,) = c.submit({}, then_s=2.0)
    end(c, job)
    world.deliver(follower)
    assert world.pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 0.0])
    assert world.sent == [(f"j-{job}", "started"), (f"j-{job}", "finished")]
    assert world.undelivered() == []


def test_a_notification_that_never_arrives_is_given_up_with_an_entry_in_the_log(cluster: Make) -> None:
    world = World(cluster(), failures=10**6)
    c, follower = world.cluster, world.follower(events=("started",))
    job, other = c.submit({}, {}, then_s=2.0)
    began = c.now
    world.deliver(follower)
    given_up = world.undelivered()
    assert [(one["job"], one["event"], one["why"]) for one in given_up] == [
        (job, "started", "it answered 500"), (other, "started", "it answered 500"),
    ]  # fmt: skip
    assert notifications.GIVE_UP_S <= c.now - began < 1.1 * notifications.GIVE_UP_S  # with what waited behind it
    assert max(world.pauses) == 300.0
    world.failures = 0
    world.deliver(follower)
    assert world.inbox == []


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (notifications.Refused("it answered 404"), "it answered 404"),
        (ValueError("http://host/secret"), "not sent: ValueError"),
    ],
)
def test_a_notification_that_cannot_arrive_delays_no_other_one(
    cluster: Make, monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    world = World(cluster())
    c, follower = world.cluster, world.follower(events=("started",))
    job, other = c.submit({}, {}, then_s=2.0)
    send = world.send

    def refusing(notice: notifications.Notice) -> None:
        if notice.job == f"j-{job}":
            raise error
        send(notice)

    follower.channel = notifications.NotificationChannel("mail", refusing, ("started",))
    follower.follow()
    assert world.pauses == []
    assert world.sent == [(f"j-{other}", "started")]
    assert [(one["job"], one["why"]) for one in world.undelivered()] == [(job, why)]


def test_an_entry_that_cannot_be_understood_delays_no_later_one(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(message: Any) -> Any:
        raise KeyError("epoch")

    world = World(cluster())
    c, follower = world.cluster, world.follower()
    monkeypatch.setitem(notifications._EVENTS, "AttemptBegan", broken)
    (job,) = c.submit({}, then_s=2.0)
    end(c, job)
    follower.follow()
    assert world.sent == [(f"j-{job}", "finished")]


def test_a_job_that_is_cancelled_before_its_admission_is_told_once(cluster: Make) -> None:
    world = World(cluster([]))
    c, follower = world.cluster, world.follower()
    (job,) = c.submit({})
    c.engine.cancel(job, c.now, by="bob")
    c.nodes.append(Node(c, "n0", 2))
    c.pass_s(3.0)
    follower.follow()
    assert [one.type for one in c.store.entries(job=job) if one.type in ("CancelAsked", "JobCancelled")] == [
        "CancelAsked", "JobCancelled",
    ]  # fmt: skip
    assert world.sent == [(f"j-{job}", "cancelled")]


@pytest.mark.parametrize("dies", ["before", "while sending", "after", "between tries"])
def test_a_restart_sends_nothing_twice_and_loses_nothing_silently(cluster: Make, dies: str) -> None:
    class Died(BaseException):
        pass

    world = World(cluster())
    c, follower = world.cluster, world.follower(events=("started",))
    (job,) = c.submit({}, then_s=2.0)

    def die(notice: notifications.Notice) -> None:
        world.inbox.append(notice)
        raise Died

    if dies == "while sending":
        follower.channel = notifications.NotificationChannel("mail", die, ("started",))
        with pytest.raises(Died):
            follower.follow()
    elif dies == "between tries":
        world.failures, world.ends = 1, True
        follower.follow()
        world.ends = False
    elif dies == "after":
        follower.follow()
    c.restart(then_s=3.0)
    world.follower(events=("started",)).follow()
    assert world.sent == [(f"j-{job}", "started")]
    whys = [one["why"] for one in world.undelivered()]
    assert whys == (["the service ended while it was sent; it may have arrived"] if dies == "while sending" else [])
    world.follower(events=("started",)).follow()
    assert len(world.inbox) == 1
    assert len(world.undelivered()) == len(whys)


def test_a_service_that_was_replaced_sends_nothing(cluster: Make) -> None:
    world = World(cluster())
    c, follower = world.cluster, world.follower()
    c.submit({}, then_s=2.0)
    c.store.term = -1  # another leader has raised the term since
    with pytest.raises(StoreError):
        follower.follow()
    assert world.tries == 0
    c.restart()


def test_a_channel_that_is_new_tells_nothing_of_the_past(cluster: Make) -> None:
    world = World(cluster())
    (job,) = world.cluster.submit({})
    world.cluster.pass_s(2.0)
    follower = world.follower()
    end(world.cluster, job)
    follower.follow()
    assert world.sent == [(f"j-{job}", "finished")]


@pytest.mark.parametrize("ends", ["with the service", "when its service dies"])
def test_a_changed_choice_tells_nothing_of_what_was_passed(cluster: Make, ends: str) -> None:
    world = World(cluster())
    c, follower = world.cluster, world.follower(events=("failed",))
    c.submit({}, then_s=2.0)
    follower.follow()
    if ends == "with the service":
        world.ends = True
        follower.run()
    else:
        c.now += notifications.KEEP_S
        follower.follow()
    c.restart()
    world.follower(events=EVENTS).follow()
    assert world.sent == []


def test_a_changed_choice_skips_none_of_an_entry_that_is_half_sent(cluster: Make) -> None:
    world = World(cluster([2]))
    c, follower = world.cluster, world.follower(events=("cancelled",))
    (first,), (second,) = c.submit({}, owner="bob"), c.submit({}, owner="ann", then_s=2.0)
    c.engine.context.record(JobCancelled(c.now, np.array([first, second]), "bob"))
    c.pass_s(2.0)
    send = world.send

    def fail_for_ann(notice: notifications.Notice) -> None:
        if notice.user == "ann":
            world.failures, world.ends = 1, True
        send(notice)

    follower.channel = notifications.NotificationChannel("mail", fail_for_ann, ("cancelled",))
    follower.follow()
    world.ends = False
    assert world.sent == [(f"j-{first}", "cancelled")]
    c.restart()
    world.follower(events=("cancelled",), users=("ann",)).follow()
    assert world.sent[1:] == [(f"j-{second}", "cancelled")]


def test_a_channel_that_comes_back_tells_nothing_of_the_time_without_it(cluster: Make) -> None:
    world = World(cluster())
    c, channel = world.cluster, notifications.NotificationChannel("mail", world.send, EVENTS)

    def serve(*channels: notifications.NotificationChannel) -> None:
        world.ends = True  # the threads end at once
        for thread in notifications.start_followers(channels, c.store, lambda: c.now, world.give_up, world):
            thread.join()

    serve(channel)
    world.follower()
    (job,) = c.submit({})
    serve(channel)
    c.pass_s(2.0)
    world.follower()
    assert world.sent == [(f"j-{job}", "started")]
    serve()
    end(c, job)
    serve(channel)
    world.follower()
    assert len(world.inbox) == 1


@pytest.mark.parametrize(
    ("notify", "channels", "words"),
    [
        ("mial", ("mail",), "notify is 'mial', and there is no such channel; did you mean 'mail'?"),
        ("mail", (), "notify is 'mail', and there is no such channel; this cluster has none: plait up --notify FILE"),
        ("mail:ended", ("mail",), "notify is 'mail:ended': unknown event 'ended'; known: started, finished"),
    ],
)
def test_unknown_channels_and_events_are_refused(
    cluster: Make, notify: str, channels: tuple[str, ...], words: str
) -> None:
    c = cluster(channels=channels)
    with pytest.raises(InputError, match=re.escape(words)):
        c.submit({"notify": [notify]})


# -- ways to send ------------------------------------------------------------------------------------------


@contextmanager
def served(server: Any) -> Iterator[Any]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("code", [204, 503, 429, 404])
def test_a_webhook_gets_json_and_only_a_success_counts(code: int) -> None:
    bodies = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append((self.headers["Content-Type"], self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(code)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as server:
        url = f"http://127.0.0.1:{server.server_port}/secret"
        if code == 204:
            notifications.post(url, NOTICE)
        else:
            with pytest.raises(
                notifications.Undeliverable, match=f"^it answered {code} {HTTPStatus(code).phrase}$"
            ) as failed:
                notifications.post(url, NOTICE)
            assert isinstance(failed.value, notifications.Refused) == (code == 404)
    ((kind, body),) = bodies
    assert kind == "application/json"
    assert msgspec.json.decode(body, type=notifications.Notice) == NOTICE
    with pytest.raises(notifications.Undeliverable, match="ConnectError") as refused:
        notifications.post(url, NOTICE)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("code", [250, 450, 550])
def test_a_mail_goes_to_the_user_of_the_job(code: int) -> None:
    lines: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            for line in iter(self.rfile.readline, b""):
                lines.append(line.decode().rstrip())
                word = lines[-1].split()[0].upper() if lines[-1] else ""
                if word == "DATA":
                    self.wfile.write(b"354 go on\r\n")
                    while (text := self.rfile.readline()) != b".\r\n":
                        lines.append(text.decode().rstrip())
                answer = {"QUIT": "221 bye", "RCPT": f"{code} ann"}.get(word, "250 fine")
                self.wfile.write(f"{answer}\r\n".encode())
                if word == "QUIT":
                    return

    with served(socketserver.TCPServer(("127.0.0.1", 0), Handler)) as server:
        url = f"smtp://127.0.0.1:{server.server_address[1]}"
        if code != 250:
            with pytest.raises(notifications.Undeliverable, match=str(code)) as failed:
                notifications.mail(url, "plait@lab.example", "{user}@lab.example", NOTICE)
            assert isinstance(failed.value, notifications.Refused) == (code == 550)
            return
        notifications.mail(url, "plait@lab.example", "{user}@lab.example", NOTICE)
    assert "To: ann@lab.example" in lines
    assert "Subject: [plait] j-3 net failed" in lines
    assert "plait logs j-3" in lines
    with pytest.raises(notifications.Undeliverable, match="Connection refused"):
        notifications.mail(url, "plait@lab.example", "{user}@lab.example", NOTICE)


def test_a_command_gets_the_notification_and_its_error_is_the_cause(tmp_path: Path) -> None:
    file = tmp_path / "got"
    code = f"import os, sys; open({str(file)!r}, 'w').write(sys.stdin.read() + os.environ['PLAIT_EVENT'])"
    notifications.run_command([sys.executable, "-c", code], NOTICE)
    assert file.read_text() == msgspec.json.encode(NOTICE).decode() + "failed"
    with pytest.raises(notifications.Undeliverable, match="exit code 1: no such pager"):
        notifications.run_command([sys.executable, "-c", "import sys; sys.exit('no such pager')"], NOTICE)
    with pytest.raises(notifications.Undeliverable, match=r"^FileNotFoundError: No such file or directory$"):
        notifications.run_command(["/no/such/secret"], NOTICE)


def test_processes_that_a_command_leaves_in_the_background_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"
    notifications.run_command(["sh", "-c", f"sleep 600 & echo $! > {file}"], NOTICE)
    os.kill(int(file.read_text()), signal.SIGKILL)  # fails unless it runs
    file.unlink()
    monkeypatch.setattr("plait.live.service.notifications.TRY_S", 0.3)
    while not file.exists() or not file.read_text():
        with pytest.raises(notifications.Undeliverable, match=r"^no end within 0\.3 s$"):
            notifications.run_command(["sh", "-c", f": secret; sleep 600 & echo $! > {file}; wait"], NOTICE)
    command_line = Path("/proc", file.read_text().strip(), "cmdline")
    while command_line.exists() and command_line.read_bytes():  # a process that was ended has none
        time.sleep(0.01)


def test_the_service_log_has_no_addresses_of_webhooks(tmp_path: Path) -> None:
    code = (
        "import sys, httpx; from pathlib import Path; from plait.live.service.main import begin_log\n"
        "begin_log(Path(sys.argv[1]))\n"
        "answers = httpx.MockTransport(lambda request: httpx.Response(204))\n"
        "httpx.Client(transport=answers).post('http://chat.example/secret')"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "log")], check=True)
    assert "secret" not in (tmp_path / "log").read_text()


# -- the file of channels ------------------------------------------------------------------------------------

FILE = """
[chat]
webhook = "https://chat.example/hook"
events = ["failed"]
projects = ["vision"]

[mail]
smtp = "smtps://plait:s%40t@mail.example"
sender = "plait@lab.example"
to = "{user}@lab.example"
named = true

[pager]
command = ["page", "--now"]
"""


def test_the_file_of_channels_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notify.toml"
    path.write_text(FILE)
    chat, mailed, pager = notifications.read_channels(path)
    assert (chat.name, chat.events, chat.projects, chat.named) == ("chat", ("failed",), ("vision",), False)
    assert mailed.named
    assert pager.events == ("finished", "failed", "hung", "time-limit")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = ", "not readable as TOML"),
        ("[Chat]\ncommand = ['a']", "[Chat]: a channel is a table whose name"),
        ("[chat]\nevents = ['failed']", "[chat]: has no way to send; give one of webhook, smtp, command"),
        ("[chat]\ncommand = ['a']\nwebhook = 'https://b'", "[chat]: has webhook and command; give one of"),
        ("[chat]\ncommand = ['a']\nevent = ['failed']", "unknown field 'event' of a channel with command; did you"),
        ("[chat]\ncommand = ['a']\nevents = ['fail']", "unknown event 'fail'; did you mean 'failed'?"),
        ("[chat]\ncommand = 'a b'", "command is 'a b'; write a list of texts"),
        ("[chat]\nwebhook = 'chat.example'", "webhook is no address; write http://host or https://host"),
        ("[chat]\nwebhook = 'http://a:port'", "webhook is no address"),
        ("[mail]\nsmtp = 'smtp://a'\nsender = 'a@b'", "to is None; write a text"),
        ("[mail]\nsmtp = 'smtp://a'\nsender = 'a@b'\nto = 'ann'", "sender and to need an address"),
        ("[chat]\ncommand = ['a']\nnamed = 'yes'", "named is 'yes'; write true or false"),
    ],
)
def test_an_invalid_file_is_refused_with_file_channel_and_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "notify.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(words)) as refused:
        notifications.read_channels(path)
    assert str(refused.value).startswith(f"{path}: ")


def without_ann(world: World) -> tuple[Callable[[notifications.Notice], None], set[str]]:
    """What sends to all users but those that are away, and these, at first ann alone."""
    send, away = world.send, {"ann"}

    def not_to(notice: notifications.Notice) -> None:
        if notice.user in away:
            raise notifications.Undeliverable("exit code 1: no such mailbox")
        send(notice)

    return not_to, away


@pytest.mark.parametrize("restarts", [False, True])
def test_what_cannot_reach_one_user_delays_no_other_one(cluster: Make, restarts: bool) -> None:
    world = World(cluster([3]))
    c, follower = world.cluster, world.follower(events=("started", "finished"))
    (first,), (second,) = c.submit({}, owner="ann"), c.submit({}, owner="ben", then_s=2.0)
    not_to_ann, away = without_ann(world)

    def served() -> notifications.Follower:
        made = world.follower(events=("started", "finished")) if restarts else follower
        made.channel = notifications.NotificationChannel("mail", not_to_ann, ("started", "finished"))
        made.follow()
        return made

    follower.channel = notifications.NotificationChannel("mail", not_to_ann, ("started", "finished"))
    follower.follow()
    end(c, first)
    end(c, second)
    if restarts:
        world.send = not_to_ann  # type: ignore[method-assign]
        c.restart(then_s=2.0)
    served()
    assert world.sent == [(f"j-{second}", "started"), (f"j-{second}", "finished")]
    away.clear()
    world.deliver(served())
    assert world.sent[2:] == [(f"j-{first}", "started"), (f"j-{first}", "finished")]
    assert world.undelivered() == []


@pytest.mark.parametrize("old", [False, True], ids=["late for an hour", "first read after an hour"])
def test_a_user_who_cannot_be_reached_has_one_try_at_a_time(cluster: Make, old: bool) -> None:
    world = World(cluster([5]), failures=10**6)
    c, follower = world.cluster, world.follower(events=("started",))
    jobs = c.submit(*[{}] * 5, then_s=2.0)
    c.now += notifications.GIVE_UP_S * old
    follower.follow()
    assert (world.tries, len(world.undelivered())) == (1, int(old))
    c.now += notifications.GIVE_UP_S * (not old) + 1.0
    follower.follow()
    assert (world.tries, [one["job"] for one in world.undelivered()]) == (2, jobs)
    assert follower.next_try_s() == math.inf


def test_a_service_that_ends_waits_for_one_try_at_most(cluster: Make, caplog: pytest.LogCaptureFixture) -> None:
    world = World(cluster([3]), failures=2)
    c, follower = world.cluster, world.follower(events=("started",))
    owners = ("ann", "ben", "cem")
    for owner in owners:
        c.submit({}, owner=owner)
    c.pass_s(2.0)
    send = world.send

    def and_end(notice: notifications.Notice) -> None:
        world.ends = True
        send(notice)

    follower.channel = notifications.NotificationChannel("mail", and_end, ("started",))
    for tries in (1, 2):  # of the log
        follower.follow()
        assert world.tries == tries
        world.ends = False
    follower.follow()
    world.ends, world.failures = False, 10
    c.now += notifications.GIVE_UP_S
    follower.follow()
    assert world.tries == 4  # of two that are late
    assert "a notification is late" in caplog.text  # or nobody would know of it for an hour
    world.ends, world.failures = False, 0
    world.deliver(follower)
    assert len(world.inbox) + len(world.undelivered()) == len(owners)


def test_late_notifications_of_one_user_are_bounded(cluster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.live.service.notifications.MOST_LATE", 2)
    world = World(cluster([8]))
    c, follower = world.cluster, world.follower(events=("started",))
    jobs = c.submit(*[{}] * 4, owner="ann")
    others = c.submit({}, {}, owner="ben", then_s=2.0)
    not_to_ann, away = without_ann(world)

    follower.channel = notifications.NotificationChannel("mail", not_to_ann, ("started",))
    follower.follow()
    assert world.sent == [(f"j-{job}", "started") for job in others]
    assert [(one["job"], one["why"]) for one in world.undelivered()] == [
        (job, "2 earlier notifications of the user are late") for job in jobs[2:]
    ]
    away.clear()
    world.deliver(follower)
    assert world.sent[2:] == [(f"j-{job}", "started") for job in jobs[:2]]


def test_late_notifications_outlive_a_crash_though_their_place_is_not_stored(cluster: Make) -> None:
    world = World(cluster([3]), failures=1)
    c, follower = world.cluster, world.follower(events=("started",))
    jobs = c.submit({}, {}, {}, owner="ann", then_s=2.0)
    stored = c.store.fact("notified mail")
    follower.follow()
    assert len(follower._late) == 3
    before, after = json.loads(stored), json.loads(c.store.fact("notified mail"))
    assert after[3] == []  # the place of the try, before any was late
    assert before[0] <= after[0]
    c.restart()
    world.deliver(world.follower(events=("started",)))
    assert world.sent == [(f"j-{job}", "started") for job in jobs]
    assert world.undelivered() == []
