"""A GPU by hand: jobs that report steps and obey limits, decision after decision."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from plait.sharing.coordinator import CODEC, State, decide
from plait.sharing.directive import Device, Directive, Reached, Sharer, StepStats

GB = 1_000_000_000
CAPACITY = 32 * GB
HOST = "host"


@dataclass
class Bench:
    """Calls `decide` with what the test says; jobs obey at once unless they are `stuck` at a limit."""

    jobs: dict[str, Sharer]
    capacity_bytes: int = CAPACITY
    now_s: float = 0.0
    state: State = field(default_factory=State)
    directives: dict[str, Directive] = field(default_factory=dict)
    reached: dict[str, Reached] = field(default_factory=dict)
    stuck: dict[str, int] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def step(self, job: str, step_s: float = 0.2, **values: object) -> StepStats:
        number = self.steps[job] = self.steps.get(job, -1) + 1
        return StepStats(step=number, step_s=step_s, **values)  # type: ignore[arg-type]

    def decide(
        self,
        steps: Mapping[str, Mapping[str, object]] | None = None,
        after_s: float = 0.2,
        obey: bool = True,
        refused: Mapping[str, int] | None = None,
    ) -> dict[str, Directive]:
        """One decision after a step of each of these jobs, with these values; returns the directives."""
        self.now_s += after_s
        stats = {job: (self.step(job, after_s, **values),) for job, values in (steps or {}).items()}
        device = Device(self.capacity_bytes, self.jobs, dict(self.reached), refused or {})
        self.state, self.directives = decide(self.state, self.now_s, stats, device)
        if obey:
            self.obey()
        return self.directives

    def settle(self, reserved_bytes: int, seconds: float = 40.0) -> None:
        """The guaranteed job trains for a while within so much memory, beside jobs that make no steps."""
        for _ in range(int(seconds / 0.2)):
            self.decide({HOST: {"device_reserved_bytes": reserved_bytes}})

    def obey(self, *jobs: str) -> None:
        """Jobs (all, if none is named) reach their boundary."""
        for job in jobs or tuple(self.jobs):
            given = self.directives[job]
            limit = self.capacity_bytes if given.memory_limit_bytes is None else given.memory_limit_bytes
            self.reached[job] = Reached(given.limit_number, max(limit, self.stuck.get(job, 0)))

    def limit(self, job: str) -> int:
        limit = self.directives[job].memory_limit_bytes
        return self.capacity_bytes if limit is None else limit

    def reload(self) -> None:
        """Through JSON and back."""
        self.state = CODEC.decode(State, CODEC.encode(self.state))
