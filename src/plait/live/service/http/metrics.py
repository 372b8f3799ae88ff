"""The service's figures in the format of Prometheus. No label is a job: their number would have no bound."""

from collections.abc import Iterator

from msgspec import structs
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from plait.live.api.cluster import ClusterStatus, Gpus, NetworkOfCluster
from plait.live.api.costs import Costs
from plait.live.scheduler.engine import Engine
from plait.live.scheduler.measured import LOSSES
from plait.live.service.worker import Worker

#: Buckets of what takes a moment, and of what takes hours.
SHORT = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
LONG = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


class Metrics:
    """Counters of requests, and the cluster at the last scrape."""

    def __init__(self, worker: Worker) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "plait_http_requests", "Requests answered.", ("method", "status"), registry=self.registry
        )
        self.seconds = Histogram(
            "plait_http_request_seconds",
            "Seconds to answer, long polls and followed logs left out.",
            buckets=(0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
            registry=self.registry,
        )
        self._ended = self._histogram(
            "plait_job_jct_seconds", "Seconds from a job's submission to its end.", LONG, ("how",)
        )
        self._decided = self._histogram("plait_decision_time_seconds", "Seconds a decision of the policy took.", SHORT)
        self._committed = self._histogram("plait_log_commit_seconds", "Seconds a commit of the event log took.", SHORT)
        self._attempts = Counter("plait_attempts", "Attempts over, by outcome.", ("outcome",), registry=self.registry)
        worker.notice = self.notice
        self.worker = worker
        self._found: tuple[ClusterStatus, NetworkOfCluster, Costs | None, float] | None = None
        self.registry.register(self)

    def _histogram(self, name: str, words: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(name, words, labels, buckets=buckets, registry=self.registry)

    def notice(self, engine: Engine) -> None:
        """Count what an engine has done since the last time; in its own thread."""
        counts = engine.counts
        for how, seconds in counts.left:
            self._ended.labels(how).observe(seconds)
        for outcome, count in counts.outcomes.items():
            self._attempts.labels(outcome).inc(count)
        for seconds in counts.commits_s:
            self._committed.observe(seconds)
        for seconds in counts.decisions_s:
            self._decided.observe(seconds)
        counts.left.clear()
        counts.outcomes.clear()
        counts.commits_s.clear()
        counts.decisions_s.clear()

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        """The figures of the cluster at this moment, for Prometheus."""
        if self._found is None:
            return
        (status, network, bill, held_idle), worker = self._found, self.worker
        for name, words, label in (
            ("jobs", "Jobs by state.", "state"),
            ("nodes", "Nodes by state.", "state"),
            ("gpus", "GPUs on nodes that are there.", "state"),
        ):
            family = GaugeMetricFamily(f"plait_{name}", words, labels=(label,))
            value = getattr(status, name)
            counts = structs.asdict(value) if isinstance(value, Gpus) else value
            for state, count in counts.items():
                family.add_metric((state,), count)
            yield family
        yield GaugeMetricFamily("plait_policy_failed", "1 if the last decision failed.", bool(status.policy_error))
        yield GaugeMetricFamily("plait_term", "How often a service has begun to lead this store.", status.term)
        lost = CounterMetricFamily(
            "plait_lost_work_gpu_seconds",
            "GPU-seconds of work from which no attempt resumed, by the reason.",
            labels=("why",),
        )
        for why in LOSSES:
            lost.add_metric((why,), status.lost.work_gpu_s.get(why, 0.0))
        yield lost
        yield CounterMetricFamily(
            "plait_restart_gpu_seconds", "GPU-seconds from a stop to the first step after it.",
            status.lost.restarts_gpu_s,
        )  # fmt: skip
        yield CounterMetricFamily(
            "plait_reserved_idle_gpu_seconds",
            "GPU-seconds in which GPUs were held for a waiting job and no job had them.",
            status.reserved_idle_gpu_s,
        )
        yield GaugeMetricFamily(
            "plait_gpus_held_idle",
            "GPUs that jobs hold with a use below 5 %.",
            held_idle,
        )
        if bill is not None:
            family = GaugeMetricFamily(
                "plait_cost_last_day",
                "Money of the last 24 hours; held_idle, unmeasured and lost are of jobs.",
                labels=("part", "currency"),
            )  # fmt: skip
            for part in ("jobs", "idle", "down", "held_idle", "unmeasured", "lost"):
                if (found := getattr(bill, part)) is not None:  # something was measured
                    family.add_metric((part, bill.currency), found.cost)
            yield family
        yield from _of_network(network)
        yield CounterMetricFamily("plait_log_entries", "Entries of the event log.", status.log_seq)
        yield CounterMetricFamily("plait_decisions", "Decisions since the start of the service.", worker.decisions)
        yield CounterMetricFamily("plait_decision_seconds", "Seconds spent in rounds that decided.", worker.decision_s)
        yield CounterMetricFamily("plait_commits", "Commits since the start of the service.", worker.commits)
        yield CounterMetricFamily("plait_commit_seconds", "Seconds spent in rounds of the engine.", worker.commit_s)

    def render(self, status: ClusterStatus, network: NetworkOfCluster, bill: Costs | None, held_idle: float) -> bytes:
        """The answer to a scrape; `bill`: of the last day, None without prices; `held_idle`: GPUs held and idle."""
        self._found = status, network, bill, held_idle
        return generate_latest(self.registry)


def _of_network(found: NetworkOfCluster) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
    """Switches that aggregate, and jobs that exchange gradients by how they do it; nothing without a network."""
    if not found.switches:
        return
    for name, words, value in (
        ("up", "1 if the switch aggregates.", lambda one: one.state == "up"),
        ("aggregators", "Aggregators that jobs may use.", lambda one: one.aggregators),
        ("granted", "Aggregators granted to one job alone.", lambda one: one.granted),
        ("held", "Aggregators that are not free.", lambda one: one.held),
        ("jobs", "Jobs that the switch serves.", lambda one: len(one.jobs)),
        ("restarts", "Starts of the switch since its agent's, beyond the first.", lambda one: one.restarts),
    ):
        family = GaugeMetricFamily(f"plait_switch_{name}", words, labels=("switch",))
        for one in found.switches:
            family.add_metric((one.switch,), value(one))
        yield family
    jobs = GaugeMetricFamily("plait_network_jobs", "Jobs that exchange gradients, by how.", labels=("mode",))
    rate = GaugeMetricFamily(
        "plait_network_gradient_bits_per_second", "Goodput of gradients while ranks exchange them, sum of jobs.",
        labels=("mode",),
    )  # fmt: skip
    for mode in ("aggregation", "gloo"):
        mine = [one for one in found.jobs if one.mode_used == mode]
        jobs.add_metric((mode,), len(mine))
        rate.add_metric((mode,), sum(one.bits_per_s or 0.0 for one in mine))
    yield jobs
    yield rate
    known = [one.fallback_share for one in found.jobs if one.fallback_share is not None]
    if known:
        yield GaugeMetricFamily(
            "plait_network_fallback_share", "Share of sums that met an occupied aggregator, mean of jobs.",
            sum(known) / len(known),
        )  # fmt: skip
