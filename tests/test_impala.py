"""V-trace and AutoShard's loss, beside both written out."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from shard_gym_agents.learners.autoshard import Config, loss_of, vtrace
from shard_gym_agents.learners.autoshard_actors import TABLE, Episodes
from tests.learner_helpers import one_thread  # noqa: F401
from tests.test_autoshard import net

pytestmark = pytest.mark.usefixtures("one_thread")


def written_out(log_rho, rewards, values, discounts):
    """V-trace as equation 2 of AutoShard's paper has it: a sum of temporal differences for each step."""
    steps, batch = rewards.shape
    rho = np.minimum(np.exp(log_rho), 1)
    ahead = np.vstack([values[1:], np.zeros((1, batch))])
    targets = np.zeros((steps, batch))
    for b in range(batch):
        for start in range(steps):
            total, weight = values[start, b], 1.0
            for t in range(start, steps):
                total += weight * rho[t, b] * (rewards[t, b] + discounts[t, b] * ahead[t, b] - values[t, b])
                weight *= discounts[t, b] * rho[t, b]
            targets[start, b] = total
    after = np.vstack([targets[1:], np.zeros((1, batch))])
    return targets, rho * (rewards + discounts * after - values)


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_vtrace_is_what_the_paper_writes(rng, discount):
    log_rho, rewards, values = rng.normal(size=(3, 7, 4))
    discounts = np.full((7, 4), discount)
    discounts[-1] = discounts[3, 1] = 0  # a shorter episode
    found = vtrace(*(torch.tensor(x) for x in (log_rho, rewards, values, discounts)))
    for ours, theirs in zip(found, written_out(log_rho, rewards, values, discounts), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12)


def test_vtrace_on_policy_is_the_return_still_to_come():
    rewards, values = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([[0.5], [0.25], [8.0]])
    targets, advantages = vtrace(torch.zeros(3, 1), rewards, values, torch.tensor([[1.0], [1.0], [0.0]]))
    assert targets[:, 0].tolist() == [7, 6, 4]
    assert advantages[:, 0].tolist() == [6.5, 5.75, -4]


def some_episodes(seed=0, steps=3, episodes=2, devices=2):
    g = torch.Generator().manual_seed(seed)
    shown, costs = torch.randn(steps, episodes, 22, generator=g), torch.rand(steps, episodes, devices, generator=g)
    actions = torch.randint(devices, (steps, episodes), generator=g)
    rewards = torch.rand(steps, episodes, generator=g)
    ones = torch.ones(steps, episodes)
    return Episodes(shown, costs, torch.ones_like(costs), actions, -0.7 * ones, rewards, ones)


@pytest.mark.parametrize(("centred", "scaled"), [(True, False), (False, False), (True, True)])
def test_the_loss_by_hand(centred, scaled):
    """One step at a time, with sums kept as the actors keep them."""
    network, played = net(), some_episodes()
    config = Config(entropy=0.25, baseline=0.5, centred=centred, scaled=scaled)
    loss, _ = loss_of(network, played, config)
    memory, sums, log_probs, values, entropy = None, torch.zeros(2, 2, TABLE), [], [], 0.0
    for t in range(3):
        tables, states, memory = network.states(played.shown[t : t + 1], memory)
        log_policy = F.log_softmax(network.scores(states[0], sums, played.costs[t]), -1)
        log_probs.append(log_policy[torch.arange(2), played.actions[t]])
        values.append(network.values(states[0]))
        entropy = entropy - (log_policy.exp() * log_policy).sum()
        sums = sums.clone()
        sums[torch.arange(2), played.actions[t]] += tables[0]
    log_probs, values = torch.stack(log_probs), torch.stack(values)
    discounts = torch.tensor([[1.0], [1.0], [0.0]]).expand(3, 2)
    given = (log_probs - played.log_probs, played.rewards, values, discounts)
    targets, advantages = (torch.tensor(x).float() for x in written_out(*(x.detach().numpy() for x in given)))
    if centred:
        advantages = advantages - advantages.mean(1, keepdim=True)
    if scaled:
        advantages = advantages / (advantages**2).mean().sqrt()
    by_hand = -(advantages * log_probs).sum() + 0.25 * ((targets - values) ** 2).sum() - 0.25 * entropy
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_masked_devices_have_no_part_in_the_loss():
    played = some_episodes(devices=3)
    mask = torch.ones_like(played.costs)
    mask[:, :, 2] = 0
    played = replace(played, mask=mask, actions=played.actions.clamp(max=1))
    loss, _ = loss_of(net(), played, Config())
    costs = played.costs.clone()
    costs[..., 2] = 9
    again, _ = loss_of(net(), replace(played, costs=costs), Config())
    assert torch.equal(loss, again) and torch.isfinite(loss)


def test_steps_past_the_end_have_no_part_in_the_loss():
    played = some_episodes(steps=4)
    alive = played.alive.clone()
    alive[3] = 0
    longer, shorter = replace(played, alive=alive), Episodes(*(x[:3] for x in vars(played).values()))
    rewards = played.rewards.clone()
    rewards[3] = 0
    one, _ = loss_of(net(), replace(longer, rewards=rewards), Config())
    other, _ = loss_of(net(), shorter, Config())
    assert one.item() == pytest.approx(other.item(), rel=1e-5)
