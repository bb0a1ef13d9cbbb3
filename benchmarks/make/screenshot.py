"""The picture of the leaderboard's page in the README, taken in Chromium from published results.

python -m benchmarks.screenshot [RUN ...] [--out docs/page.png]
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import RESULTS
from shard_gym.errors import MissingDependency, ShardGymError
from shard_gym.records import commands
from shard_gym.records.files import write_whole
from shard_gym_agents.leaderboard import page
from shard_gym_agents.leaderboard.page.stored import boards

WIDTH, HEIGHT = 1280, 1450  # of the window
COLOURS = 256  # of the picture, which keeps it small
MOST_BYTES = 200_000


def shot(path: Path, address: str) -> bytes:
    """The upper part of a page, as PNG."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise MissingDependency("pictures of pages need playwright: pip install playwright") from error
    browser = shutil.which("chromium")
    if browser is None:
        raise MissingDependency("pictures of pages need Chromium: apt-get install chromium")
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        tab = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        tab.goto(path.as_uri() + address)
        picture: bytes = tab.screenshot()
        chromium.close()
    return picture


def in_few_colours(png: bytes) -> bytes:
    """The same picture in fewer bytes."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLOURS).save(small, "png", optimize=True)
    return small.getvalue()


def draw(options: argparse.Namespace) -> None:
    """Make the picture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        page.write(path, boards(options.results, RESULTS / "best_known"))
        picture = in_few_colours(shot(path, f"#suite={options.suite}"))
    if len(picture) > MOST_BYTES:
        raise ShardGymError(f"{len(picture):,} bytes are more than the {MOST_BYTES:,} that a README should load")
    write_whole(options.out, picture)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take what the command says."""
    parser = commands.parser("python -m benchmarks.screenshot", __doc__)
    parser.add_argument("results", nargs="*", type=Path, default=[RESULTS / "entries"], metavar="RUN")
    parser.add_argument("--suite", default="core-80x8", help="that is shown")
    parser.add_argument("--out", default="docs/page.png", type=Path)
    return commands.run(parser, draw, arguments)


if __name__ == "__main__":
    sys.exit(main())
