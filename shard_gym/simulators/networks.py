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
from shard_gym.records.guard import guarded
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
MOST_DEVIATIONS = 6.0  # of an input from its mean that networks of loads heed
MAD_TO_DEVIATION = 1.2533  # of a normal distribution, its standard deviation over its mean absolute deviation


@dataclass(frozen=True, eq=False, repr=False)
class Weights:
    """The numbers of a fitted network, and its card: architecture, features, hardware, batch, counts, errors."""

    tensors: dict[str, np.ndarray]  # float64
    card: dict[str, Any]

    def __post_init__(self) -> None:
        with guarded("weights"):
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
    with guarded("links of a card"):
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

    def times(self, sums: np.ndarray) -> np.ndarray:
        """Forward and backward ms alone, from sums (S, width) -> (2, S)."""
        ...

    def by_member(self, sums: np.ndarray) -> np.ndarray:
        """Forward and backward microseconds by each member of the ensemble, from sums (S, width) -> (M, 2, S)."""
        ...

    def model(self, sigma: float) -> np.ndarray | None:
        """The numbers as the compiled core reads them, with the error that members share; None: it does not."""
        ...

    def factors(self, own: int) -> Factors | None:
        """The weights as bounds know them, of a network with so many columns before its own; None: unlike that."""
        ...


def on_grid(values: np.ndarray, grain: float = GRAIN) -> np.ndarray:
    """Rounded to multiples of 1 / grain."""
    return np.rint(values * grain) / grain


def relu(values: np.ndarray) -> np.ndarray:
    """Rectified and put on the grid again, in place."""
    return _snap(values.clip(0.0, HIGHEST, out=values))


def _snap(values: np.ndarray) -> np.ndarray:
    values *= GRAIN
    np.rint(values, out=values)
    values *= 1 / GRAIN
    return values


class Published:
    """AutoShard's and DreamShard's: 21-128-32 a table, summed, and a head of 32-64-1 for each cost."""

    inputs: tuple[str, ...] = FEATURES

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

    def times(self, sums: np.ndarray) -> np.ndarray:
        """Costs without the third row of `decode`, which is 0."""
        return self.decode(sums)[:2]

    def by_member(self, sums: np.ndarray) -> np.ndarray:
        """The one network there is, (1, 2, S)."""
        return 1e3 * self.decode(sums)[None, :2]

    def model(self, sigma: float) -> None:
        """Return None: the compiled core does not know these networks."""

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


class Loads(Published):
    """Tables put loads on their shard, in units of a first guess of their cost; costs follow from the sums.

    A family of its own: no factor, costs may fall as tables are added, and the heads are those of the papers.
    """

    inputs, heads = features.PHYSICS_INPUTS, ("forward", "backward")

    def __init__(self, tensors: dict[str, np.ndarray], caches: features.Caches) -> None:
        super().__init__(tensors, Loads.heads)
        self.caches = caches

    def embed(self, tables: TablePool, batch: int) -> np.ndarray:
        """Loads of tables, (N, 32), ms."""
        found = features.physics(tables, batch, self.caches)
        scaled = np.clip((found.inputs - self.t["mean"]) * self.t["scale"], -MOST_DEVIATIONS, MOST_DEVIATIONS)
        hidden = relu(self._dense("table/0", on_grid(scaled)))
        return found.unit[:, None] * 1e-3 * relu(self._dense("table/1", hidden))


