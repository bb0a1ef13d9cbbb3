"""Minari: its own collector, and a data set of four policies with behaviour cloning from it.

`python -m benchmarks.offline` makes the large one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.programs import Act, Clock, Options, Row, levels, mean_return, run
from shard_gym import simulators, suites
from shard_gym.envs.episodes import task_index
from shard_gym_agents import make

ENV_ID = "ShardGym-MetaSyn-80x8-Flat"  # AutoShard's suite; its devices are alike
REWARD = "latency"
POLICIES = ("random", "cost-greedy", "auto", "autoshard")
DATASET = "shardgym/metasyn-80x8/four-policies-v0"
AT_ONCE = 250  # episodes
SMALL, UPDATES = 40_000, 3_000  # steps of the data set of the page, and updates of its clone
BATCH = 512


@cache
def planned(policy: str) -> np.ndarray:
    """Devices that a solver gives the tables of every training task, in the order of episodes: (tasks, tables)."""
    suite, env = suites.get(ENV_ID), gym.make(ENV_ID, observation="set")
    solver, planner = make(policy), simulators.make(suite.planner)
    found = []
    for task in suite.tasks("train"):
        order = env.reset(options={"task": task})[0]["order"]
        found.append(np.array(solver(task, planner).device)[order])
    return np.array(found)


def played(policy: str, count: int, seed: int) -> dict[str, np.ndarray]:
    """Episodes as arrays: observations, actions and rewards of each.

    A planned episode numbers the devices anew, which are alike, so that no two are the same.
    """
    envs = gym.make_vec(ENV_ID, num_envs=count, reward=REWARD)
    rng, devices = np.random.default_rng(seed), int(envs.single_action_space.n)  # type: ignore[attr-defined]
    seeds = np.arange(seed, seed + count)
    shown, infos = envs.reset(seed=seed)
    seen, actions, rewards = [shown], [], []
    names = rng.permuted(np.tile(np.arange(devices), (count, 1)), axis=1)
    plan = None if policy == "random" else planned(policy)
    over = np.zeros(count, bool)
    while not over.all():
        if plan is None:
            action = np.where(infos["action_mask"], rng.random((count, devices)), -1).argmax(axis=1)
        else:
            tasks = task_index(seeds.astype(np.uint64), np.zeros(count, np.uint64), len(plan)).astype(int)
            action = names[np.arange(count), plan[tasks, len(actions)]]
        shown, reward, over, _, infos = envs.step(action)
        seen.append(shown)
        actions.append(action)
        rewards.append(reward)
    stacked = {"observations": seen, "actions": actions, "rewards": rewards}
    return {name: np.stack(values, axis=1) for name, values in stacked.items()}


def buffers(policy: str, episodes: int, first: int) -> Iterator[Any]:
    """Episodes as Minari takes them, numbered and seeded from `first` on."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    for start in range(first, first + episodes, AT_ONCE):
        count = min(AT_ONCE, first + episodes - start)
        part = played(policy, count, start)
        for i in range(count):
            steps = len(part["actions"][i])
            ends = [False] * (steps - 1) + [True]
            yield EpisodeBuffer(
                id=start + i,
                seed=start + i,
                observations=part["observations"][i],
                actions=part["actions"][i],
                rewards=part["rewards"][i].tolist(),
                terminations=ends,
                truncations=[False] * steps,
                infos={},
            )


