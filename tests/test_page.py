"""The leaderboard's page: what it tells, and how it behaves in a browser, where there is one."""

import json
import re
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from shard_gym import simulators
from shard_gym.errors import CorruptFile
from shard_gym.results import write_results
from shard_gym.results.evaluate import score
from shard_gym.simulators.base import plan_latency
from shard_gym_agents.leaderboard import page as pages
from shard_gym_agents.leaderboard.entries.card import Card
from shard_gym_agents.leaderboard.entries.entry import pack
from shard_gym_agents.leaderboard.page import stored
from shard_gym_agents.leaderboard.page.axes import NEAREST, duration, gap_axis, gap_names
from shard_gym_agents.leaderboard.page.plans import DIGITS, FULLEST, LEVELS, costs, drawn
from tests.page_helpers import random_board

HOSTILE = (
    "<script>alert(1)</script>",
    "</script><img src=x onerror=alert(1)>",
    "n" * 10_000,
    "lone \ud800",
    "a\u202eb",
)
AGENTS = {"first": "search", "second": "search", "third": "search", "alone": "blind", "last": "blind"}
SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
CONTRAST = 4.5  # of text, as WCAG's level AA has it


@pytest.fixture(scope="module")
def boards():
    hostile = dict.fromkeys(HOSTILE, "search")
    return [
        random_board("dlrm-10x2", AGENTS, 4, seeds=2, failed=("last",), host="2 cores"),
        random_board("metasyn-80x8", AGENTS | hostile, 2, best_known=False),
    ]


@pytest.fixture(scope="module")
def html(boards):
    return pages.html(boards)


def unpacked(text, parts, top):
    levels = [LEVELS**0.5 * DIGITS.index(a) + DIGITS.index(b) for a, b in zip(text[::2], text[1::2], strict=True)]
    rows = np.reshape(levels, (parts + 1, -1)) / (LEVELS - 1)
    return rows[:-1] * top, rows[-1] * FULLEST


@pytest.mark.parametrize("which", [0, 1], ids=["iteration", "kernel"])
def test_parts_of_a_device_add_up_to_its_cost_also_when_packed(boards, which):
    board = boards[which]
    judge, entrant, task = simulators.make(board.judge), board.entrants[0], board.tasks[0]
    plan = entrant.plans()[0]
    (found,) = costs(task, [plan], judge)
    each = plan_latency(judge, task, plan).cost(task.objective)
    np.testing.assert_allclose(found.parts.sum(axis=0), each)
    packed = drawn(board, 10**6)[0]
    parts, memory = unpacked(packed["plans"][0], len(found.parts), packed["top"])
    np.testing.assert_allclose(parts, found.parts, atol=packed["top"] / LEVELS)
    np.testing.assert_allclose(memory, found.memory, atol=FULLEST / LEVELS)
    assert packed["bound"] <= score(task, plan, judge).makespan == pytest.approx(each.max())


def test_plans_take_no_more_characters_than_they_may(boards):
    assert len(drawn(boards[0], 10**6)) == 4
    assert len(drawn(boards[0], 2 * len(AGENTS) * 2 * 6 * 3)) == 2
    assert len(drawn(boards[0], 0)) == 1


def test_gaps_are_to_the_best_known_plan_or_to_the_best_of_the_run(boards):
    known, unknown = boards
    np.testing.assert_array_equal(known.best, known.references.best)
    assert all((entrant.gaps > 0).all() for entrant in known.entrants)
    assert min(entrant.gaps.min() for entrant in unknown.entrants) == 0
    last = next(e for e in known.entrants if e.name == "last")
    assert last.gaps[0] == pytest.approx(known.references.random[0] / known.best[0] - 1)
    assert last.solved().tolist() == [False, True, True, True]


