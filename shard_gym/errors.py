"""Errors, one class for each thing that can go wrong, so that callers can tell bad input from bad luck."""

from collections.abc import Iterable

LONGEST = 100  # characters of a name that is compared with others
LIKE = 0.7  # share of two names that is the same where one may stand for the other


class ShardGymError(Exception):
    """Base of every error that ShardGym raises on purpose."""


class InvalidPool(ShardGymError, ValueError):
    """A column of tables has the wrong length, type or range."""


class InvalidTask(ShardGymError, ValueError):
    """A task contradicts itself, or names something that does not exist."""


class InvalidPlan(ShardGymError, ValueError):
    """A plan does not place the tables of its task on the devices of its task."""


class InfeasibleTask(ShardGymError):
    """No device has room; the message names the table, the device and the missing bytes."""


class InvalidResult(ShardGymError, ValueError):
    """A result of a run has a field that no run could give."""


class CorruptFile(ShardGymError, ValueError):
    """A file is not what it says it is; the message names the path and where in it."""


class EntryRefused(ShardGymError):
    """An entry can be read, but its claims are wrong, or contradict its card."""


class InUse(ShardGymError, BlockingIOError):
    """Another process writes to a folder; the message says which."""


class OutOfTurn(ShardGymError, RuntimeError):
    """A command comes too early or too late; the message names the command that is next."""


class MissingDependency(ShardGymError, ImportError):
    """An optional package is absent; the message is the command that installs it."""


class ClusterError(ShardGymError, RuntimeError):
    """A Ray cluster, or a node of it, cannot do the work; the message names the node."""


class NodeRefused(ClusterError):
    """A node may not take part in the work, which goes on without it; the message says why."""


class SimulatorError(ShardGymError):
    """A simulator cannot answer what it was asked."""


class CoreError(ShardGymError, ImportError):
    """The compiled core that was asked for, or is there, cannot be used; the message says what to do."""


class SettingsIgnored(UserWarning):
    """A simulator predicts for settings of its own, not for the task's; warned of once."""


class FeaturesUnscaled(UserWarning):
    """An environment shows features as they are, on which no policy of a suite was trained; told once a place."""


class RankFailed(ShardGymError, RuntimeError):
    """One of several processes that train together failed; the message says which, and why."""


class TimedOut(ShardGymError, TimeoutError):
    """Work that took longer than it was allowed to."""


class UnknownName(ShardGymError, KeyError):
    """A name that is in no registry; the message lists the valid ones, and may say what helps or was meant."""

    def __init__(self, kind: str, name: object, valid: Iterable[object], how: str = "") -> None:
        known = sorted(map(str, valid))
        told = f"unknown {kind} {name!r}; choose one of: {', '.join(known)}"
        super().__init__("; ".join([told, *filter(None, [how])]) + meant(name, known))

    def __str__(self) -> str:
        return str(self.args[0])


def meant(name: object, valid: Iterable[object]) -> str:
    """The question whether the most similar of the valid names was meant, after a semicolon; "" where none is near."""
    from difflib import get_close_matches  # it takes milliseconds to import, and few need it

    near = get_close_matches(str(name)[:LONGEST], list(map(str, valid)), n=1, cutoff=LIKE)
    return f"; did you mean {near[0]}?" if near else ""
