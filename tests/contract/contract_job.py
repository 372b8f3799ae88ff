"""What jobs of the contract suite do, as a real process: steps at a pace, fenced checkpoints, the end it is given.

contract_job.py steps=40 pace_s=0.05 every=10 exit_code=0 keep=FOLDER stubborn=1: see `plait.testing.fleet.Program`.
With until=FILE it goes on after its steps until that file exists.
"""

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence

from plait.runtime.page import JobState, Page, Saves
from plait.training.environment import Environment
from plait.training.state.checkpoint_store import CheckpointStore, StaleEpoch


def read(words: Sequence[str]) -> dict[str, float | int | str]:
    kinds = {
        "steps": float,
        "pace_s": float,
        "exit_code": int,
        "every": int,
        "stubborn": int,
        "keep": str,
        "until": str,
    }
    pairs = (word.split("=", 1) for word in words)
    return {name: kinds[name](value) for name, value in pairs}


@dataclasses.dataclass
class Training:
    around: Environment
    commits: CheckpointStore

    @property
    def name(self) -> str:
        return f"rank {self.around.rank} of {self.around.world_size}"

    def save(self, step: int) -> None:
        if self.around.rank:
            return
        making = self.commits.begin(step)
        (making / "state").write_text(str(step), encoding="ascii")
        try:
            self.commits.commit(making, step, world_size=self.around.world_size)
        except StaleEpoch as error:
            print(f"refused: {error}", flush=True)

    def run(self, steps: float, pace_s: float, every: int, until: str, told: list[int]) -> int:
        found = self.commits.complete()
        step = saved = found[0].step if found else 0
        print(f"{self.name}: from step {step}", flush=True)
        with Page.open(self.around.page_file) as page:
            page.pid, page.state = os.getpid(), JobState.RUNNING
            while step < steps or (until and not os.path.exists(until)):
                time.sleep(pace_s)
                step += 1
                page.steps, page.step_s, page.saves = float(step), pace_s, Saves.YES
                page.first_step_monotonic = page.first_step_monotonic or time.monotonic()
                if every and step >= saved + every:
                    saved = step
                    self.save(step)
                if told:
                    self.save(step)
                    print(f"{self.name}: stopped at step {step}", flush=True)
                    return 75
        print(f"{self.name}: done at step {step}", flush=True)
        return 0


def main() -> int:
    options = read(sys.argv[1:])
    told: list[int] = []
    stubborn = options.get("stubborn")
    signal.signal(signal.SIGTERM, lambda number, frame: None if stubborn else told.append(number))
    around = Environment.of(os.environ)
    assert around.job_dir is not None
    keep = options.get("keep")
    folder = around.job_dir.parent.parent / "kept" / str(keep) if keep else around.job_dir / "checkpoints"
    commits = CheckpointStore(folder, epoch=around.epoch, epoch_file=around.job_dir / "EPOCH")
    steps, pace_s = float(options.get("steps", "inf")), float(options.get("pace_s", 0.05))
    code = Training(around, commits).run(
        steps, pace_s, int(options.get("every", 0)), str(options.get("until", "")), told
    )
    return code or int(options.get("exit_code", 0))


if __name__ == "__main__":
    sys.exit(main())