def build(steps: int, dataset_id: str = DATASET) -> Any:
    """The data set, a quarter of its episodes of each policy; told in its metadata, and `policy` in each episode's."""
    import minari

    env = gym.make(ENV_ID, reward=REWARD)
    length = suites.get(ENV_ID).num_tables
    each = -(-steps // (length * len(POLICIES)))
    random, greedy = levels(ENV_ID, reward=REWARD)
    made = minari.create_dataset_from_buffers(
        dataset_id,
        list(buffers(POLICIES[0], each, 0)),
        env=env.spec,
        algorithm_name=", ".join(POLICIES),
        author="ShardGym",
        description=f"{each} episodes each of {', '.join(POLICIES)} on training tasks of {ENV_ID}, reward {REWARD}.",
        requirements=["shard-gym"],
    )
    for number, policy in enumerate(POLICIES):
        if number:
            made.storage.update_episodes(buffers(policy, each, number * each))
        indices = range(number * each, (number + 1) * each)
        made.storage.update_episode_metadata([{"policy": policy}] * each, indices)
    made.storage.update_metadata({"ref_min_score": random, "ref_max_score": greedy, "num_episodes_average_score": 100})
    return minari.load_dataset(dataset_id)


def part_of(dataset: Any, policy: str) -> dict[str, np.ndarray]:
    """Observations and actions of all steps of a policy, and the returns of its episodes."""
    each = dataset.total_episodes // len(POLICIES)
    start = POLICIES.index(policy) * each
    episodes = list(dataset.iterate_episodes(range(start, start + each)))
    return {
        "observations": np.concatenate([episode.observations[:-1] for episode in episodes]),
        "actions": np.concatenate([episode.actions for episode in episodes]),
        "returns": np.array([np.sum(episode.rewards) for episode in episodes]),
    }


def clone(observations: np.ndarray, actions: np.ndarray, updates: int) -> Act:
    """Behaviour cloning: a network that gives the actions of the data."""
    import torch

    torch.manual_seed(0)
    shown, taken = torch.as_tensor(observations), torch.as_tensor(actions, dtype=torch.long)
    width, devices = shown.shape[1], int(taken.max()) + 1
    layers = [torch.nn.Linear(width, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(256, devices))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(updates):
        picked = torch.randint(len(shown), (BATCH,))
        loss = torch.nn.functional.cross_entropy(network(shown[picked]), taken[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def act(seen: Any, masks: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return np.where(masks, network(torch.as_tensor(seen)).numpy(), -np.inf).argmax(axis=1)

    return act


def card(dataset: Any, updates: int) -> str:
    """Contents of the data set and returns of its clones, as Markdown."""
    random, greedy = levels(ENV_ID, reward=REWARD)
    lines = [
        f"# {dataset.spec.dataset_id}",
        "",
        f"{dataset.total_steps:,} steps in {dataset.total_episodes:,} episodes of {ENV_ID}, reward {REWARD}, training",
        "tasks; planned episodes number the devices, which are alike, anew. Return: minus the makespan over the mean",
        f"random plan's. On 100 episodes of test tasks random devices have {random:.4f}, cost-greedy {greedy:.4f}.",
        "",
        f"| policy | episodes | mean return | return of its clone on test tasks, {updates:,} updates |",
        "|---|---:|---:|---:|",
    ]
    for policy in POLICIES:
        part = part_of(dataset, policy)
        cloned = mean_return(ENV_ID, clone(part["observations"], part["actions"], updates), reward=REWARD)
        lines.append(f"| {policy} | {len(part['returns']):,} | {part['returns'].mean():.4f} | {cloned:.4f} |")
    return "\n".join([*lines, ""])


def collected(options: Options) -> Row:
    """Random episodes by Minari's own wrapper, infos with them."""
    import minari

    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        env, clock = minari.DataCollector(gym.make(ENV_ID), record_infos=True), Clock()
        for seed in range(5):
            _, info = env.reset(seed=seed)
            over = False
            while not over:
                action = env.action_space.sample(mask=info["action_mask"])
                _, _, over, _, info = env.step(action)
        made = env.create_dataset("shardgym/collected-v0", algorithm_name="random")
        assert made.total_steps == sum(len(episode.actions) for episode in made.iterate_episodes())
        infos = sorted(next(iter(made.iterate_episodes())).infos)
        return {
            "id": ENV_ID,
            "settings": f"record_infos=True: {', '.join(infos)}",
            "steps": int(made.total_steps),
            "seconds": round(clock(), 1),
        }


def cloned(options: Options) -> Row:
    """Behaviour cloning of auto's episodes in a small data set."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MINARI_DATASETS_PATH"] = folder
        made, clock = build(SMALL), Clock()
        part = part_of(made, "auto")
        act = clone(part["observations"], part["actions"], UPDATES)
        random, greedy = levels(ENV_ID, reward=REWARD)
        return {
            "id": ENV_ID,
            "settings": f"auto's steps, {UPDATES} updates of {BATCH}, reward={REWARD}",
            "steps": len(part["actions"]),
            "seconds": round(clock(), 1),
            "return": mean_return(ENV_ID, act, reward=REWARD),
            "random": random,
            "greedy": greedy,
        }


def offline(arguments: Sequence[str]) -> None:
    """The large data set and its card."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    os.environ["MINARI_DATASETS_PATH"] = str(options.out)
    text = card(build(options.steps), options.updates)
    (options.out / DATASET / "README.md").write_text(text)
    print(text)


if __name__ == "__main__":
    if sys.argv[1:2] == ["offline"]:
        offline(sys.argv[2:])
    else:
        run(("minari",), {"DataCollector": collected, "behaviour cloning": cloned})
