"""CPU-bound: advantage actor-critic on Gymnasium's CartPole; the simulation takes most of the time.

    python cpu_actor_critic.py [--steps N] [--moves N]

Each step plays so many moves with the present policy and learns from them once; an episode that they end in the middle
of counts as worth what the critic thinks of its last state. Episodes are seeded by the step, so a resumed run plays the
same ones. Goal: episodes of 150 moves on average over the last 20 steps (a random policy gets 22).
"""

import argparse

import gymnasium
import torch
from torch import nn

from plait.training import Resource, attach

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--moves", type=int, default=600)
options = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(0)

env = gymnasium.make("CartPole-v1", max_episode_steps=250)
body = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 3))  # two actions and the value
optimizer = torch.optim.Adam(body.parameters(), 1e-2)
state: dict[str, list[float]] = {"recent": []}


def play(seed: int, moves: int) -> tuple[list[torch.Tensor], list[int], bool]:
    """One episode of at most so many moves: what was seen, what was done, and whether it ended by itself."""
    seen, done = [], []
    state, _ = env.reset(seed=seed)
    over = False
    while not over and len(done) < moves:
        seen.append(torch.as_tensor(state, dtype=torch.float32))
        with torch.no_grad():
            done.append(int(body(seen[-1])[:2].softmax(0).multinomial(1)))
        state, _, terminated, truncated, _ = env.step(done[-1])
        over = terminated or truncated
    return [*seen, torch.as_tensor(state, dtype=torch.float32)], done, over


def returns_of(seen: list[torch.Tensor], done: list[int], over: bool) -> torch.Tensor:
    """What each move led to: 1 for itself and for every later one, discounted."""
    left = torch.arange(len(done), 0, -1.0)
    with torch.no_grad():
        value = 0.0 if over else body(seen[-1])[2].clamp(0, 100)
    return (1 - 0.99**left) / 0.01 + 0.99**left * value


job = attach(model=body, optimizer=optimizer, state=state)
for step in job.steps(options.steps):
    with job.stage(Resource.CPU):
        episodes = []
        while (left := options.moves - sum(len(done) for _, done, _ in episodes)) > 0:
            episodes.append(play(1000 * step + len(episodes), left))
    with job.stage(Resource.GPU):
        returns = torch.cat([returns_of(*episode) for episode in episodes])
        out = body(torch.stack([s for seen, _, _ in episodes for s in seen[:-1]]))
        actions = torch.tensor([a for _, done, _ in episodes for a in done])
        better = (returns - returns.mean()) / (returns.std() + 1e-6) - out[:, 2]
        policy = torch.distributions.Categorical(logits=out[:, :2])
        gain = policy.log_prob(actions) * better.detach() + 0.01 * policy.entropy()
        loss = better.square().mean() - gain.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    ended = [len(done) for _, done, over in episodes if over] or [options.moves]
    state["recent"] = recent = [*state["recent"][-19:], sum(ended) / len(ended)]
    if step % 10 == 0 or step + 1 == options.steps:
        print(f"step {step} episode length {recent[-1]:.0f}, last 20: {sum(recent) / len(recent):.0f}", flush=True)
recent = state["recent"]
print(f"done: {sum(recent) / max(len(recent), 1):.0f} moves (goal 150)")
