"""AutoShard (KDD'22): an LSTM over the tables, one score for each device, trained by IMPALA. Needs torch.

Where its paper and its public code differ, this follows the paper, and mends what the code gets wrong: full devices
are masked, in acting and in the loss; runs are seeded; the ablation without a cost model sees no prediction at all.
Predicted costs are the planner's and stay as they are, so the table representations that the paper shares between cost
model and policy learn from the policy alone. Costs are over an even share of all tables' single costs, not in ms, so
that a policy can be taken to other numbers of tables and devices. Unrolls are whole episodes, not 100 steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.bank import Bank
from shard_gym.env import ShardingEnv
from shard_gym.errors import CorruptFile, InvalidTask
from shard_gym.memory import table_bytes
from shard_gym.plan import Plan
from shard_gym.random_plans import no_room
from shard_gym.simulators import FastSimulator, Simulator, single_costs
from shard_gym.simulators.base import Counted
from shard_gym.suites import Suite
from shard_gym.tasks import Task
from shard_gym.vector_env import ShardingVectorEnv
from shard_gym_agents.learners.autoshard_network import TABLE, Net
from shard_gym_agents.learners.checkpoints import load_tensors, packed, save_tensors, under, unpack
from shard_gym_agents.learners.impala import Episodes, vtrace
from shard_gym_agents.learners.training import episode_seeds
from shard_gym_agents.solver import refuse_constraints, require_fast, require_number

KIND = "autoshard"
LEAST = -1e9  # the score of a device that is full


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; the values are the paper's unless said otherwise."""

    num_envs: int = 64  # episodes an iteration, played side by side
    batch: int = 32  # episodes an update; the paper's 8, at its rate, learn as fast but collapse now and then
    lag: int = 1  # updates that the actors' weights are behind when an iteration begins
    learning_rate: float = 3e-4  # of Adam; the paper's is 1e-3
    entropy: float = 0.001  # weight of the policy's entropy
    baseline: float = 0.5  # weight of the value's error
    discount: float = 1.0
    clip: float = 40.0  # norm of the gradient, at most
    centred: bool = True  # advantages less their mean over the batch; the paper has none of it
    decay: int = 0  # updates in which the learning rate falls to a tenth, and stays; 0: never, as published
    reward: str = ""  # "balance", "latency" or "dense"; "": the suite's own
    cost_model: bool = True  # False: no predicted cost, and tables in order of size; the paper's ablation


def loss_of(net: Net, played: Episodes, config: Config) -> tuple[Tensor, dict[str, float]]:
    """Summed over steps, as in the IMPALA that the paper takes; and what to log."""
    tables, states, _ = net.states(played.shown)
    on = F.one_hot(played.actions, played.mask.shape[-1])[..., None] * tables[..., None, :]
    sums = torch.cumsum(on, 0) - on  # before the step
    scores = net.scores(states, sums, played.costs).masked_fill(played.mask == 0, LEAST)
    log_policy, values, alive = F.log_softmax(scores, -1), net.values(states), played.alive
    log_probs = log_policy.gather(-1, played.actions[..., None])[..., 0]
    with torch.no_grad():
        goes_on = torch.cat([alive[1:], torch.zeros_like(alive[:1])])
        log_rho = log_probs - played.log_probs
        targets, advantages = vtrace(log_rho, played.rewards, values, config.discount * goes_on)
    if config.centred:  # values do not know the devices, so all steps of an episode gain or lose together
        advantages = advantages - ((advantages * alive).sum(1) / alive.sum(1).clamp(min=1))[:, None]
    policy_loss = -(advantages * log_probs * alive).sum()
    value_loss = 0.5 * ((targets - values).square() * alive).sum()
    entropy = -((log_policy.exp() * log_policy).sum(-1) * alive).sum()
    loss = policy_loss + config.baseline * value_loss - config.entropy * entropy
    steps = alive.sum()
    told = {
        "loss": loss / steps,
        "value_loss": value_loss / steps,
        "entropy": entropy / steps,
        "rho": (log_rho.exp() * alive).sum() / steps,
    }
    return loss, {name: float(value.detach()) for name, value in told.items()}


