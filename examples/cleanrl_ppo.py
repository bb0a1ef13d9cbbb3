"""PPO in one file, as CleanRL writes it, on many environments at once. Needs torch.

    python examples/cleanrl_ppo.py
    python examples/cleanrl_ppo.py --env-id ShardGym-Core-80x8-Flat --num-envs 128 --total-steps 1000000

Half a minute on one core. With "dense" rewards a return is minus the makespan over that of the mean random plan, so
random plans have about -1. The policy is CleanRL's, two layers of 64, and keeps to the mask that ends the observation.
"""

import argparse
import time
from dataclasses import dataclass, fields
from itertools import pairwise

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from torch import nn
from torch.distributions import Categorical

import shard_gym_agents
from shard_gym import simulators, suites
from shard_gym.results.evaluate import score


@dataclass
class Args:
    """What can be set on the command line."""

    env_id: str = "ShardGym-MetaSyn-80x8-Flat"
    seed: int = 1
    num_envs: int = 64
    num_steps: int = 80  # of each environment between updates
    total_steps: int = 400_000  # of all environments
    learning_rate: float = 1e-3  # at first; it falls to 0
    num_minibatches: int = 8
    update_epochs: int = 4
    gamma: float = 1.0
    gae_lambda: float = 0.95
    clip_coef: float = 0.2
    ent_coef: float = 0.003
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden: int = 64


def layers(width, hidden, out, gain):
    """Two hidden layers and an output, begun as CleanRL begins them."""
    sizes, gains = (width, hidden, hidden, out), (2**0.5, 2**0.5, gain)
    linear = [nn.Linear(*pair) for pair in pairwise(sizes)]
    for layer, scale in zip(linear, gains, strict=True):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(linear[0], nn.Tanh(), linear[1], nn.Tanh(), linear[2])


class Agent(nn.Module):
    """A policy and a value, each a network of its own."""

    def __init__(self, envs, hidden):
        super().__init__()
        width, self.actions = envs.single_observation_space.shape[0], int(envs.single_action_space.n)
        self.actor, self.critic = layers(width, hidden, self.actions, 0.01), layers(width, hidden, 1, 1.0)

    def forward(self, observation):
        """The policy over actions (B, A), and the value (B,)."""
        mask = observation[:, -self.actions :]
        return Categorical(logits=self.actor(observation).masked_fill(mask == 0, -1e9)), self.critic(observation)[:, 0]


def advantages_of(args, rewards, values, over, last_value):
    """Generalised advantage estimates, (T, B); `over[t]` tells whether step t ended an episode."""
    advantages, following, ahead = torch.zeros_like(rewards), last_value, torch.zeros_like(last_value)
    for t in reversed(range(len(rewards))):
        goes_on = 1 - over[t]
        delta = rewards[t] + args.gamma * following * goes_on - values[t]
        ahead = delta + args.gamma * args.gae_lambda * goes_on * ahead
        advantages[t], following = ahead, values[t]
    return advantages


def update(args, agent, optimizer, batch):
    """A few passes over a batch of steps, the clipped loss of PPO."""
    size = len(batch["actions"])
    for _ in range(args.update_epochs):
        for picked in torch.randperm(size).chunk(args.num_minibatches):
            policy, value = agent(batch["observations"][picked])
            ratio = (policy.log_prob(batch["actions"][picked]) - batch["log_probs"][picked]).exp()
            advantage = batch["advantages"][picked]
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.min(advantage * ratio, advantage * clipped).mean()
            value_loss = 0.5 * (value - batch["returns"][picked]).square().mean()
            loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()


def baseline(name, env_id, split="train"):
    """Mean return of a solver's plans."""
    suite = suites.get(env_id)
    planner, solver = simulators.make(suite.planner), shard_gym_agents.make(name)
    makespans = [score(task, solver(task, planner), planner).makespan for task in suite.tasks(split)]
    return -float(np.mean(makespans / suite.random_makespans(split, suite.planner)))


def main(args):
    """Train, and tell the returns of each update's episodes; they are also what this returns."""
    torch.set_num_threads(1)  # networks this small are slower on more
    torch.manual_seed(args.seed)
    mode = AutoresetMode.SAME_STEP
    envs = RecordEpisodeStatistics(gym.make_vec(args.env_id, args.num_envs, reward="dense", autoreset_mode=mode))
    agent = Agent(envs, args.hidden)
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    print(" ".join(f"{name} {baseline(name, args.env_id):.3f}" for name in ("random", "cost-greedy")))
    seen = torch.as_tensor(envs.reset(seed=args.seed)[0])
    updates, started, curve = args.total_steps // (args.num_envs * args.num_steps), time.monotonic(), []
    for number in range(updates):
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - number / updates)
        observations, steps, returns = [], [], []
        for _ in range(args.num_steps):
            with torch.no_grad():
                policy, value = agent(seen)
            action = policy.sample()
            observations.append(seen)
            shown, reward, terminated, _, info = envs.step(action.numpy())
            steps.append((action, policy.log_prob(action), value, torch.Tensor(reward), torch.Tensor(terminated)))
            returns += info["episode"]["r"][info["_episode"]].tolist() if "episode" in info else []
            seen = torch.as_tensor(shown)
        actions, log_probs, values, rewards, over = (torch.stack(column) for column in zip(*steps, strict=True))
        with torch.no_grad():
            advantages = advantages_of(args, rewards, values, over, agent(seen)[1])
        batch = {"actions": actions, "log_probs": log_probs, "advantages": advantages, "returns": advantages + values}
        batch["observations"] = torch.stack(observations)
        batch = {key: column.flatten(0, 1) for key, column in batch.items()}
        update(args, agent, optimizer, batch)
        curve.append(float(np.mean(returns)) if returns else float("nan"))
        pace = (number + 1) * args.num_envs * args.num_steps / (time.monotonic() - started)
        print(f"step {(number + 1) * args.num_envs * args.num_steps:>8}  return {curve[-1]:.3f}  {pace:.0f} steps/s")
    return curve


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=field.type, default=field.default)
    main(Args(**vars(parser.parse_args())))
