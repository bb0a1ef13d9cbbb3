"""Every link of README, the guides and the pages of results leads somewhere, on the code host and in the site alike."""

import os
import re
from functools import cache
from pathlib import Path

from benchmarks.documentation import FETCHED, ROOT, address, gathered, is_local, links, menu, turned

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks" / "results").rglob("*.md")),
]
CODE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def slug(heading: str) -> str:
    """The anchor of a heading, as code hosts and the site make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", words.lower()).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page."""
    text = CODE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)}


def broken(page: Path) -> list[str]:
    """Links of a page to files or headings that are not there."""
    found = []
    for target in links(page.read_text(encoding="utf-8")):
        file, _, anchor = target.partition("#")
        path = Path(os.path.normpath(page.parent / file)) if file else page
        if is_local(target) or target.startswith("#"):
            inside = path.is_relative_to(ROOT) and path.exists()
            if not inside or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
                found.append(target)
    return found


def test_broken_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# Two `words`, one (1)\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#two-words-one-1) [b](there.md#two) [c](gone.md) [d](#none) `[e](gone)`\n# Some\n")
    assert broken(page) == ["there.md#two", "gone.md", "#none"]


def test_links_lead_somewhere():
    assert {page.relative_to(ROOT).as_posix(): found for page in PAGES if (found := broken(page))} == {}


def test_links_out_of_docs_lead_to_the_same_file_in_the_site():
    told = (
        "[a](../benchmarks/results/vector.md#other-suites) [b](../examples/sb3_ppo.py) [c](../measurements) "
        "[d](kinds.md)"
    )
    assert turned(told, "search.md") == (
        "[a](benchmarks/results/vector.md#other-suites) [b](examples/sb3_ppo.py.md) [c](measurements/README.md) "
        "[d](kinds.md)"
    )
    assert turned("[up](../../docs/costs.md)", "benchmarks/results/papers.md") == "[up](../../costs.md)"


def test_all_that_is_linked_to_is_in_the_site():
    there = gathered()
    for page in PAGES:
        for target in filter(is_local, links(page.read_text(encoding="utf-8"))):
            path = Path(os.path.normpath(page.parent / target.split("#")[0]))
            of_docs = path.parent == ROOT / "docs" or path == ROOT / "README.md"
            assert page.name == "README.md" or of_docs or address(path) in there, (page, target)


def test_the_menu_names_every_guide():
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if not re.search(rf"[ \[]{page.name}", menu)] == []


def test_the_menu_leaves_out_what_is_not_there():
    told = [{"Home": "index.md"}, {"More": ["gone.md", {"There": "kinds.md"}, "results/"]}]
    known = {"index.md", "kinds.md", "results/b.md", "results/a.md", "results/deep/c.md"}
    assert menu(told, known) == [
        {"Home": "index.md"},
        {"More": [{"There": "kinds.md"}, "results/a.md", "results/b.md"]},
    ]


def test_what_a_page_fetches_from_elsewhere_is_found():
    for text in (
        '<script src="https://cdn.x/y.js">',
        "<link rel=stylesheet href=//fonts.x/css>",
        '<img alt="a" src="http://x/y.png">',
        "body { background: url(https://x/y.png) }",
        "@import 'https://x/y.css'",
    ):
        assert FETCHED.search(text)
    assert not FETCHED.search('<a href="https://x">x</a> <img src="plans.svg"> <link href="assets/a.css"> url(a.png)')
