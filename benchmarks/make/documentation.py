"""Build of the documentation site: a reference of all docstrings, and the files outside docs/ that pages link to.

mkdocs calls the functions that begin with `on_`. A page of docs/ keeps the links that work in the repository; here they
are turned to where the site has the same files.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PACKAGES = {"shard_gym": ROOT / "shard_gym", "shard_gym_agents": ROOT / "agents" / "shard_gym_agents"}
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/results/*.md")  # in the site, linked or not
SOURCES = {".py": "python", ".toml": "toml", ".csv": "text", ".cff": "yaml"}  # shown as pages of code
CODE = r"^ *```.*?^ *```$|`[^`\n]+`"
LINK = re.compile(rf"(?P<code>{CODE})|\]\((?P<target>[^)\s]+)\)", re.MULTILINE | re.DOTALL)
HEADLESS = "\n    options:\n      show_root_heading: false"  # the page's own heading says it
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|video|audio|link|object|embed)\b[^>]*?\b(?:src|srcset|href|data)\s*=\s*[\"']?(?:https?:)?//[^\s\"'>]+"
    r"|url\(\s*[\"']?(?:https?:)?//[^)]+|@import\s+[\"'](?:https?:)?//[^\"']+"
)


# What the site is made of


def links(text: str) -> Iterator[str]:
    """Targets of the links of Markdown, without those in code."""
    return (found["target"] for found in LINK.finditer(text) if found["target"])


def is_local(target: str) -> bool:
    """True of a link to a file of the repository."""
    return not re.match(r"[a-z]+:|#|//", target)


def address(path: Path) -> str:
    """Address in the site of a file or folder of the repository."""
    if path == ROOT / "README.md":
        return "index.md"
    inside = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"{inside}/README.md"
    return f"{inside}.md" if path.suffix in SOURCES else inside.removeprefix("docs/")


def gathered() -> dict[str, Path | str]:
    """Pages and files of the site that are not in docs/, by address: a file, or the text of a page."""
    found: dict[str, Path | str] = dict(reference())
    waiting = [*ROOT.glob("docs/*.md"), *(path for pattern in ALWAYS for path in ROOT.glob(pattern))]
    seen = {ROOT / "README.md"}  # index.md stands for it
    while waiting:
        path = waiting.pop()
        if path in seen or not path.exists():
            continue
        seen.add(path)
        if path.parent != ROOT / "docs":
            found[address(path)] = shown(path)
        if path.suffix == ".md":
            targets = (target.split("#")[0] for target in links(path.read_text(encoding="utf-8")) if is_local(target))
            waiting += [Path(os.path.normpath(path.parent / target)) for target in targets]
    return found


def shown(path: Path) -> Path | str:
    """A file as it is, a list of what a folder holds, or source code as a page."""
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        if (path / "README.md").exists():
            return path / "README.md"
        inside = sorted(part.name + "/" * part.is_dir() for part in path.iterdir() if not part.name.startswith("."))
        return "\n".join([f"# {name}", "", "This folder of the repository holds:", "", *(f"- `{x}`" for x in inside)])
    if path.suffix in SOURCES:
        return f"# {name}\n\n```{SOURCES[path.suffix]}\n{path.read_text(encoding='utf-8')}```\n"
    return path


def turned(text: str, page: str) -> str:
    """Markdown of a page with its links turned to addresses of the site."""
    source = ROOT / "docs" / page if (ROOT / "docs" / page).exists() else ROOT / page

    def turn(found: re.Match[str]) -> str:
        target = found["target"]
        if not target or not is_local(target):
            return found[0]
        file, mark, anchor = target.partition("#")
        path = Path(os.path.normpath(source.parent / file))
        if not path.exists():
            return found[0]  # mkdocs says where it stands
        return f"]({os.path.relpath(address(path), os.path.dirname(page) or '.')}{mark}{anchor})"

    return LINK.sub(turn, text)


# The reference


def modules() -> Iterator[tuple[str, str, Path]]:
    """Page, name and file of every module of both packages, page by page: a room each, and a package's own."""
    for package, folder in PACKAGES.items():
        rooms = sorted(file.parent for file in folder.glob("*/__init__.py") if file.parent.name != "template")
        for room in (folder, *rooms):
            files = folder.glob("*.py") if room == folder else room.rglob("*.py")
            page = package if room == folder else f"{package}.{room.name}"
            for file in sorted(files, key=lambda file: (file.parent, file.stem != "__init__", file.stem)):
                parts = file.relative_to(folder.parent).with_suffix("").parts
                if not parts[-1].startswith("_") or parts[-1] == "__init__":
                    yield page, ".".join(parts).removesuffix(".__init__"), file


