"""AutoShard (KDD'22): an LSTM over the tables, one score for each device, trained by IMPALA. Needs torch.

Where its paper and its public code differ, this follows the paper, and mends what the code gets wrong: full devices
are masked, in acting and in the loss; runs are seeded; the ablation without a cost model sees no prediction at all;
policy and cost model have an Adam each. Costs are over an even share of all tables' single costs, not in ms, so that
a policy can be taken to other numbers of tables and devices. Unrolls are whole episodes, not 100 steps.

With a planner that predicts, its predictions are what the policy sees, and stay as they are. With one that measures
(`planner="fbgemm:cpu"`) a cost network of AutoShard's own learns along with the policy, Algorithm 1, and the two
share their table representations; the reward is then the measured balance.

Where tasks allow all kinds of sharding it scores the environment's actions in the place of devices: the LSTM is told,
too, how the next table is sharded by now, and an action is the mean of the tables on the devices that it uses and, in
the place of their predicted costs, what costs and memory become by it (`actions.told`). With `residual` it begins near
a greedy of ours, as PPO does; without, at random, as the paper's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shard_gym.envs.episodes import hashed
from shard_gym.errors import InvalidTask, SimulatorError
from shard_gym.plan.plan import Plan
from shard_gym.simulators import FastSimulator, Latency, Simulator
from shard_gym.task.suites import Suite
from shard_gym.task.task import Task
from shard_gym.work.terms import Hands
from shard_gym_agents.learners import rollouts
from shard_gym_agents.learners.actions import ORDER, PRICES, Choose, aimed, best_plan, dearer, priced
from shard_gym_agents.learners.autoshard_actors import (
    TABLE,
    Actor,
    CostLearner,
    CostNet,
    Episodes,
    Net,
    OwnCosts,
    Request,
    Stage,
)
from shard_gym_agents.learners.autoshard_tables import placed
from shard_gym_agents.learners.crew_ray import OnRay
from shard_gym_agents.learners.crews import Crew, Here, Place, Processes
from shard_gym_agents.learners.learner import (
    PLACE,
    SuiteLearner,
    holds,
    load_tensors,
    packed,
    save_tensors,
    to_a_tenth,
    under,
    unpack,
)
from shard_gym_agents.learners.rollouts import ILLEGAL
from shard_gym_agents.learners.trained import read_card
from shard_gym_agents.solvers.solver import require_fast

KIND, OF_KINDS = "autoshard", "autoshard-actions"  # of file
KEPT = ("order", "suite", "planner", "seed", "updates", "config")


@dataclass(frozen=True)
class Config:
    """Hyper-parameters; the values are the paper's unless said otherwise."""

    num_envs: int = 64  # episodes an iteration, played side by side
    batch: int = 32  # episodes an update; the paper's 8, at its rate, learn as fast but collapse now and then
    lag: int = 1  # iterations that the actors' weights are behind
    portion: int = 0  # episodes that an actor plays side by side, a divisor of num_envs; 0: all of them
    # processes that play while this one learns, or with --ray actors on the cluster, at most; 0: this one, or all CPUs
    actors: int = field(default=0, metadata=PLACE)
    actor_gpus: float = field(default=0.0, metadata=PLACE)  # of each actor on Ray, for a planner that measures on GPUs
    learning_rate: float = 3e-4  # of Adam; the paper's is 1e-3
    entropy: float = 0.001  # weight of the policy's entropy
    baseline: float = 0.5  # weight of the value's error
    discount: float = 1.0
    clip: float = 40.0  # norm of the gradient, at most
    centred: bool = True  # advantages less their mean over the batch; the paper has none of it
    scaled: bool = True  # and over their deviation, so that small gains near the optimum still count; the paper: no
    decay: int = 0  # updates in which the learning rate falls to a tenth, and stays; 0: never, as published
    reward: str = ""  # "balance", "latency" or "dense"; "": the suite's own
    floor: float = 0.0  # rewards are cut off at minus this, or else plans over memory drown all others; 0: never
    cost_model: bool = True  # False: no predicted cost, and tables in order of size; the paper's ablation
    drop: str = ""  # a group of features that the policy is not shown; see `rollouts.GROUPS`
    planner: str = ""  # one that measures, "fbgemm:cpu": costs are then learned too; "": the suite's
    cost_updates: int = 20  # of the cost network, an iteration, where it is learned
    cost_batch: int = 512  # shards
    cost_buffer: int = 5_000  # shards
    cost_rate: float = 1e-3  # of its Adam
    residual: bool = True  # begin near a greedy with some noise, where tasks allow all kinds of sharding
    sharpness: float = 6.0  # how little noise, at first

    def __post_init__(self) -> None:
        if min(self.num_envs, self.batch, self.lag + 1) < 1 or self.num_envs % self.batch:
            raise InvalidTask("num_envs is a multiple of batch, both at least 1, and lag at least 0")
        if self.portion < 0 or self.num_envs % (self.portion or 1):
            raise InvalidTask(f"num_envs is a multiple of portion, got {self.num_envs} and {self.portion}")
        if min(self.actors, self.actor_gpus) < 0:
            raise InvalidTask(f"actors are 0 or more, and so are their GPUs, got {self.actors} and {self.actor_gpus}")
        if self.sharpness <= 0 or self.floor < 0:
            raise InvalidTask(f"sharpness is above 0, and floor at least 0, got {self.sharpness} and {self.floor}")

    @property
    def portions(self) -> int:
        """Portions that an iteration's episodes come in."""
        return self.num_envs // (self.portion or self.num_envs)


