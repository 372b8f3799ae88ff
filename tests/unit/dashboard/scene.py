"""A cluster with a bit of everything, for the browser and for pictures."""

import math
import time
from dataclasses import replace
from pathlib import Path

from world import HOSTILE, World

from plait.control.prices import Prices
from plait.live.protocol.wire import Memory, Profile, Resources
from plait.live.scheduler.explain.resources import JobUsage, job_usages

NAMES = ("resnet50 imagenet", "gpt2 pretrain", "bert finetune", "vit-b16", "whisper small", "dlrm click logs")


def scene(home: Path, nodes: int = 16) -> World:
    """Nodes of 8 GPUs, one drained; users' jobs that run, wait, failed and finished."""
    world = World(home, "tiresias-l")
    world.api.costs.prices = Prices.parse(["2.5"], "EUR")
    for i in range(nodes):
        world.add(f"n{i:02}", 8, {0: 0.01} if i == 3 else {i % 8: 0.4})
    profile = Profile([0.05, 0.06, 0.2, 0.04], 0.35, 50)
    owners = ("ann", "ben", "carla", "dmitri", "eve")
    for i in range(40):
        gpus = (4, 8, 2, 1, 16, 4, 8)[i % 7]
        world.progress[i] = {
            "steps": 40.0 * (i % 23), "step_s": 0.35, "stage_s": [0.05, 0.06, 0.2, 0.04], "profile": profile,
            "checkpoint_steps": 20.0 * (i % 23), "checkpoint_age_s": 42.0, "held_s": 60.0, "last_step_s": 59.9,
            "resources": Resources(7.5, 21e9, 3e7, 2e5), "memory": Memory(31e9, 9e9),
        }  # fmt: skip
        world.submit(
            owners[i % 5], name=HOSTILE if i == 33 else f"{NAMES[i % 6]} {i}", gpus=gpus, iterations=1000,
            model=NAMES[i % 6].split()[0], retries=0,
        )  # fmt: skip
    world.settle(4)
    for job, code, why in (
        (2, 1, "exit code 1; last lines of the log: Traceback | RuntimeError: CUDA out of memory"),
        (5, 0, ""),
        (6, 0, ""),
    ):
        for agent in world.agents.values():
            agent.end(job, code, **({"reason": why} if why else {}))
    world.do(lambda engine, now_s: engine.drain(f"n{nodes - 1:02}", now_s))
    world.settle(6)
    time.sleep(0.1)
    world.settle(2)
    for agent in world.agents.values():
        agent.log = "".join(f"step {k * 10:5d}  loss {3.2 / (1 + k / 9):.4f}  lr 0.00{k % 7 + 1}\n" for k in range(60))
    record_usage(world)
    return world


def record_usage(world: World, samples: int = 600) -> None:
    """An hour of what the jobs use, with a pause of a tenth of it."""
    usages, found = world.api.usage.usages, world.do(lambda engine, now_s: job_usages(engine.context))
    for k in range(samples):
        wave = 0.6 + 0.3 * math.sin(k / 40) + 0.05 * math.sin(k * 1.7)
        if 0.6 < k / samples < 0.7:
            usages.take(5.0 * k - 5.0 * samples, [])
            continue
        usages.take(5.0 * k - 5.0 * samples, [_at(one, k, wave) for one in found])


def _at(one: JobUsage, k: int, wave: float) -> JobUsage:
    values = {name: value * wave for name, value in one.values.items()}
    values |= {"gpu_least": values.get("gpu_utilisation", 0.0) * 0.8, "batch_size": 256.0 * 2 ** (k // 200)}
    values |= {"goodput": 700.0 * wave, "throughput": 900.0 * wave}
    return replace(one, values=values, idle_gpus=one.held_gpus * (k % 10 == 0))
