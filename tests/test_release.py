"""A release: one version everywhere, files that hold what they should, Pythons that are found or named."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path
from zipfile import ZipFile

import pytest

from benchmarks import distributions, release

ReleaseRefused = distributions.ReleaseRefused
ROOT = Path(__file__).parents[1]
VERSION = "0.1.0"
ABOUT = f"""Metadata-Version: 2.4
Name: shard-gym
Version: {VERSION}
Summary: sharding
License-Expression: Apache-2.0
Requires-Python: >=3.11
Description-Content-Type: text/markdown

# ShardGym
"""
INFO = f"shard_gym-{VERSION}.dist-info"
FILES = {
    "shard_gym/__init__.py": "",
    "shard_gym_agents/__init__.py": "",
    f"{INFO}/METADATA": ABOUT,
    f"{INFO}/entry_points.txt": "[console_scripts]\nshard-gym = shard_gym_agents.cli.main:main\n",
}
CORE = {"shard_gym/core/_compiled.abi3.so": "core"}


def wheel(folder, files=FILES, tag="py3-none-any"):
    path = folder / f"shard_gym-{VERSION}-{tag}.whl"
    with ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return path


def sdist(folder, names, about=ABOUT):
    """A source distribution with these files, all of them empty but the metadata."""
    top = folder / f"shard_gym-{VERSION}"
    for name in ("PKG-INFO", *names):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(about if name == "PKG-INFO" else "")
    with tarfile.open(folder / "made.tar.gz", "w:gz") as packed:
        packed.add(top, top.name)
    return folder / "made.tar.gz"


def test_the_checkout_tells_one_version_and_the_changelog_a_day_or_unreleased():
    assert set(distributions.versions(ROOT)) == {
        "pyproject.toml",
        "CHANGELOG.md",
        "CITATION.cff",
        "shard_gym/__init__.py",
    }
    newest = distributions.HEADING.search((ROOT / "CHANGELOG.md").read_text())
    assert newest[1] == distributions.version_of(ROOT)
    assert re.fullmatch(r"Unreleased|\d{4}-\d\d-\d\d", newest[2])


def test_versions_that_differ_are_told_place_by_place(tmp_path):
    (tmp_path / "shard_gym").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "0.2.0"\n')
    (tmp_path / "shard_gym" / "__init__.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.1.0] - 2026-01-01\n")
    with pytest.raises(ReleaseRefused, match=r"0\.2\.0 in pyproject\.toml, 0\.1\.0 in CHANGELOG\.md"):
        distributions.version_of(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [0.2.0] - Unreleased\n\n## [0.1.0] - 2026-01-01\n")
    assert distributions.version_of(tmp_path) == "0.2.0"


def test_wheels_that_are_as_they_should_be(tmp_path):
    distributions.check_wheel(wheel(tmp_path), VERSION, has_core=False)
    distributions.check_wheel(wheel(tmp_path, FILES | CORE, "cp311-abi3-linux_x86_64"), VERSION, has_core=True)


@pytest.mark.parametrize(
    ("changes", "tag", "has_core", "message"),
    [
        ({}, "py3-none-any", True, "is there a C compiler"),
        (CORE, "py3-none-any", False, "none is, for every platform"),
        (CORE, "cp311-cp311-linux_x86_64", True, "one is, for cp311-abi3"),
        ({"shard_gym/best_known/core.jsonl": ""}, "py3-none-any", False, "best_known/core.jsonl"),
        ({"shard_gym/__pycache__/a.pyc": ""}, "py3-none-any", False, "stay in the checkout"),
        ({"tests/test_a.py": ""}, "py3-none-any", False, "has tests"),
        ({f"{INFO}/METADATA": ABOUT.replace(VERSION, "0.3.0")}, "py3-none-any", False, "0.3.0, not of shard-gym 0.1.0"),
        ({f"{INFO}/METADATA": ABOUT.replace("Apache-2.0", "mine")}, "py3-none-any", False, "metadata: .*licen"),
        ({f"{INFO}/METADATA": ABOUT.replace("# ShardGym\n", "")}, "py3-none-any", False, "no README"),
        ({f"{INFO}/METADATA": ABOUT.replace("markdown", "plain")}, "py3-none-any", False, "text/plain"),
        ({f"{INFO}/entry_points.txt": ""}, "py3-none-any", False, "no command shard-gym"),
    ],
)
def test_wheels_that_are_refused(changes, tag, has_core, message, tmp_path):
    with pytest.raises(ReleaseRefused, match=message):
        distributions.check_wheel(wheel(tmp_path, FILES | changes, tag), VERSION, has_core)


def test_a_file_that_is_too_large_is_refused(tmp_path, monkeypatch):
    made = wheel(tmp_path)
    monkeypatch.setattr(distributions, "MOST_BYTES", made.stat().st_size)
    with pytest.raises(ReleaseRefused, match=r"MB, .* at most"):
        distributions.check_wheel(made, VERSION, has_core=False)
    assert made.stat().st_size < distributions.MOST_BYTES + 1


def test_source_distributions(tmp_path):
    needed = sorted(distributions.NEEDED)
    distributions.check_sdist(sdist(tmp_path / "good", needed), VERSION)
    with pytest.raises(ReleaseRefused, match=r"lacks shard_gym/core/core\.c"):
        distributions.check_sdist(
            sdist(tmp_path / "lacks", [name for name in needed if not name.endswith(".c")]), VERSION
        )
    with pytest.raises(ReleaseRefused, match=r"_compiled\.so, which was built here"):
        distributions.check_sdist(sdist(tmp_path / "built", [*needed, "shard_gym/core/_compiled.so"]), VERSION)


def test_files_that_are_not_committed_are_refused(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    release.check_committed(tmp_path)
    (tmp_path / "new.py").write_text("")
    (tmp_path / "other.py").write_text("")
    with pytest.raises(ReleaseRefused, match=r"new\.py, and 1 others: not committed; .*--allow-dirty"):
        release.check_committed(tmp_path)


def test_pythons_are_found_or_refused(tmp_path, monkeypatch):
    mine = ".".join(map(str, sys.version_info[:2]))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setattr(release.shutil, "which", lambda name: None)
    assert release.pythons([]) == {mine: Path(sys.executable)}
    broken = tmp_path / "versions" / "3.13.9" / "bin" / "python"
    broken.parent.mkdir(parents=True)
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    assert "3.13" not in release.pythons([]) or mine == "3.13"
    with pytest.raises(ReleaseRefused, match="no Python that makes environments"):
        release.pythons([tmp_path / "nothing"])


def test_tests_that_need_torch_are_counted_apart_and_other_failures_refused(tmp_path):
    cases = """<testcase classname="a" name="passes"/><testcase classname="a" name="skips"><skipped/></testcase>
        <testcase classname="a" name="needs"><failure message="No module named 'torch'">x</failure></testcase>
        <testcase classname="b" name="unread"><error message="e">No module named 'torchrec.types'</error></testcase>"""
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    assert release.counted(tmp_path / "report.xml") == (1, 2)
    wrong = '<testcase classname="c" name="broken"><failure message="assert 1 == 2">x</failure></testcase>'
    (tmp_path / "report.xml").write_text(f"<testsuites><testsuite>{cases}{wrong}</testsuite></testsuites>")
    with pytest.raises(ReleaseRefused, match="1 tests failed: c::broken"):
        release.counted(tmp_path / "report.xml")


def test_a_program_that_fails_is_told_with_its_last_words():
    with pytest.raises(ReleaseRefused, match=r"ended with 3:\nno disk"):
        release.said([sys.executable, "-c", "import sys; print('no disk'); sys.exit(3)"])
    assert release.said([sys.executable, "-c", "print(7)"]) == "7\n"


def test_what_is_kept_takes_the_place_of_what_was_there(tmp_path):
    (tmp_path / "dist").mkdir()
    (tmp_path / "dist" / "shard_gym-0.0.1.tar.gz").write_text("old")
    made = wheel(tmp_path)
    release.keep([release.Built(made, "numpy")], tmp_path / "dist")
    assert {path.name for path in (tmp_path / "dist").iterdir()} == {made.name, release.SUMS}
    done = subprocess.run(["sha256sum", "--check", release.SUMS], cwd=tmp_path / "dist", capture_output=True)
    assert done.returncode == 0


def test_the_program_that_tries_a_release_compiles_and_sees_no_checkout(monkeypatch):
    compile(release.USE, "USE", "exec")
    monkeypatch.setenv("PYTHONPATH", "here")
    monkeypatch.setenv("SHARD_GYM_CORE", "numpy")
    assert not {"PYTHONPATH", "SHARD_GYM_CORE"} & release.clean().keys()


def test_the_citation_file_has_what_its_format_asks_for():
    text = (ROOT / "CITATION.cff").read_text()
    told = dict(re.findall(r'^([a-z-]+): *"?(.*?)"?$', text, re.MULTILINE))
    assert told.keys() >= {"cff-version", "message", "title", "authors", "version", "license", "references"}
    assert (told["cff-version"], told["type"], told["license"]) == ("1.2.0", "software", "Apache-2.0")
    papers = text.split("\n  - type: ")[1:]
    assert len(papers) == 4
    for paper in papers:
        assert re.search(r'^    title: ".+"$', paper, re.MULTILINE) and "family-names: " in paper
        assert re.search(r"^    doi: 10\.\d{4,}/\S+$", paper, re.MULTILINE)
    assert not re.search(r"\t| +$", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["bug", "simulator", "suite", "agent"])
def test_issue_templates_have_a_name_and_say_what_for(name):
    text = (ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.md").read_text()
    _, head, body = text.split("---\n", 2)
    told = dict(line.split(": ", 1) for line in head.splitlines())
    assert told.keys() == {"name", "about", "labels"} and all(told.values()) and body.strip()
    for page in re.findall(r"docs/\w+\.md", body):
        assert (ROOT / page).is_file()