def test_stored_results_give_the_same_board(tmp_path, boards):
    board = boards[0]
    every = [result for by_seed in board.runs.values() for runs in by_seed for result, _ in runs]
    write_results(tmp_path / "some.jsonl", every[:20])
    write_results(tmp_path / "others.jsonl", every[20:])
    (again,) = stored.boards([tmp_path], tmp_path / "nowhere")
    assert set(again.runs) == set(board.runs) and not again.best_plans
    np.testing.assert_array_equal(sorted(e.gaps.shape for e in again.entrants), [(4, 2)] * 5)
    makespans = {e.name: (e.gaps + 1) * again.best[:, None] for e in again.entrants}
    np.testing.assert_allclose(makespans["first"], (board.entrants[0].gaps + 1) * board.best[:, None])
    (tmp_path / "others.jsonl").unlink()
    write_results(tmp_path / "few.jsonl", [result for result in every[20:] if result.index < 3])
    with pytest.raises(pages.InvalidResult, match="over 3 tasks and over 4"):
        stored.boards([tmp_path], tmp_path)
    (tmp_path / "nowhere").mkdir()
    with pytest.raises(pages.InvalidResult, match="holds no results"):
        stored.boards([tmp_path / "nowhere", tmp_path], tmp_path)


def test_stored_runs_in_several_budgets_are_ranked_by_the_published_one(tmp_path, boards):
    results = [result for runs in boards[0].runs["first"] for result, _ in runs]
    given = {budget: [replace(r, config={"seed": r.seed, "budget": budget}) for r in results] for budget in (0.01, 0.1)}
    write_results(tmp_path / "run.jsonl", given[0.01] + given[0.1])
    (board,) = stored.boards([tmp_path], tmp_path)
    (entrant,) = board.entrants
    assert entrant.row.budget == 0.1 and set(entrant.row.gap_at) == {0.01, 0.1}
    assert "at 10 ms" in pages.html([board])
    write_results(tmp_path / "run.jsonl", [replace(r, config={"budget": "much"}) for r in results])
    with pytest.raises(pages.InvalidResult, match="a budget is seconds"):
        stored.boards([tmp_path], tmp_path)


@pytest.mark.slow
def test_ten_suites_of_25_agents_take_less_than_three_megabytes():
    keys = "metasyn-80x8 metasyn-160x16 dlrm-50x4 dlrm-100x4 core-60x4 core-80x8 tight-80x8 tightmix-80x8 hetero-80x8"
    agents = {f"agent-number-{i}": "search" if i % 2 else "blind" for i in range(25)}
    many = [random_board(key, agents, 100) for key in keys.split()] + [random_board("prod-1000x128", agents, 20)]
    assert len(pages.html(many).encode()) < 3_000_000


def test_an_entry_is_shown_with_the_card_of_its_authors(tmp_path, boards):
    board = boards[0]
    results = [result for runs in board.runs["second"] for result, _ in runs]
    card = Card(
        agent="second",
        authors=("A. Author",),
        command="run second",
        version="7.1",
        licence="MIT",
        link="",
        track="search",
        suites=("dlrm-10x2",),
        seeds=(0, 1),
        hardware="an abacus",
        training="none",
        checkpoints=(),
    )
    (tmp_path / "second").mkdir()
    pack(results, card, tmp_path / "second")
    html = pages.html(stored.boards([tmp_path], tmp_path / "nowhere"))
    with pytest.raises(pages.InvalidResult, match="task number 0 of dlrm-10x2 in two files"):
        stored.boards([tmp_path, tmp_path / "second"], tmp_path)
    (tmp_path / "second" / "entry.json").unlink()
    with pytest.raises(CorruptFile, match=r"no entry\.json"):
        stored.boards([tmp_path], tmp_path)
    assert all(f"<dd>{words}</dd>" in html for words in ("A. Author", "7.1", "MIT", "an abacus"))


def test_axes_of_gaps_have_a_place_for_all_of_them():
    axis = gap_axis(-0.04, 0.5, 0, 400)
    assert axis(-0.04) < axis(0) < axis(0.01) < axis(0.5) <= 400
    names = gap_names(axis)
    assert 0 in names and min(abs(axis(a) - axis(b)) for a in names for b in names if a != b) >= NEAREST
    assert [duration(s) for s in (0.00002, 0.0092, 0.123, 2.5, 130)] == ["20 µs", "9.2 ms", "120 ms", "2.5 s", "130 s"]


