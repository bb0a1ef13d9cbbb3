"""AutoShard (KDD'22): an LSTM over the tables, one score for each device, trained by IMPALA. Needs torch.

Where its paper and its public code differ, this follows the paper, and mends what the code gets wrong: full devices
are masked, in acting and in the loss; runs are seeded; the ablation without a cost model sees no prediction at all;
policy and cost model have an Adam each. Costs are over an even share of all tables' single costs, not in ms, so that
a policy can be taken to other numbers of tables and devices. Unrolls are whole episodes, not 100 steps.

With a planner that predicts, its predictions are what the policy sees, and stay as they are. With one that measures
(`planner="fbgemm:cpu"`) a cost network of AutoShard's own learns along with the policy, Algorithm 1, and the two
share their table representations; the reward is then the measured balance.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym import simulators
from shard_gym.episodes import hashed
from shard_gym.errors import InvalidTask
from shard_gym.simulators import FastSimulator
from shard_gym.simulators.base import counted
from shard_gym.suites import Suite
from shard_gym_agents.learners.ablations import without
from shard_gym_agents.learners.autoshard_actors import Crew, Here, Order, Played, Processes, Stage
from shard_gym_agents.learners.autoshard_costs import CostLearner, Fitting
from shard_gym_agents.learners.autoshard_network import Net
from shard_gym_agents.learners.autoshard_solver import AutoShard, load
from shard_gym_agents.learners.boards import ILLEGAL
from shard_gym_agents.learners.checkpoints import packed, under, unpack
from shard_gym_agents.learners.impala import Episodes, vtrace

__all__ = ["AutoShard", "Config", "Learner", "load", "loss_of"]


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; the values are the paper's unless said otherwise."""

    num_envs: int = 64  # episodes an iteration, played side by side
    batch: int = 32  # episodes an update; the paper's 8, at its rate, learn as fast but collapse now and then
    lag: int = 1  # iterations that the actors' weights are behind
    actors: int = 0  # processes that play while this one learns; 0: this one plays too
    learning_rate: float = 3e-4  # of Adam; the paper's is 1e-3
    entropy: float = 0.001  # weight of the policy's entropy
    baseline: float = 0.5  # weight of the value's error
    discount: float = 1.0
    clip: float = 40.0  # norm of the gradient, at most
    centred: bool = True  # advantages less their mean over the batch; the paper has none of it
    scaled: bool = True  # and over their deviation, so that small gains near the optimum still count; the paper: no
    decay: int = 0  # updates in which the learning rate falls to a tenth, and stays; 0: never, as published
    reward: str = ""  # "balance", "latency" or "dense"; "": the suite's own
    cost_model: bool = True  # False: no predicted cost, and tables in order of size; the paper's ablation
    drop: str = ""  # a group of features that the policy is not shown; see `ablations.GROUPS`
    planner: str = ""  # one that measures, "fbgemm:cpu": costs are then learned too; "": the suite's
    cost_updates: int = 20  # of the cost network, an iteration, where it is learned
    cost_batch: int = 512  # shards
    cost_buffer: int = 5_000  # shards
    cost_rate: float = 1e-3  # of its Adam

    def __post_init__(self) -> None:
        if min(self.num_envs, self.batch, self.lag + 1) < 1 or self.num_envs % self.batch:
            raise InvalidTask("num_envs is a multiple of batch, both at least 1, and lag at least 0")
        if self.actors < 0 or self.num_envs % max(self.actors, 1):
            raise InvalidTask(f"num_envs is a multiple of actors, got {self.num_envs} and {self.actors}")


