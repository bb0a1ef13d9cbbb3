"""The networks at run time, in numpy. Fitting has its own forward in torch; a test holds the two together.

Answers must be the same bit for bit in any batch, and matrix products are not: BLAS adds in an order that depends
on shapes. So inputs are multiples of 2**-14 and weights multiples of 2**-16: products and their sums are then exact
in float64 (while below 2**23), in whatever order. Between layers values are rounded to 2**-14 again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from shard_gym.errors import CorruptFile, UnknownName
from shard_gym.records import tensors as card_files
from shard_gym.simulators import features
from shard_gym.simulators.base import GRAIN, Factors
from shard_gym.tables.pool import FEATURES, TablePool
from shard_gym.task.links import Links

SCHEMA = "shard-gym/weights/1"
# Where nobody measured the wires of an all-to-all: 10 Gbit/s Ethernet as TCP gets it.
ETHERNET = Links(port=1.1e6, latency_ms=0.2)
WEIGHT_GRAIN = 2.0**16
HIGHEST = 2.0**16  # activations stop here: beyond, products would no longer be exact
ROOT_OFFSET = 2.0**-10  # keeps the slope of the fourth root finite at 0
LOWEST_FACTOR = 0.05
FEW = 1000  # numbers
MAD_TO_DEVIATION = 1.2533  # of a normal distribution, its standard deviation over its mean absolute deviation


@dataclass(frozen=True, eq=False)
class Weights:
    """The numbers of a fitted network, and its card: architecture, features, hardware, batch, counts, errors."""

    tensors: dict[str, np.ndarray]  # float64
    card: dict[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", {name: np.array(a, np.float64) for name, a in self.tensors.items()})

    @property
    def sha256(self) -> str:
        """Hash of card and tensors."""
        return card_files.sha256(self.tensors, self.card)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file, whole or not at all."""
        card_files.write(path, SCHEMA, self.tensors, self.card)

    @classmethod
    def load(cls, path: str | Path) -> Weights:
        """Read what `save` wrote; refuses a file that is cut short or does not match its hash."""
        return cls(*card_files.read(path, SCHEMA, "fit it again"))


def links_of(card: dict[str, Any]) -> Links:
    """The wires that a card tells of, as keywords of Links with null for a rate without bound; else Ethernet's."""
    if not card.get("links"):
        return ETHERNET
    given: dict[str, Any] = {name: math.inf if value is None else value for name, value in card["links"].items()}
    return Links(**given)


class Network(Protocol):
    """A cost network in the two functions of a fast simulator."""

    width: int

    def embed(self, tables: TablePool, batch: int) -> np.ndarray:
        """The row that each table adds to its shard's sum, (N, width)."""
        ...

    def decode(self, sums: np.ndarray) -> np.ndarray:
        """Forward ms, backward ms and the members' disagreement in ms, from sums (S, width) -> (3, S)."""
        ...

    def by_member(self, sums: np.ndarray) -> np.ndarray:
        """Forward and backward microseconds by each member of the ensemble, from sums (S, width) -> (M, 2, S)."""
        ...

    def factors(self, own: int) -> Factors | None:
        """The weights as bounds know them, of a network with so many columns before its own; None: unlike that."""
        ...


def on_grid(values: np.ndarray, grain: float = GRAIN) -> np.ndarray:
    """Rounded to multiples of 1 / grain."""
    return np.rint(values * grain) / grain


def relu(values: np.ndarray) -> np.ndarray:
    """Rectified and put on the grid again, in place."""
    return _snap(_between(values, 0.0, HIGHEST))


def _between(values: np.ndarray, low: float, high: float) -> np.ndarray:
    if values.size > FEW:
        return np.clip(values, low, high, out=values)
    # np.clip's checks cost more than the work on a few shards, of which this makes two passes
    return np.minimum(np.maximum(values, low, out=values), high, out=values)


def _snap(values: np.ndarray) -> np.ndarray:
    values *= GRAIN
    np.rint(values, out=values)
    values *= 1 / GRAIN
    return values


class Published:
    """AutoShard's and DreamShard's: 21-128-32 a table, summed, and a head of 32-64-1 for each cost."""

    inputs = FEATURES

    def __init__(self, tensors: dict[str, np.ndarray], heads: tuple[str, ...]) -> None:
        self.t, self.heads = tensors, heads
        self.width = tensors["table/1/weight"].shape[1]

    def embed(self, tables: TablePool, batch: int) -> np.ndarray:
        """Representations of tables, (N, 32); as published they do not know the batch."""
        scaled = (features.published(tables) - self.t["mean"]) * self.t["scale"]
        hidden = relu(self._dense("table/0", on_grid(np.clip(scaled, -HIGHEST, HIGHEST))))
        return self._dense("table/1", hidden)

    def decode(self, sums: np.ndarray) -> np.ndarray:
        """Costs of shards; a single output is shared out between the passes as in the fitted data."""
        if "total" in self.heads:
            total = np.maximum(self._head("total", sums), 0.0)
            forward = total * self.t["forward_share"]
            return np.stack([forward, total - forward, np.zeros_like(total)])
        forward, backward = (np.maximum(self._head(h, sums), 0.0) for h in ("forward", "backward"))
        return np.stack([forward, backward, np.zeros_like(forward)])

    def by_member(self, sums: np.ndarray) -> np.ndarray:
        """The one network there is, (1, 2, S)."""
        return 1e3 * self.decode(sums)[None, :2]

    def factors(self, own: int) -> None:
        """Return None: costs of these networks may fall as tables are added."""

    def overall(self, sums: np.ndarray) -> np.ndarray:
        """DreamShard's cost of whole plans: the largest of each element over devices, then one more head.

        sums (P, K, width) -> (P,) ms.
        """
        return self._head("overall", sums.max(axis=1))

    def _head(self, name: str, sums: np.ndarray) -> np.ndarray:
        return self._dense(f"{name}/1", relu(self._dense(f"{name}/0", sums)))[:, 0]

    def _dense(self, layer: str, x: np.ndarray) -> np.ndarray:
        out = x @ self.t[f"{layer}/weight"]
        out += self.t[f"{layer}/bias"]
        return out