class Learner:
    """Actors play on many environments at once with weights that lag; the learner corrects for that by V-trace."""

    def __init__(self, suite: Suite, config: Config, seed: int, device: str = "cpu") -> None:
        if suite.split_action:
            raise InvalidTask(f"AutoShard does not split tables: train on {suite.frozen_as}, not {suite.key}")
        if min(config.num_envs, config.batch, config.lag + 1) < 1 or config.num_envs % config.batch:
            raise InvalidTask("num_envs is a multiple of batch, both at least 1, and lag at least 0")
        self.suite, self.config, self.seed, self.device = suite, config, seed, torch.device(device)
        self.planner = Counted(require_fast(simulators.make(suite.planner)))
        bank = Bank(suite.tasks("train"), suite.feature_scaling(), suite)
        shows, order = ("full", None) if config.cost_model else ("table", "size")
        env = ShardingEnv(bank, observation=shows, reward=config.reward or None, order=order, simulator=self.planner)
        self.order, self.envs = env.order, ShardingVectorEnv(env, config.num_envs)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net, self.actor = Net(), Net()
        self.net.scaling = torch.tensor(np.stack(bank.scaling))
        self.net.to(self.device)
        self.actor.to(self.device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), config.learning_rate)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.updates = self.iterations = 0
        self.past: deque[dict[str, Tensor]] = deque(maxlen=config.lag + 1)  # weights after the last updates
        self.past.append(self._weights())

    def iterate(self) -> dict[str, float]:
        """Actors play one episode in each environment; the learner updates on them in batches."""
        calls, config = self.planner.calls, self.config
        self.actor.load_state_dict(self.past[0])
        taken_at = self.updates - (len(self.past) - 1)  # the update that the actors' weights are of
        played = self.play(self.actor)
        picked = torch.randperm(config.num_envs, generator=self.generator, device=self.device)
        if not self.updates:  # values begin where returns are, or else the first updates push all actions alike
            self.net.begin_values_at(float(played.rewards.sum(0).mean()))
        told = []
        for part in picked.split(config.batch):
            lag = self.updates - taken_at
            told.append({"lag": float(lag), **self._update(played.some(part))})
        self.iterations += 1
        return {
            **{name: float(np.mean([one[name] for one in told])) for name in told[0]},
            "return": float(played.rewards.sum(0).mean()),
            "updates": float(self.updates),
            "steps": float(played.alive.sum()),
            "simulator_calls": float(self.planner.calls - calls),
        }

    @torch.no_grad()
    def play(self, actor: Net) -> Episodes:
        """One episode of each environment."""
        envs, k = self.envs, self.envs.num_actions
        shown, _ = envs.reset(seed=episode_seeds(self.seed, self.iterations, envs.num_envs))
        alive, memory, steps = np.ones(envs.num_envs, bool), None, []
        sums = torch.zeros(envs.num_envs, k, TABLE, device=self.device)
        on_device = partial(torch.as_tensor, dtype=torch.float32, device=self.device)
        while alive.any():
            row, costs = (shown["table"], shown["devices"][..., 2]) if self.config.cost_model else (shown, None)
            seen, mask = on_device(row), on_device(envs.action_masks())
            cost = torch.zeros_like(mask) if costs is None else on_device(costs)
            tables, states, memory = actor.states(seen[None], memory)
            log_policy = F.log_softmax(actor.scores(states[0], sums, cost).masked_fill(mask == 0, LEAST), -1)
            action = torch.multinomial(log_policy.exp(), 1, generator=self.generator)
            sums.scatter_add_(1, action[..., None].expand(-1, 1, TABLE), tables[0][:, None])
            shown, reward, over, _, _ = envs.step(action[:, 0].cpu().numpy())
            log_prob, live = log_policy.gather(1, action)[:, 0], on_device(alive)
            steps.append((seen, cost, mask, action[:, 0], log_prob, on_device(reward) * live, live))
            alive &= ~over
        return Episodes(*(torch.stack(column) for column in zip(*steps, strict=True)))

    def _update(self, played: Episodes) -> dict[str, float]:
        loss, told = loss_of(self.net, played, self.config)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        if self.config.decay:
            done = min(1.0, self.updates / self.config.decay)
            self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * (1 - 0.9 * done)
        self.optimizer.step()
        self.updates += 1
        self.past.append(self._weights())
        return {**told, "gradient": float(norm)}

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.net.state_dict().items()}

    def state(self) -> dict[str, Tensor]:
        """Weights, those that actors still use, the optimizer, the generator and counters."""
        out = packed(
            net=self.net,
            optimizer=self.optimizer,
            generator=self.generator,
            updates=self.updates,
            iterations=self.iterations,
        )
        for i, weights in enumerate(self.past):
            out |= {f"past{i}/{name}": value.cpu().clone() for name, value in weights.items()}
        return out

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        unpack(state, net=self.net, optimizer=self.optimizer, generator=self.generator)
        self.updates, self.iterations = int(state["updates"]), int(state["iterations"])
        self.past.clear()
        while held := under(state, f"past{len(self.past)}"):
            self.past.append({name: value.to(self.device) for name, value in held.items()})
            if len(self.past) == self.past.maxlen:
                break

    def solver(self) -> AutoShard:
        """The policy as it is now."""
        net = Net()
        net.load_state_dict(self._weights())
        card = {"order": self.order, "suite": self.suite.key, "planner": self.suite.planner, "seed": self.seed}
        return AutoShard(net, {**card, "updates": self.updates, "config": asdict(self.config)})


