"""Numbers that tell how they came about: computed on arrays, written out for one shard.

rows, columns = Term(np.array([1000, 10]), "rows"), Term(64, "columns")
size = ceil(rows * columns / 3)
size.value  # array([21334, 214])
Step.of(size.as_step("share"), shard=0)  # share = 21,334 = ceil(1,000 x 64 / 3) = ceil(rows x columns / 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BINDS = {"+": 1, "x": 2, "/": 2}  # how tightly; names, numbers and functions bind closest
CLOSEST = 3
NEUTRAL = {"+": 0, "x": 1, "/": 1}  # not written out: a sum's 0, a product's 1


@dataclass(slots=True, eq=False)  # never changed; frozen, it would take three times as long to make
class Term:
    """A number of each shard, as a value or as an expression of others."""

    value: Any  # (S,), or one number for all shards
    name: str = ""
    sign: str = ""  # of the expression: "+", "x", "/" or a function; none of a plain value
    parts: tuple[Term, ...] = ()
    branch: np.ndarray | None = None  # the part that each shard takes, where shards differ
    told: bool = False  # a step of the explanation: later steps write its value, not its expression

    def __add__(self, other: Term | float) -> Term:
        parts = self, _term(other)
        return Term(parts[0].value + parts[1].value, "", "+", parts)

    def __mul__(self, other: Term | float) -> Term:
        parts = self, _term(other)
        return Term(parts[0].value * parts[1].value, "", "x", parts)

    def __truediv__(self, other: Term | float) -> Term:
        parts = self, _term(other)
        return Term(parts[0].value / parts[1].value, "", "/", parts)

    def __getitem__(self, index: np.ndarray) -> Term:
        """Terms at these places of a term that `each` made, or that is a plain array."""
        branch = None if self.branch is None else self.branch[index]
        return Term(self.value[index], self.name, self.sign, self.parts, branch, self.told)

    @property
    def exact(self) -> Term:
        """Term in Python's whole numbers, which products beyond 64 bits need."""
        return Term(self.value.astype(object), self.name, self.sign, self.parts, self.branch, self.told)

    def as_step(self, name: str) -> Term:
        """Term as a step of the explanation."""
        return Term(self.value, name, self.sign, self.parts, self.branch, told=True)

    def at(self, shard: int) -> float:
        """The value of one shard."""
        values = np.atleast_1d(self.value)
        value: float = values.item(min(shard, len(values) - 1))
        return value

    def expression(self, shard: int, words: bool) -> tuple[str, int]:
        """Text that computes the value of one shard, in words or in numbers, and how tightly it binds."""
        if self.branch is not None:
            return self.parts[int(self.branch[shard])]._operand(shard, words)
        if not self.parts:
            return (self.name if words and self.name else number(self.at(shard))), CLOSEST
        if self.sign not in BINDS:
            return f"{self.sign}({', '.join(part._operand(shard, words)[0] for part in self.parts)})", CLOSEST
        left, right = self.parts
        if right._is_neutral(self.sign, shard):
            return left._operand(shard, words)
        if self.sign != "/" and left._is_neutral(self.sign, shard):
            return right._operand(shard, words)
        binds = BINDS[self.sign]
        (a, binds_a), (b, binds_b) = (part._operand(shard, words) for part in self.parts)
        return f"{a if binds_a >= binds else f'({a})'} {self.sign} {b if binds_b > binds else f'({b})'}", binds

    def _operand(self, shard: int, words: bool) -> tuple[str, int]:
        """The text as a part of another expression: a name or a value, where it has been told."""
        if self.name and words:
            return self.name, CLOSEST
        return (number(self.at(shard)), CLOSEST) if self.told else self.expression(shard, words)

    def _is_neutral(self, sign: str, shard: int) -> bool:
        plain = sign == "+" or self.told or not self.parts
        return plain and self.at(shard) == NEUTRAL[sign]


@dataclass(frozen=True)
class Step:
    """One number of an explanation: what it is, how it is computed, and what comes out.

    `numbers` is an expression: with commas left out and "x" read as "*", Python computes the value from it.
    """

    name: str
    formula: str  # in words; empty where the numbers speak for themselves
    numbers: str  # the same in numbers
    value: float
    unit: str = "bytes"

    @classmethod
    def of(cls, term: Term, shard: int = 0, unit: str = "bytes") -> Step:
        """A named term, written out for one shard."""
        formula, numbers = (term.expression(shard, words)[0] for words in (True, False))
        return cls(term.name, formula, numbers, term.at(shard), unit)


def where(condition: np.ndarray | bool, yes: Term, no: Term) -> Term:
    """One of two terms for each shard; a bool is of all."""
    if isinstance(condition, bool):
        return yes if condition else no
    count = np.count_nonzero(condition)  # in a tenth of the time of all() and any()
    if count == condition.size:
        return yes
    if not count:
        return no
    return Term(np.where(condition, yes.value, no.value), parts=(no, yes), branch=condition)


def each(terms: Sequence[Term], name: str) -> Term:
    """One term a shard, each a single number."""
    values = np.array([term.value for term in terms], np.float64)
    return Term(values, name, parts=tuple(terms), branch=np.arange(len(terms)))


def least(a: Term, b: Term) -> Term:
    """The smaller of two."""
    return Term(np.minimum(a.value, b.value), sign="min", parts=(a, b))


def ceil(term: Term) -> Term:
    """Rounded up, int64."""
    value = np.ceil(np.asarray(term.value, np.float64)).astype(np.int64)
    return Term(value, sign="ceil", parts=(term,))


def bytes_of(term: Term) -> Term:
    """A term as it is if its values are whole numbers, else rounded up."""
    return term if np.asarray(term.value).dtype.kind == "i" else ceil(term)


def rounded(term: Term) -> Term:
    """The nearest whole number, the even one of two."""
    return Term(np.rint(term.value).astype(np.int64), sign="round", parts=(term,))


def truncated(term: Term) -> Term:
    """Rounded towards zero."""
    return Term(np.trunc(term.value).astype(np.int64), sign="trunc", parts=(term,))


def number(value: float) -> str:
    """Number with commas, every digit that counts; 2.0 is 2."""
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _term(value: Term | float) -> Term:
    return value if isinstance(value, Term) else Term(value)
