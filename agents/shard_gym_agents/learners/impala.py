"""IMPALA's parts that know no policy: episodes as actors hand them over, and V-trace. Needs torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Episodes:
    """Whole episodes as they were played; steps past the end of shorter ones have `alive` 0."""

    shown: Tensor  # (T, B, 22)
    costs: Tensor  # (T, B, K)
    mask: Tensor  # (T, B, K) 1 where the table fits
    actions: Tensor  # (T, B)
    log_probs: Tensor  # (T, B) by the actors
    rewards: Tensor  # (T, B)
    alive: Tensor  # (T, B)

    def some(self, picked: Tensor) -> Episodes:
        """These episodes of them."""
        return Episodes(*(getattr(self, f.name)[:, picked] for f in fields(self)))

    def to(self, device: torch.device) -> Episodes:
        """The same, there."""
        return Episodes(*(getattr(self, f.name).to(device) for f in fields(self)))

    @classmethod
    def side_by_side(cls, parts: Sequence[Episodes]) -> Episodes:
        """All of them together; shorter ones are filled up with zeros."""
        longest = max(len(part.alive) for part in parts)

        def filled(column: Tensor) -> Tensor:
            return torch.cat([column, column.new_zeros((longest - len(column), *column.shape[1:]))])

        return cls(*(torch.cat([filled(getattr(part, f.name)) for part in parts], 1) for f in fields(cls)))


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