@dataclass(frozen=True, eq=False)
class AutoShard:
    """The trained policy: each table to the device of the highest score that has room, ties to the lowest index.

    `card` says what it was trained on, and the order in which it wants tables.
    """

    deterministic: ClassVar[bool] = True
    net: Net
    card: dict[str, Any]

    @property
    def track(self) -> str:
        """Without a cost model it asks the planner nothing."""
        return "search" if self.card["config"]["cost_model"] else "blind"

    @torch.inference_mode()
    def __call__(self, task: Task, planner: Simulator) -> Plan:
        """Plan a task."""
        refuse_constraints(task)
        asked = _Costs(task, require_fast(planner)) if self.track == "search" else None
        size, free = table_bytes(task), task.capacity.copy()
        by = asked.alone if asked and self.card["order"] == "cost" else size
        order = np.argsort(-by, kind="stable")
        tables, states, _ = self.net.states(self._shown(task, order)[:, None])
        sums, placement = torch.zeros(task.num_devices, TABLE), [-1] * task.num_tables
        costs = torch.zeros(task.num_devices)
        for step, t in enumerate(order.tolist()):
            room = free >= size[t]
            if not room.any():
                raise no_room(task, t, free)
            scores = self.net.scores(states[step, 0], sums, costs).numpy()
            d = int(np.where(room, scores, -np.inf).argmax())
            placement[t] = d
            sums[d] += tables[step, 0]
            free[d] -= size[t]
            if asked:
                costs = asked.after(t, d)
        return Plan(tuple(placement))

    def _shown(self, task: Task, order: np.ndarray) -> Tensor:
        """What the environment shows of each table in turn, (N, 22)."""
        mean, deviation = self.net.scaling.numpy()
        features = (task.tables.features()[order] - mean) / np.where(deviation > 0, deviation, 1)
        share = np.arange(task.num_tables) / task.num_tables
        return torch.from_numpy(np.concatenate([features, share[:, None]], 1).astype(np.float32))

    def save(self, path: str | Path) -> None:
        """Write weights and card."""
        save_tensors(path, self.net.state_dict(), {"kind": KIND, **self.card})

    @classmethod
    def load(cls, path: str | Path) -> AutoShard:
        """Read what `save` wrote."""
        tensors, card = load_tensors(path, KIND)
        net = Net()
        try:
            net.load_state_dict(tensors)
            kept = {name: card[name] for name in ("order", "suite", "planner", "seed", "updates", "config")}
        except (KeyError, RuntimeError) as error:
            raise CorruptFile(f"{path} does not hold AutoShard's network: {error}") from error
        return cls(net, kept)


class _Costs:
    """What the planner predicts while tables are placed, as the environment shows it."""

    def __init__(self, task: Task, planner: FastSimulator) -> None:
        self.task, self.planner, self.tables = task, planner, planner.embed(task)
        self.alone = single_costs(_Embedded(planner, self.tables), task)
        require_number(float(self.alone.sum()), planner)
        self.sums = np.zeros((task.num_devices, self.tables.shape[1]))
        self.scale = task.num_devices / max(float(self.alone.sum()), 1e-12)

    def after(self, table: int, device: int) -> Tensor:
        """Each device's cost with one more table placed, over an even share, (K,)."""
        self.sums[device] += self.tables[table]
        cost = self.planner.decode(self.task, self.sums).cost(self.task.objective)
        require_number(float(cost.sum()), self.planner)
        return torch.from_numpy((cost * self.scale).astype(np.float32))


class _Embedded(FastSimulator):
    """A planner whose answer about a task's tables is known: with many tables it takes as long as the policy."""

    def __init__(self, planner: FastSimulator, tables: np.ndarray) -> None:
        self.id, self.decode, self.tables = planner.id, planner.decode, tables  # type: ignore[method-assign]

    def embed(self, task: Task) -> np.ndarray:
        return self.tables
