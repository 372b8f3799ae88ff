"""CPU-bound: advantage actor-critic on Gymnasium's CartPole; the simulation takes most of the time.

    python cpu_actor_critic.py [--steps N]

Each step plays eight episodes with the present policy and learns from them once. Episodes are seeded by the step, so a
resumed run plays the same ones. Goal: 150 time units on average over the last 20 steps (a random policy gets 22).
"""

import argparse

import gymnasium
import torch
from torch import nn

from plait.training import Resource, attach

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--episodes", type=int, default=8)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)

env = gymnasium.make("CartPole-v1", max_episode_steps=250)
body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))  # two actions and the value
optimizer = torch.optim.Adam(body.parameters(), 1e-2)
recent: list[float] = []


def play(seed: int) -> tuple[list[torch.Tensor], list[int]]:
    """One episode: what was seen, and what was done."""
    seen, done = [], []
    state, _ = env.reset(seed=seed)
    over = False
    while not over:
        seen.append(torch.as_tensor(state, dtype=torch.float32))
        with torch.no_grad():
            done.append(int(torch.distributions.Categorical(logits=body(seen[-1])[:2]).sample()))
        state, _, terminated, truncated, _ = env.step(done[-1])
        over = terminated or truncated
    return seen, done


job = attach(model=body, optimizer=optimizer)
for step in job.steps(options.steps):
    with job.stage(Resource.CPU):
        episodes = [play(1000 * step + number) for number in range(options.episodes)]
    # Every time unit is worth 1; what is left of the episode is what an action leads to.
    returns = torch.cat([(1 - 0.99 ** torch.arange(len(a), 0, -1.0)) / 0.01 for _, a in episodes])
    out = body(torch.stack([s for seen, _ in episodes for s in seen]))
    actions = torch.tensor([a for _, done in episodes for a in done])
    better = (returns - returns.mean()) / (returns.std() + 1e-6) - out[:, 2]
    policy = torch.distributions.Categorical(logits=out[:, :2])
    gain = policy.log_prob(actions) * better.detach() + 0.01 * policy.entropy()
    loss = better.square().mean() - gain.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    length = len(actions) / len(episodes)
    recent = [*recent[-19:], length]
    if step % 10 == 0 or step + 1 == options.steps:
        print(f"step {step} episode length {length:.0f}, last 20: {sum(recent) / len(recent):.0f}", flush=True)
print(f"done: {sum(recent) / max(len(recent), 1):.0f} time units (goal 150)")