class Ours:
    """Costs that add up, times a correction that grows with what the whole shard amounts to.

    Each member of the ensemble learns, for both passes, what a table costs in company (`base`, positive, in units
    of its lookups) and a factor from the fourth roots of the shard's totals. Weights of the factor are positive:
    one more table never makes a shard cheaper, so that search finds no such mistake to build on.
    """

    inputs = features.INPUTS

    def __init__(self, tensors: dict[str, np.ndarray], caches: features.Caches) -> None:
        self.t, self.caches = tensors, caches
        self.members, self.totals = len(tensors["fixed"]), len(features.TOTALS)
        self.width = self.totals + 2 * self.members
        weight, bias = tensors["factor/0/weight"], tensors["factor/0/bias"]  # (M, totals, U), (M, U)
        with_bias = np.concatenate([weight, bias[:, None]], axis=1).transpose(0, 2, 1)
        self.units = with_bias.reshape(-1, self.totals + 1) * GRAIN  # whole numbers come out, so one rint rounds
        self.factor = np.ascontiguousarray(tensors["factor/1/weight"].transpose(0, 2, 1)) / GRAIN  # (M, 2, U)
        self.factor_bias, self.fixed = tensors["factor/1/bias"][..., None], tensors["fixed"][..., None]  # (M, 2, 1)

    def embed(self, tables: TablePool, batch: int) -> np.ndarray:
        """Totals in multiples of an average table's, then each member's forward and backward microseconds."""
        t, found = self.t, features.work(tables, batch, self.caches)
        scaled = (np.clip(found.inputs, t["low"], t["high"]) - t["mean"]) * t["scale"]
        hidden = relu(on_grid(scaled) @ t["table/0/weight"] + t["table/0/bias"][:, None])  # (M, N, T)
        level = hidden @ t["table/1/weight"] + t["table/1/bias"][:, None]  # (M, N, 2)
        base = found.unit[:, None] * np.logaddexp(np.concatenate(list(level), axis=1), 0.0)  # softplus
        return np.concatenate([found.totals * t["totals_scale"], base], axis=1)

    def decode(self, sums: np.ndarray) -> np.ndarray:
        """Mean of the members, and how far they are apart."""
        return _mean_and_spread(self.by_member(sums))

    def by_member(self, sums: np.ndarray) -> np.ndarray:
        """Forward and backward microseconds by each member, (M, 2, S)."""
        columns = np.array(sums.T, order="C")  # (width, S): shards are columns from here on; a copy, even of one shard
        base = columns[self.totals :].reshape(self.members, 2, -1)
        roots = np.empty((self.totals + 1, len(sums)))
        roots[-1] = 1.0  # meets the biases
        np.add(columns[: self.totals], ROOT_OFFSET, out=roots[:-1])
        _snap(np.sqrt(np.sqrt(roots, out=roots), out=roots))
        hidden = self.units @ roots
        np.rint(_between(hidden, 0.0, HIGHEST * GRAIN), out=hidden)
        passes = self.factor @ hidden.reshape(self.members, -1, len(sums))  # (M, 2, S)
        passes += self.factor_bias
        _between(passes, LOWEST_FACTOR, HIGHEST)
        base += self.fixed
        passes *= base
        return _snap(passes)

    def factors(self, own: int) -> Factors:
        """The weights that follow the sums; `own` columns of a shard's sum come before the network's."""
        hidden, out = (self.t[f"factor/{layer}/weight"] for layer in (0, 1))
        return Factors(own, self.t["fixed"], hidden, self.t["factor/0/bias"], out, self.t["factor/1/bias"])


def _mean_and_spread(passes: np.ndarray) -> np.ndarray:
    """Forward, backward and the standard deviation of both together, ms (3, S), from microseconds (M, 2, S).

    Times are on the grid, so that sums over members are exact and do not depend on the number of shards.
    """
    members = len(passes)
    out = np.empty((3, passes.shape[-1]))
    np.add.reduce(passes, axis=0, out=out[:2])
    whole = passes[:, 0] + passes[:, 1]
    whole *= members
    whole -= out[0] + out[1]
    np.add.reduce(abs(whole), axis=0, out=out[2])
    out[:2] *= 1e-3 / members
    out[2] *= 1e-3 * MAD_TO_DEVIATION / members**2
    return out


ARCHITECTURES: dict[str, Any] = {
    "ours": Ours,
    "ours-wide": Ours,  # more units: what judges are fitted with
    "autoshard": ("forward", "backward"),
    "autoshard-total": ("total",),
    "dreamshard": ("forward", "backward", "comm"),
}


def make_network(weights: Weights) -> Published | Ours:
    """The network of fitted weights; refuses weights made for other features or another order of them."""
    name = weights.card.get("architecture")
    if name not in ARCHITECTURES:
        raise UnknownName("architecture", name, ARCHITECTURES)
    made = ARCHITECTURES[name]
    expected = list(made.inputs if made is Ours else Published.inputs)
    if weights.card.get("features") != expected:
        raise CorruptFile(f"weights of {name} expect features {weights.card.get('features')}, here they are {expected}")
    try:
        caches = features.Caches.of(weights.card.get("caches", {}))
        return Ours(weights.tensors, caches) if made is Ours else Published(weights.tensors, made)
    except KeyError as error:
        raise CorruptFile(f"weights of {name} lack the tensor {error}: fit them again") from error