class Ours:
    """Costs that add up, times a correction that grows with what the whole shard amounts to.

    Each member of the ensemble learns, for both passes, what a table costs in company (`base`, positive, in units
    of its lookups) and a factor from the fourth roots of the shard's totals. Weights of the factor are positive:
    one more table never makes a shard cheaper, so that search finds no such mistake to build on.
    """

    inputs: tuple[str, ...] = features.INPUTS
    amounts: tuple[str, ...] = features.TOTALS
    highest = HIGHEST  # units of the factor stop here
    work = staticmethod(features.work)

    def __init__(self, tensors: dict[str, np.ndarray], caches: features.Caches) -> None:
        self.t, self.caches = tensors, caches
        self.members, self.totals = len(tensors["fixed"]), len(self.amounts)
        self.width = self.totals + 2 * self.members
        first, fixed = np.full(self.totals, ROOT_OFFSET), tensors["fixed"].ravel()
        self.added = np.concatenate([first, fixed])[:, None]  # to a shard's columns, (width, 1)
        # Biases are weights of a one before all inputs, and of a last unit of each member, which is always one.
        weight, bias = tensors["factor/0/weight"], tensors["factor/0/bias"]  # (M, totals, U), (M, U)
        units = np.concatenate([bias[:, None], weight], axis=1).transpose(0, 2, 1)  # (M, U, 1 + totals)
        self.units = np.concatenate([units, np.eye(1, 1 + self.totals)[None].repeat(self.members, 0)], axis=1)
        self.units = self.units.reshape(-1, 1 + self.totals)
        weight, bias = tensors["factor/1/weight"], tensors["factor/1/bias"]  # (M, U, 2), (M, 2)
        self.factor = np.concatenate([weight.transpose(0, 2, 1), bias[..., None]], axis=2)  # (M, 2, U + 1)

    def model(self, sigma: float) -> np.ndarray:
        """The numbers as the compiled core reads them, with the error that members share."""
        units = self.units.reshape(self.members, -1, 1 + self.totals)[:, :-1]
        sizes = [self.members, self.totals, units.shape[1], 1e3, sigma, self.highest]
        return np.concatenate([sizes, self.added.ravel(), units.ravel(), self.factor.ravel()])

    def embed(self, tables: TablePool, batch: int) -> np.ndarray:
        """Totals in multiples of an average table's, then each member's forward and backward microseconds."""
        t, found = self.t, self.work(tables, batch, self.caches)
        scaled = (np.clip(found.inputs, t["low"], t["high"]) - t["mean"]) * t["scale"]
        hidden = on_grid(scaled) @ t["table/0/weight"]  # (M, N, T)
        hidden += t["table/0/bias"][:, None]
        level = relu(hidden) @ t["table/1/weight"] + t["table/1/bias"][:, None]  # (M, N, 2)
        base = found.unit[:, None] * np.logaddexp(np.concatenate(list(level), axis=1), 0.0)  # softplus
        return np.concatenate([found.totals * t["totals_scale"], base], axis=1)

    def decode(self, sums: np.ndarray) -> np.ndarray:
        """Mean of the members, and how far they are apart."""
        return _mean_and_spread(self._in_grains(sums))

    def times(self, sums: np.ndarray) -> np.ndarray:
        """Mean of the members."""
        return _mean(self._in_grains(sums))

    def by_member(self, sums: np.ndarray) -> np.ndarray:
        """Forward and backward microseconds by each member, (M, 2, S)."""
        return self._in_grains(sums) / GRAIN

    def _in_grains(self, sums: np.ndarray) -> np.ndarray:
        """The same in units of 1/GRAIN: whole numbers, as roots and units are, so that to round is one rint."""
        columns = np.empty((1 + self.width, len(sums)))  # shards are columns from here on
        columns[0] = 1.0  # meets the biases
        np.add(sums.T, self.added, out=columns[1:])
        roots, base = columns[: 1 + self.totals], columns[1 + self.totals :].reshape(self.members, 2, len(sums))
        roots *= GRAIN**4
        np.rint(np.sqrt(np.sqrt(roots, out=roots), out=roots), out=roots)
        hidden = self.units @ roots
        np.rint(hidden.clip(0.0, self.highest * GRAIN, out=hidden), out=hidden)  # the method is faster than np.clip
        passes = self.factor @ hidden.reshape(self.members, self.factor.shape[2], len(sums))  # (M, 2, S)
        passes.clip(LOWEST_FACTOR * GRAIN, HIGHEST * GRAIN, out=passes)
        passes *= base
        return np.rint(passes, out=passes)

    def factors(self, own: int) -> Factors:
        """The weights that follow the sums; `own` columns of a shard's sum come before the network's."""
        hidden, out = (self.t[f"factor/{layer}/weight"] for layer in (0, 1))
        biases = (self.t[f"factor/{layer}/bias"] for layer in (0, 1))
        return Factors(own, self.t["fixed"], hidden, next(biases), out, next(biases), self.highest)


class Physics(Ours):
    """The same with units that stop growing, as misses of a cache do once nothing fits it, and more of the physics."""

    inputs, amounts = features.PHYSICS_INPUTS, features.PHYSICS_TOTALS
    highest = 1.0
    work = staticmethod(features.physics)


def _mean(passes: np.ndarray) -> np.ndarray:
    """Forward and backward ms, (2, S), from microseconds in units of 1/GRAIN, (M, 2, S)."""
    out = np.add.reduce(passes, axis=0)
    out *= 1e-3 / len(passes) / GRAIN
    return out


def _mean_and_spread(passes: np.ndarray) -> np.ndarray:
    """Forward, backward and the standard deviation of both together, ms (3, S), from the same.

    They are whole numbers, so that sums over members are exact and do not depend on the number of shards.
    """
    members = len(passes)
    out = np.empty((3, passes.shape[-1]))
    np.add.reduce(passes, axis=0, out=out[:2])
    whole = passes[:, 0] + passes[:, 1]
    whole *= members
    whole -= out[0] + out[1]
    np.add.reduce(abs(whole), axis=0, out=out[2])
    out[:2] *= 1e-3 / members / GRAIN
    out[2] *= 1e-3 * MAD_TO_DEVIATION / members**2 / GRAIN
    return out