def loss_of(net: Net, played: Episodes, config: Config) -> tuple[Tensor, dict[str, float]]:
    """Summed over steps, as in the IMPALA that the paper takes; and what to log."""
    tables, states, _ = net.states(played.shown)
    on = F.one_hot(played.actions, played.mask.shape[-1])[..., None] * tables[..., None, :]
    sums = torch.cumsum(on, 0) - on  # before the step
    scores = net.scores(states, sums, played.costs).masked_fill(played.mask == 0, ILLEGAL)
    log_policy, values, alive = F.log_softmax(scores, -1), net.values(states), played.alive
    log_probs = log_policy.gather(-1, played.actions[..., None])[..., 0]
    with torch.no_grad():
        goes_on = torch.cat([alive[1:], torch.zeros_like(alive[:1])])
        log_rho = log_probs - played.log_probs
        targets, advantages = vtrace(log_rho, played.rewards, values, config.discount * goes_on)
    if config.centred:  # values do not know the devices, so all steps of an episode gain or lose together
        advantages = advantages - ((advantages * alive).sum(1) / alive.sum(1).clamp(min=1))[:, None]
    if config.scaled:
        advantages = advantages / ((advantages.square() * alive).sum() / alive.sum()).sqrt().clamp(min=1e-8)
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
        self.suite, self.config, self.seed, self.device = suite, config, seed, torch.device(device)
        self.planner = counted(simulators.make(config.planner or suite.planner))
        self.tasks, self.scaling = suite.tasks("train"), without(np.stack(suite.feature_scaling()), config.drop)
        self.measures = not isinstance(self.planner, FastSimulator)
        if not self.measures and config.planner not in ("", suite.planner):
            why = f"{config.planner} predicts, and {suite.key} plays with {suite.planner}"
            raise InvalidTask(f"{why}: leave out planner, or give one that measures")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net, self.costs = Net(), self._cost_learner() if self.measures else None
        if self.costs:  # the representations are the cost network's
            self.net.table.load_state_dict(self.costs.net.table.state_dict())
        self.net.table.requires_grad_(not self.measures)
        self.net.scaling = torch.tensor(self.scaling)
        self.net.to(self.device)
        learned = [part for part in self.net.parameters() if part.requires_grad]
        self.optimizer = torch.optim.Adam(learned, config.learning_rate)
        self.updates = self.iterations = 0
        self.past: deque[dict[str, Tensor]] = deque(maxlen=config.lag + 1)  # weights after the last iterations
        self.past.append(self._weights())
        self.under_way = False  # an order was sent

    def _cost_learner(self) -> CostLearner:
        c = self.config
        if self.suite.objective != "kernel" or c.reward not in ("", "balance") or not c.cost_model:
            why = f"{self.planner.id} measures: what AutoShard learns from it are kernel costs, for the balance"
            raise InvalidTask(f"{why}; train on a MetaSyn suite, with its own reward and with the cost model")
        fitting = Fitting(c.cost_updates, c.cost_batch, c.cost_buffer)
        return CostLearner(self.tasks, self.scaling, c.cost_rate, fitting)

    @cached_property
    def stage(self) -> Stage:
        """What actors play on."""
        order = None if self.config.cost_model else "size"
        shown = (self.scaling, self.config.cost_model, order, self.config.reward or None, self.measures)
        return Stage(self.tasks, self.suite, *shown)

    @cached_property
    def crew(self) -> Crew:
        """The actors, made when first needed."""
        c = self.config
        return Processes(self.stage, c.num_envs, c.actors) if c.actors else Here(self.stage, c.num_envs, self.device)

    @cached_property
    def order(self) -> str:
        """How environments deal the tables."""
        return "size" if not self.config.cost_model or self.suite.name.startswith("Tight") else "cost"

    def iterate(self) -> dict[str, float]:
        """Actors play one episode in each environment; the learner updates on them in batches."""
        if not self.under_way:
            self._send(self.iterations, self.past[0])
        played, config = self.crew.receive(), self.config
        calls = self._measured(played) if self.measures else played.calls
        self.under_way = False
        if config.lag:  # actors go on meanwhile
            self._send(self.iterations + 1, self.past[1 if len(self.past) > config.lag else 0])
        generator = torch.Generator().manual_seed(_seed(self.seed, self.iterations))
        episodes = played.episodes.to(self.device)
        if not self.updates:  # values begin where returns are, or else the first updates push all actions alike
            self.net.begin_values_at(float(episodes.rewards.sum(0).mean()))
        told = []
        for part in torch.randperm(config.num_envs, generator=generator).split(config.batch):
            lag = float(self.updates - played.version)
            told.append({"lag": lag, **self._update(episodes.some(part.to(self.device)))})
        means = {name: float(np.mean([one[name] for one in told])) for name in told[0]}
        if self.costs:
            means["cost_loss"] = self.costs.fit(generator)
            self.net.table.load_state_dict(self.costs.net.table.state_dict())
        self.iterations += 1
        self.past.append(self._weights())
        counts = {"updates": float(self.updates), "steps": float(episodes.alive.sum()), "simulator_calls": float(calls)}
        return {**means, "return": float(episodes.rewards.sum(0).mean()), **counts}

    def _send(self, iteration: int, weights: dict[str, Tensor]) -> None:
        version = int(weights["version"])
        self.crew.send(Order(_seed(self.seed, iteration), version, weights))
        self.under_way = True

    def _measured(self, played: Played) -> int:
        """Put measured balances in the place of predicted ones, and remember what shards took; plans measured."""
        costs = []
        for b, (index, device) in enumerate(played.plans):
            latency = self.planner.latency(self.tasks[index], device)
            costs.append(latency.compute)
            last = int(played.episodes.alive[:, b].sum()) - 1
            if played.episodes.rewards[last, b] >= 0:  # below 0 it is over memory
                played.episodes.rewards[last, b] = float(latency.balance)
        assert self.costs is not None
        self.costs.remember(played.plans, costs)
        return len(costs)

    def _update(self, episodes: Episodes) -> dict[str, float]:
        loss, told = loss_of(self.net, episodes, self.config)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        if self.config.decay:
            done = min(1.0, self.updates / self.config.decay)
            self.optimizer.param_groups[0]["lr"] = self.config.learning_rate * (1 - 0.9 * done)
        self.optimizer.step()
        self.updates += 1
        return {**told, "gradient": float(norm)}

    def _weights(self) -> dict[str, Tensor]:
        """What actors are sent."""
        return packed(net=self.net, version=self.updates, **({"costs": self.costs.net} if self.costs else {}))

    def state(self) -> dict[str, Tensor]:
        """Weights, those that actors still use, optimizers, shards measured and counters."""
        out = packed(net=self.net, optimizer=self.optimizer, updates=self.updates, iterations=self.iterations)
        if self.costs:
            out |= packed(costs=self.costs.net, cost_optimizer=self.costs.optimizer)
            out |= {f"shards/{name}": column for name, column in self.costs.state().items()}
        for i, weights in enumerate(self.past):
            out |= {f"past{i}/{name}": value for name, value in weights.items()}
        return out

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from there."""
        unpack(state, net=self.net, optimizer=self.optimizer)
        if self.costs:
            unpack(state, costs=self.costs.net, cost_optimizer=self.costs.optimizer)
            self.costs.restore(under(state, "shards"))
        self.updates, self.iterations = int(state["updates"]), int(state["iterations"])
        self.past.clear()
        while (held := under(state, f"past{len(self.past)}")) and len(self.past) <= self.config.lag:
            self.past.append(held)
        self.under_way = False

    def solver(self) -> AutoShard:
        """The policy as it is now."""
        net = Net()
        net.load_state_dict(under(self._weights(), "net"))
        card = {"order": self.order, "suite": self.suite.key, "planner": self.planner.id, "seed": self.seed}
        costs = under(self._weights(), "costs") if self.costs else None
        return AutoShard(net, {**card, "updates": self.updates, "config": asdict(self.config)}, costs)


def _seed(seed: int, iteration: int) -> int:
    return int(hashed(seed, iteration)) % 2**63