def test_the_page_asks_for_no_other_host_and_shows_hostile_names_as_text(html):
    assert not re.search(r"https?:|(src|href)=.?//|@import|url\(", html)
    assert html.count("<script") == 2
    assert "<img" not in html and "\ud800" not in html and "\u202e" not in html
    assert html.count("n" * 1_000) == 10  # whole in the command to copy, nowhere else
    told = json.loads(re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1])
    assert HOSTILE[0] in [agent["name"] for agent in told[1]["agents"]]
    assert len(html) < 400_000


def test_a_page_of_nothing_is_refused(tmp_path):
    with pytest.raises(pages.InvalidResult, match="needs the runs of a suite"):
        pages.write(tmp_path / "p.html", [])
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def address(html, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def tab(browser):
    """A tab that keeps what its console and its network were told."""
    context = browser.new_context()
    tab = context.new_page()
    tab.set_default_timeout(30_000)
    tab.told = []
    tab.on("console", lambda message: tab.told.append(message.text))
    tab.on("pageerror", lambda error: tab.told.append(str(error)))
    tab.on("dialog", lambda dialog: (tab.told.append("a dialog"), dialog.dismiss()))
    tab.on("request", lambda request: request.url.startswith("file:") or tab.told.append(request.url))
    yield tab
    context.close()


@pytest.fixture
def page(tab, address):
    """The page as it is first seen; nothing may have been said when the test is over."""
    tab.told.clear()
    tab.set_viewport_size(dict(zip(("width", "height"), SIZES["desktop"], strict=True)))
    tab.goto("about:blank")
    tab.goto(address)
    yield tab
    assert not tab.told


def names(page, track="search"):
    return page.locator(
        f".suite:not([hidden]) table.ranked[data-track={track}] tbody tr:not([hidden]) th a"
    ).all_inner_texts()


def test_tables_are_sorted_by_a_click_and_by_a_key(page, address):
    head = page.locator("#suite-dlrm-10x2 table.ranked[data-track=search] th[data-key='plan time']")
    before = names(page)
    head.locator("button").click()
    rising = names(page)
    assert head.get_attribute("aria-sort") == "ascending" and sorted(rising) == sorted(before)
    page.keyboard.press("Enter")  # the button has the focus
    assert head.get_attribute("aria-sort") == "descending" and names(page) == rising[::-1]
    assert "sort=plan+time" in page.url
    page.goto("about:blank")
    page.goto(address + "#suite=dlrm-10x2&sort=agent")
    assert names(page) == ["first", "second", "third"]


def test_agents_are_filtered_by_name_and_track(page):
    box = page.get_by_label("Filter agents").first
    box.fill("ir")
    assert names(page) == ["first", "third"] and names(page, "blind") == []
    assert page.locator("#suite-dlrm-10x2 output").inner_text() == "2 of 5 agents"
    assert page.locator("#suite-dlrm-10x2 .strip .dim").count() == 3
    box.fill("")
    page.locator("#suite-dlrm-10x2 input[data-track=search]").uncheck()
    assert not page.locator("#suite-dlrm-10x2 table.ranked[data-track=search]").is_visible()
    assert "tracks=blind" in page.url


def test_a_task_is_chosen_by_keys_and_its_plans_are_drawn(page, boards):
    page.locator("#suite-dlrm-10x2 .strip").focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    task = page.locator("#suite-dlrm-10x2 .task")
    second = boards[0].entrants[1]
    assert task.locator("h4").all_inner_texts() == ["Task 2", second.name, "first", "Best known plan"]
    slowest = second.runs[0][1][1].makespan
    assert task.locator(".panels text.name").first.text_content() == f"{slowest:.2f}"
    assert task.locator(".panels svg").first.locator(".bound").count() == 1
    task.get_by_label("beside that of").select_option("third")
    assert task.locator("h4").nth(2).inner_text() == "third"
    assert "task=1" in page.url and "a=1" in page.url and "b=2" in page.url
    task.get_by_text("The same as numbers").click()
    assert task.locator("details table").count() == 3


def test_a_click_on_a_cell_and_what_the_address_says_open_the_same_task(page, address):
    page.get_by_role("link", name="MetaSyn-80x8").click()
    strip = page.locator("#suite-metasyn-80x8 .strip")
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    page.mouse.click(box["x"] + 0.95 * box["width"], box["y"] + 4)
    task = page.locator("#suite-metasyn-80x8 .task")
    shown = task.locator("h4").all_inner_texts()
    assert shown[0] == "Task 2" and "No best known plan is here" in task.inner_text()
    told = page.url
    page.goto("about:blank")
    page.goto(told)
    assert task.locator("h4").all_inner_texts() == shown
    page.goto(address + "#suite=nowhere&task=99999&a=77&sort=%00&down=1")  # nonsense shows the first suite
    assert page.locator("#suite-dlrm-10x2").is_visible() and not page.locator("#suite-dlrm-10x2 .task").is_visible()


def test_a_name_opens_its_card_and_the_command_is_copied(page):
    page.locator("#suite-dlrm-10x2").get_by_role("link", name="second").click()
    card = page.locator("#suite-dlrm-10x2 .card[open]")
    assert "2 cores" in card.inner_text() and page.evaluate("document.activeElement.tagName") == "SUMMARY"
    card.get_by_role("button", name="Copy").click()
    page.locator("#said", has_text="--suite dlrm-10x2").wait_for()
    assert "--agents cost-greedy --agent second --seeds 2 --tasks 4" in card.locator("code").first.inner_text()


LOW_CONTRAST = """(least) => {
  const parsed = (text) => {
    const n = text.match(/[\\d.]+/g).map(Number);
    const scale = text.startsWith('color(') ? 1 : 255;
    return { rgb: n.slice(0, 3).map((v) => v / scale), alpha: n.length > 3 ? n[3] : 1 };
  };
  const light = ({ rgb }) => {
    const [r, g, b] = rgb.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = parsed(getComputedStyle(at).backgroundColor);
      if (found.alpha === 1) return found;
    }
    return { rgb: [1, 1, 1] };
  };
  const low = new Set();
  const walker = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = parsed(element.namespaceURI.endsWith('svg') ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(element))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < least) low.add(element.tagName + '.' + element.className + ' ' + element.textContent);
  }
  return [...low];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast_and_everything_has_a_name(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.locator("#suite-dlrm-10x2 .strip").focus()
    page.keyboard.press("Enter")
    page.locator("#suite-dlrm-10x2 summary").evaluate_all("all => all.forEach((one) => (one.parentNode.open = true))")
    assert page.evaluate(LOW_CONTRAST, CONTRAST) == []
    said = page.locator("body").aria_snapshot()
    assert not re.findall(
        r"- (?:button|link|searchbox|combobox|checkbox|img|application|table)(?= *:?$)", said, re.MULTILINE
    )
    assert page.locator("table:not(:has(caption))").count() == 0
    levels = [
        int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => h.tagName)")
    ]
    assert levels[0] == 1 and all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("size", SIZES)
def test_nothing_is_wider_than_the_screen(page, size):
    page.set_viewport_size(dict(zip(("width", "height"), SIZES[size], strict=True)))
    for suite in ("DLRM-10x2", "MetaSyn-80x8"):
        page.get_by_role("link", name=suite).click()
        page.locator(".suite:not([hidden]) .strip").focus()
        page.keyboard.press("Enter")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator(".suite:not([hidden]) table.ranked tbody th").first.is_visible()


def test_tables_and_charts_are_there_without_a_script(browser, address):
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(address)
    assert tab.locator("table.ranked").count() == 4 and tab.locator("table.ranked").last.is_visible()
    assert tab.locator("svg.chart").first.is_visible() and not tab.locator("form").first.is_visible()
    tab.locator("summary", has_text="second").first.click()
    assert "shard-gym leaderboard" in tab.locator(".card[open]").inner_text()
    context.close()