def reference() -> dict[str, str]:
    """Pages of the reference: an overview, and all public names of a room. Searches show guides before them."""
    pages: dict[str, list[str]] = {}
    for page, module, _ in modules():
        parts = pages.setdefault(page, [f"---\nsearch:\n  boost: 0.0001\n---\n\n# {page}"])
        parts.append(f"::: {module}" + HEADLESS * (module == page))
    found = {f"reference/{page}.md": "\n\n".join(parts) + "\n" for page, parts in pages.items()}
    return {"reference/index.md": overview(list(pages)), **found}


def overview(pages: list[str]) -> str:
    """First page of the reference: the names that a package exports, and its rooms."""
    lines = ["# Reference", "", "Every public name, from its docstring. Most programs need those of this page only."]
    lines += ["[Stability](../stability.md) says which names stay."]
    for package, folder in PACKAGES.items():
        lines += ["", f"## {package}", "", "| name | what it is |", "|---|---|"]
        for name, whole, first in exports(package):
            lines.append(f"| [`{name}`][{whole}] | {first} |")
        lines += ["", "| room | what it holds |", "|---|---|"]
        for page in pages:
            if page.startswith(f"{package}."):
                room = parsed(folder / page.split(".")[1] / "__init__.py")
                lines.append(f"| [`{page}`]({page}.md) | {summary(room)} |")
    return "\n".join(lines) + "\n"


def exports(package: str) -> list[tuple[str, str, str]]:
    """Names of a package's `__all__`: each with its whole name and the first paragraph of its docstring."""
    files = {module: file for _, module, file in modules()}
    return [(name, *defined(package, name, files)) for name in all_of(parsed(files[package]))]


def defined(module: str, name: str, files: dict[str, Path]) -> tuple[str, str]:
    """Whole name of what a module calls so, wherever it comes from, and the first paragraph of its docstring."""
    whole = f"{module}.{name}"
    if whole in files:
        return whole, summary(parsed(files[whole]))
    body = parsed(files[module]).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return whole, summary(node)
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in ast.unparse(node).split("=")[0]:
            return whole, summary(ast.Module([after], []) if after else ast.Module([], []))
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.ImportFrom) and node.module in files and name in [part.name for part in node.names]:
            return defined(node.module, name, files)
    return whole, ""


def summary(node: ast.AST) -> str:
    """First paragraph of a docstring, on one line."""
    assert isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()).replace("|", "\\|")


@cache
def parsed(file: Path) -> ast.Module:
    """Source of a module."""
    return ast.parse(file.read_text(encoding="utf-8"))


def all_of(tree: ast.Module) -> list[str]:
    """The list `__all__` of a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return list(ast.literal_eval(node.value))
    return []


# What mkdocs calls


def on_config(config: Any) -> Any:
    """Fill in the parts of the menu that are folders; leave out pages that this checkout does not have."""
    config.nav = menu(config.nav, {path.name for path in ROOT.glob("docs/*.md")} | gathered().keys())
    return config


def menu(entries: list[Any], known: set[str]) -> list[Any]:
    """Menu entries of known pages, with a folder's pages in place of its name."""
    kept: list[Any] = []
    for entry in entries:
        title, inside = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(inside, list):
            kept.append({title: menu(inside, known)})
        elif inside.endswith("/"):
            inner = [page for page in known if re.fullmatch(rf"{inside}[^/]*\.md", page)]
            kept += sorted(inner, key=lambda page: page.removesuffix(".md"))
        elif inside in known:
            kept.append(entry)
    return kept


def on_files(files: Any, config: Any) -> Any:
    """Add what is not in docs/."""
    from mkdocs.structure.files import File, InclusionLevel

    for name, content in gathered().items():
        told = {"content": content} if isinstance(content, str) else {"abs_src_path": str(content)}
        files.append(File.generated(config, name, inclusion=InclusionLevel.NOT_IN_NAV, **told))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links of a page."""
    return turned(markdown, page.file.src_uri)


def on_post_build(config: Any) -> None:
    """Refuse a site whose pages load something from another host."""
    from mkdocs.exceptions import PluginError

    for path in sorted(Path(config.site_dir).rglob("*.*")):
        if path.suffix in (".html", ".css") and (found := FETCHED.search(path.read_text(encoding="utf-8"))):
            raise PluginError(f"{path} loads from another host: {found[0]}")