def vtrace(log_rho: Tensor, rewards: Tensor, values: Tensor, discounts: Tensor) -> tuple[Tensor, Tensor]:
    """Targets of the values and advantages of the actions, IMPALA eq. 1 with both truncations at 1; all (T, B).

    `discounts` is 0 at an episode's last step, so nothing is bootstrapped.
    """
    rho = log_rho.exp().clamp(max=1.0)
    ahead = torch.cat([values[1:], torch.zeros_like(values[:1])])
    delta = rho * (rewards + discounts * ahead - values)
    targets, correction = torch.empty_like(values), torch.zeros_like(values[0])
    for t in reversed(range(len(values))):
        correction = delta[t] + discounts[t] * rho[t] * correction
        targets[t] = values[t] + correction
    target_ahead = torch.cat([targets[1:], torch.zeros_like(targets[:1])])
    return targets, rho * (rewards + discounts * target_ahead - values)


def loss_of(net: Net, played: Episodes, config: Config, devices: int = 0) -> tuple[Tensor, dict[str, float]]:
    """Loss, summed over steps as in the IMPALA that the paper takes, and what to log.

    `devices` is told where actions are more than these.
    """
    tables, states, _ = net.states(played.shown)
    actions = played.mask.shape[-1]
    on = net.placed(played.actions, actions, devices or actions)[..., None] * tables[..., None, :]
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


