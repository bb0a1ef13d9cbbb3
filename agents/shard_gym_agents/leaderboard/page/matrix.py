"""The probability of improvement of every pair of agents, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from shard_gym_agents.leaderboard import statistics
from shard_gym_agents.leaderboard.page.board import Board, Entrant
from shard_gym_agents.leaderboard.page.markup import Markup, tag

SHADES = 5  # of a probability's colour, to either side of even
RESAMPLES = 500  # of a pair: there are hundreds, and whole percents are shown


def improvements(board: Board, track: str) -> Markup | None:
    """The table of a track: how probably the agent of a row has a better plan than that of a column, in percent."""
    shown = board.of_track(track)
    if len(shown) < 2:
        return None
    numbers = [tag("th", tag("abbr", i, title=e.name), scope="col") for i, e in enumerate(shown, 1)]
    head = tag("tr", tag("th", "better than", scope="col", class_="words"), *numbers)
    found = _pairs(shown)
    rows = [
        tag(
            "tr",
            tag("th", f"{i + 1} {e.name}", scope="row", class_="words"),
            *(_chance(found.get((i, j))) for j in range(len(shown))),
            data_a=e.index,
        )
        for i, e in enumerate(shown)
    ]
    title = tag("caption", tag("b", f"{track.capitalize()} track"))
    table = tag("table", title, tag("thead", head), tag("tbody", *rows), class_="matrix", data_track=track)
    return tag("div", table, class_="scroll")


Chance = tuple[float, float, float]  # with its interval


def _pairs(shown: Sequence[Entrant]) -> dict[tuple[int, int], Chance]:
    """The probability of every ordered pair; that of the other order is what is left of 1."""
    found: dict[tuple[int, int], Chance] = {}
    for i, one in enumerate(shown):
        for j in range(i + 1, len(shown)):
            other = shown[j].gaps
            chance = statistics.improvement(one.gaps, other)
            low, high = statistics.improvement_interval(one.gaps, other, RESAMPLES)
            found[i, j] = chance, low, high
            found[j, i] = 1 - chance, 1 - high, 1 - low
    return found


def _chance(found: Chance | None) -> Markup:
    """A cell: bold where its interval leaves out an even chance."""
    if found is None:
        return tag("td", "·", class_="self")
    chance, low, high = (round(100 * value) for value in found)
    shade = round((found[0] - 0.5) * 2 * SHADES)
    side = "same" if shade == 0 else f"up{shade}" if shade > 0 else f"down{-shade}"
    sure = " sure" if low > 50 or high < 50 else ""
    return tag("td", chance, class_=side + sure, data_i=f"{low} to {high}")