ARCHITECTURES: dict[str, Any] = {
    "ours": Ours,
    "ours-wide": Ours,  # more units: what judges are fitted with
    "physics": Physics,
    "physics-wide": Physics,
    "autoshard": ("forward", "backward"),
    "autoshard-relative": ("forward", "backward"),  # the same network, fitted to relative errors
    "loads": Loads,
    "autoshard-total": ("total",),
    "dreamshard": ("forward", "backward", "comm"),
}


def is_ours(architecture: str) -> bool:
    """True if costs of an architecture are a sum times a factor."""
    made = ARCHITECTURES[architecture]
    return isinstance(made, type) and issubclass(made, Ours)


def inputs_of(architecture: str) -> tuple[str, ...]:
    """Names of what a network of an architecture is told of each table."""
    found: tuple[str, ...] = getattr(ARCHITECTURES[architecture], "inputs", Published.inputs)
    return found


def make_network(weights: Weights) -> Published | Ours:
    """The network of fitted weights; refuses weights made for other features or another order of them."""
    name = weights.card.get("architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnknownName("architecture", name, ARCHITECTURES)
    made = ARCHITECTURES[name]
    expected = list(inputs_of(name))
    if weights.card.get("features") != expected:
        raise CorruptFile(f"weights of {name} expect features {weights.card.get('features')}, here they are {expected}")
    if is_ours(name):
        _check_tensors(name, weights.tensors, OURS, {"I": len(expected), "T": len(made.amounts)})
    else:
        heads = getattr(made, "heads", made)
        _check_tensors(name, weights.tensors, published_shapes(heads), {"F": len(expected)})
    with guarded(f"weights of {name}"):
        caches = features.Caches.of(weights.card.get("caches", {}))
        return made(weights.tensors, caches) if isinstance(made, type) else Published(weights.tensors, made)


# Shapes of tensors, a letter a dimension: inputs, totals, features, members, ranges and whatever else must be equal.
OURS = {
    **dict.fromkeys(("low", "high", "mean", "scale"), "I"),
    **{"table/0/weight": "MIH", "table/0/bias": "MH", "table/1/weight": "MH2", "table/1/bias": "M2"},
    **{"factor/0/weight": "MTU", "factor/0/bias": "MU", "factor/1/weight": "MU2", "factor/1/bias": "M2"},
    **{"totals_scale": "T", "fixed": "M2", "sigma": "", "ranges": "3R"},
}
_SIZES = {"R": len(features.RANGES)}
NOT_NEGATIVE = {"totals_scale", "fixed", "factor/0/weight", "factor/1/weight", "sigma", "forward_share"}
LARGEST = 2.0**40  # of a weight: what networks make of it stays finite


def published_shapes(heads: tuple[str, ...]) -> dict[str, str]:
    """The shapes of one of the papers' networks."""
    found = {"mean": "F", "scale": "F", "forward_share": "", "sigma": "", "ranges": "3R"}
    found |= {"table/0/weight": "FH", "table/0/bias": "H", "table/1/weight": "HW", "table/1/bias": "W"}
    for head in (*heads, "overall") if "comm" in heads else heads:
        found |= {f"{head}/0/weight": "WU", f"{head}/0/bias": "U", f"{head}/1/weight": "U1", f"{head}/1/bias": "1"}
    return found


def _check_tensors(name: str, tensors: dict[str, np.ndarray], shapes: dict[str, str], known: dict[str, int]) -> None:
    """Refuse tensors of other shapes than the network's, and numbers that would make costs none."""
    sizes = _SIZES | known
    for tensor, letters in shapes.items():
        if tensor not in tensors:
            raise CorruptFile(f"weights of {name} lack the tensor {tensor!r}: fit them again")
        values = tensors[tensor]
        wanted = tuple(
            int(c) if c.isdecimal() else sizes.setdefault(c, n) for c, n in zip(letters, values.shape, strict=False)
        )
        if values.shape != wanted or len(letters) != values.ndim or not values.size:
            raise CorruptFile(f"weights of {name}: {tensor!r} has shape {values.shape}, expected {wanted}")
        if not (abs(values) <= LARGEST).all() or (tensor in NOT_NEGATIVE and (values < 0).any()):
            raise CorruptFile(f"weights of {name}: {tensor!r} holds a number that is none, too large, or negative")
    if not (tensors["ranges"][2] > 0).all() or tensors.get("forward_share", np.zeros(())) > 1:
        raise CorruptFile(f"weights of {name}: a deviation is 0, or a share above 1")