class Learner(SuiteLearner):
    """Actors play on many environments at once with weights that lag; the learner corrects for that by V-trace."""

    splits = False
    on_ray = True

    def __init__(
        self, suite: Suite, config: Config, seed: int, device: str = "cpu", cluster: Hands | None = None
    ) -> None:
        self.cluster = cluster
        planner = Elsewhere(config.planner) if cluster and config.planner else config.planner
        super().__init__(suite, config, seed, device, planner)
        self.scaling = rollouts.without(np.stack(suite.feature_scaling()), config.drop)
        self.measures = not isinstance(self.planner, FastSimulator)
        self._require_planner()
        if suite.kinds and not config.cost_model:
            raise InvalidTask(f"without a cost model AutoShard places whole tables: train it with one on {suite.key}")
        with self.seeded():
            self.net = Net(suite.kinds != (), config.residual, config.sharpness)
            self.costs = self._cost_learner() if self.measures else None
        if self.costs:  # the representations are the cost network's
            self.net.table.load_state_dict(self.costs.net.table.state_dict())
        self.net.table.requires_grad_(not self.measures)
        self.net.scaling = torch.tensor(self.scaling)
        self.net.to(device)
        learned = [part for part in self.net.parameters() if part.requires_grad]
        self.optimizer = torch.optim.Adam(learned, config.learning_rate)
        self.parts = {"net": self.net, "optimizer": self.optimizer}
        if self.costs:
            self.parts |= {"costs": self.costs.net, "cost_optimizer": self.costs.optimizer}
        self.updates = 0
        self.past: deque[dict[str, Tensor]] = deque(maxlen=config.lag + 1)  # weights after the last iterations
        self.past.append(self._weights())
        self.asked = 0  # iterations that actors were asked to play

    def _cost_learner(self) -> CostLearner:
        c = self.config
        return CostLearner(self.tasks, self.scaling, c.cost_rate, c.cost_updates, c.cost_batch, c.cost_buffer)

    def _require_planner(self) -> None:
        """Refuse a planner that predicts but is not the suite's, or that measures what cannot be learned from."""
        c, suite = self.config, self.suite
        if not self.measures and c.planner not in ("", suite.planner):
            why = f"{c.planner} predicts, and {suite.key} plays with {suite.planner}"
            raise InvalidTask(f"{why}: leave out planner, or give one that measures")
        if self.measures and (suite.objective != "kernel" or c.reward not in ("", "balance") or not c.cost_model):
            why = f"{self.planner.id} measures: what AutoShard learns from it are kernel costs, for the balance"
            raise InvalidTask(f"{why}; train on a MetaSyn suite, with its own reward and with the cost model")

    @cached_property
    def stage(self) -> Stage:
        """The tasks that actors play, and how they are shown."""
        order = ORDER if self.suite.kinds else None if self.config.cost_model else "size"
        measured_by = (self.config.planner or self.suite.planner) if self.measures else ""
        shown = (self.scaling, self.config.cost_model, order, self.config.reward or None, measured_by)
        return Stage(self.tasks, self.suite, *shown)

    @cached_property
    def crew(self) -> Crew:
        """The actors, made when first needed."""
        return Crew(self._place(), self.config.portions)

    def _place(self) -> Place:
        c = self.config
        each = c.num_envs // c.portions
        if self.cluster:
            return OnRay(self.cluster, self.stage, each, c.actors, c.actor_gpus)
        return Processes(self.stage, each, c.actors) if c.actors else Here(self.stage, each, self.device)

    def end(self) -> None:
        """End the actors."""
        if "crew" in self.__dict__:
            self.crew.place.end()
            del self.crew

    @cached_property
    def order(self) -> str:
        """The order in which environments deal the tables."""
        return self.stage.order or self.suite.order

    def iterate(self) -> dict[str, float]:
        """Actors play one episode in each environment; the learner updates on them in batches."""
        self._ask_ahead()
        answer, config = self.crew.receive(), self.config
        if self.costs:
            self.costs.remember(answer.plans, answer.measured)
        generator = torch.Generator().manual_seed(_seed(self.seed, self.iteration))
        episodes = answer.episodes.to(self.device)
        earned = float(episodes.rewards.sum(0).mean())
        if config.floor:
            episodes = replace(episodes, rewards=episodes.rewards.clamp(min=-config.floor))
        if not self.updates:  # values begin where returns are, or else the first updates push all actions alike
            self.net.begin_values_at(float(episodes.rewards.sum(0).mean()))
        told = []
        for part in torch.randperm(config.num_envs, generator=generator).split(config.batch):
            lag = float(self.updates - answer.version)
            told.append({"lag": lag, **self._update(episodes.some(part.to(self.device)))})
            self.crew.tend()
        means = {name: float(np.mean([one[name] for one in told])) for name in told[0]}
        if self.costs:
            means["cost_loss"] = self.costs.fit(generator)
            self.net.table.load_state_dict(self.costs.net.table.state_dict())
        self.iteration += 1
        self.past.append(self._weights())
        counts = {
            "updates": float(self.updates),
            "steps": float(episodes.alive.sum()),
            "simulator_calls": float(answer.calls),
        }
        return {**means, "return": earned, **counts}

    def _ask_ahead(self) -> None:
        """Have this iteration played, and all that may be played with weights that are there by now."""
        oldest = self.iteration + 1 - len(self.past)  # iteration after which the first of the past weights were made
        while self.asked <= self.iteration + self.config.lag:
            weights = self.past[max(0, self.asked - self.config.lag) - oldest]
            self.crew.send(Request(_seed(self.seed, self.asked), int(weights["version"]), weights))
            self.asked += 1

    def _update(self, episodes: Episodes) -> dict[str, float]:
        loss, told = loss_of(self.net, episodes, self.config, self.suite.num_devices)
        self.optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)
        if self.config.decay:
            rate = to_a_tenth(self.config.learning_rate, self.updates, self.config.decay)
            self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.step()
        self.updates += 1
        return {**told, "gradient": float(norm)}

    def _weights(self) -> dict[str, Tensor]:
        """Weights as actors are sent them."""
        return packed(net=self.net, version=self.updates, **({"costs": self.costs.net} if self.costs else {}))

    def state(self) -> dict[str, Tensor]:
        """Weights, those that actors still use, optimizers, shards measured and counters."""
        out = packed(**self.parts, updates=self.updates, iterations=self.iteration)
        if self.costs:
            out |= {f"shards/{name}": column for name, column in self.costs.state().items()}
        for i, weights in enumerate(self.past):
            out |= {f"past{i}/{name}": value for name, value in weights.items()}
        return out

    def restore(self, state: Mapping[str, Tensor]) -> None:
        unpack(state, **self.parts)
        if self.costs:
            self.costs.restore(under(state, "shards"))
        self.updates, self.iteration = int(state["updates"]), int(state["iterations"])
        self.past.clear()
        while (held := under(state, f"past{len(self.past)}")) and len(self.past) <= self.config.lag:
            self.past.append(held)
        self.asked = self.iteration
        if "crew" in self.__dict__:
            self.crew.begin_anew()

    def solver(self) -> AutoShard:
        net = Net.of(under(self._weights(), "net"))
        costs = under(self._weights(), "costs") if self.costs else None
        card = {**self.card(self.order), "updates": self.updates}
        return AutoShard(net, {name: card[name] for name in KEPT}, costs)


class Elsewhere:
    """A simulator that only actors have."""

    def __init__(self, simulator_id: str) -> None:
        self.id = simulator_id

    def latency(self, task: Task, placements: np.ndarray) -> Latency:
        raise SimulatorError(f"{self.id} is where the actors are, not here")


def _seed(seed: int, iteration: int) -> int:
    return int(hashed(seed, iteration)) % 2**63


@dataclass(frozen=True, eq=False)
class AutoShard:
    """The trained policy: each table to the device of the highest score where it may go, ties to the lowest index.

    `card` says what it was trained on, and the order in which it wants tables. Where it learned costs too, `costs`
    are the weights of that network, and it asks the planner nothing.
    """

    deterministic: ClassVar[bool] = True
    net: Net
    card: dict[str, Any]
    costs: Mapping[str, Tensor] | None = field(default=None, repr=False)

    @property
    def track(self) -> str:
        """Without a cost model, or with one of its own, it asks the planner nothing."""
        return "search" if self.card["config"]["cost_model"] and self.costs is None else "blind"

    @torch.inference_mode()
    def __call__(self, task: Task, planner: Simulator) -> Plan:
        if self.net.kinds:
            attempts, count = priced(self.card["order"], self._begin), len(PRICES)
            if self.net.weights is None:  # memory has no price
                attempts, count = attempts[: len(attempts) // 2], 1
            return best_plan(task, planner, self.net.scaling.numpy(), attempts, count)
        return placed(self.net, self.card["order"], task, self._predicted(planner))

    def _begin(self, prices: Tensor) -> Choose:
        """Begin an episode of all kinds of sharding."""
        sums, memory = None, None

        def choose(shown: Mapping[str, Tensor]) -> Tensor:
            nonlocal sums, memory
            devices, mask, actions = shown["devices"].shape[1], shown["action_mask"] > 0, aimed(shown)
            tables, states, memory = self.net.states(shown["table"][None], memory)
            sums = torch.zeros(len(mask), devices, TABLE) if sums is None else sums
            scores = self.net.scores(states[0], sums, actions)
            if self.net.weights is not None:
                scores = dearer(scores, actions, self.net.weights, prices)
            action = scores.masked_fill(~mask, ILLEGAL).argmax(1)
            sums = sums + self.net.placed(action, mask.shape[1], devices)[..., None] * tables[0][:, None]
            return action

        return choose

    def samples(self, task: Task, planner: Simulator, count: int, seed: int = 0) -> np.ndarray:
        """Plans drawn from the policy, (count, N); a device that is full is taken only where all are."""
        stage = Stage(
            tasks=(task,),
            suite=None,
            scaling=self.net.scaling.numpy(),
            shows_costs=self.card["config"]["cost_model"],
            order=self.card["order"],
            reward="balance",
        )
        simulator = self._predicted(planner) or require_fast(planner)
        actor = Actor(stage, count, simulator=simulator)
        return np.stack([device for _, device in actor.play(Request(seed, 0, packed(net=self.net))).plans])

    def _predicted(self, planner: Simulator) -> FastSimulator | None:
        """The simulator that predicts costs, if any does."""
        if self.costs is not None:
            return OwnCosts(self.costs, self.net.scaling.numpy())
        return require_fast(planner) if self.track == "search" else None

    def save(self, path: str | Path, **card: Any) -> None:
        """Write the weights and their card to a file."""
        tensors = self.net.state_dict() | {f"costs/{name}": value for name, value in (self.costs or {}).items()}
        save_tensors(path, tensors, {**self.card, **card, "kind": OF_KINDS if self.net.kinds else KIND})


def load(path: str | Path) -> AutoShard:
    """Read what `save` wrote."""
    kinds = read_card(Path(path)).get("kind") == OF_KINDS
    tensors, card = load_tensors(path, OF_KINDS if kinds else KIND)
    costs = under(tensors, "costs")
    with holds(path, "AutoShard's network"):
        net = Net.of({name: value for name, value in tensors.items() if not name.startswith("costs/")})
        if costs:
            CostNet().load_state_dict(costs)
        return AutoShard(net, {name: card[name] for name in KEPT}, costs or None)
