"""The pages can be followed: links, anchors, code blocks, commands, the site's navigation, the reference of Python."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import penstock
from tests.command_line import whole_tree

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")]
COLUMNS_MAX = 120
GENERATED = {"sources.md", "metadata.md"}
"""Pages made by scripts from code."""

LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}\S.*\n(?: {4}.*\n|\n(?= {4}))*)", re.MULTILINE)
NAMED = re.compile(r"(?<![\w/])docs/[\w./-]+\.(?:md|png)(?:, \"([^\"\n]+)\")?")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def headings(path: Path) -> list[str]:
    return [text.replace("`", "") for text in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE)]


def anchors(path: Path) -> set[str]:
    """The anchors that Python-Markdown and GitHub both give to the headings."""
    return {re.sub(r"[^\w\s-]", "", text).strip().lower().replace(" ", "-") for text in headings(path)}


def code_of(path: Path, language: str) -> list[str]:
    return [
        textwrap.dedent(body) for _, found, body in FENCE.findall(path.read_text(encoding="utf-8")) if found == language
    ]


@pytest.mark.parametrize("page", PAGES + FRONT, ids=name_of)
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        assert page not in PAGES or file.is_relative_to(DOCS), f"not on the site: {link}"
        assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("page", PAGES + FRONT, ids=name_of)
def test_code_blocks_can_be_read(page: Path) -> None:
    for code in code_of(page, "python"):
        compile(code, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    for code in code_of(page, "json"):
        json.loads(code)


@pytest.mark.parametrize("page", [page for page in PAGES + FRONT if page.name not in GENERATED], ids=name_of)
def test_lines_fit_on_a_screen(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert [n for n, line in enumerate(lines, 1) if len(line) > COLUMNS_MAX and not line.lstrip().startswith("|")] == []


def command_lines(page: Path) -> Iterator[str]:
    """Each ``penstock`` command in a block of code, with its continuation lines joined."""
    text = page.read_text(encoding="utf-8")
    blocks = [body for _, language, body in FENCE.findall(text) if language in ("", "console", "sh", "bash")]
    blocks += INDENTED.findall(prose(page))
    for block in blocks:
        for line in block.replace("\\\n", " ").splitlines():
            if found := re.match(r"\s*(?:\$ )?(?:echo .* \| )?(penstock( [^#&|\n]*)?)", line):
                yield re.split(r" {3,}", found[1])[0]


@cache
def root_command() -> Any:
    return whole_tree()


@cache
def top_command(name: str) -> Any:
    """``penstock NAME``. Fails if there is no such command."""
    root = root_command()
    return root.resolve_command(root.context_class(root, info_name="penstock"), [name])[1]


def known_options(line: str) -> set[str]:
    """The options of the command that the line calls. Fails if there is no such command."""
    command = root_command()
    words = shlex.split(line)[1:]
    if words and not words[0].startswith("-"):
        command = top_command(words.pop(0))
    while getattr(command, "commands", None) is not None and words and not words[0].startswith("-"):
        context = command.context_class(command, info_name="penstock")
        _, command, words = command.resolve_command(context, words)
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }


@pytest.mark.parametrize("page", PAGES + FRONT, ids=name_of)
def test_commands_and_their_options_exist(page: Path) -> None:
    for line in command_lines(page):
        given = {word.partition("=")[0] for word in shlex.split(line) if re.match(r"--?[a-z]", word)}
        assert given <= known_options(line), line


MODULE_RUN = re.compile(r"python -m ((?:penstock|tests|bench)(?:\.\w+)*)")


def test_modules_that_pages_and_code_run_exist() -> None:
    code = [file for folder in ("src", "tests", "bench", "scripts") for file in (ROOT / folder).rglob("*.py")]
    named = {name for file in PAGES + FRONT + code for name in MODULE_RUN.findall(file.read_text(encoding="utf-8"))}
    assert "penstock.testing.simulation" in named
    missing = {name for name in named if name.islower() and not has_module(name)}
    assert missing == set()


def has_module(name: str) -> bool:
    """Whether ``python -m`` finds something to run: a module, or a package with ``__main__``."""
    place = Path("src" if name.startswith("penstock") else ".", *name.split("."))
    return (ROOT / place).with_suffix(".py").is_file() or (ROOT / place / "__main__.py").is_file()


CALLED = re.compile(r"(?<![\w./'-])penstock ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")
"""A command in a text of the code, with its subcommand."""
MAYBE_CALLED = re.compile(r"penstock[ '\"\\]")
"""In each file with such a text, also where the next word begins another literal."""


def named_commands() -> Iterator[tuple[str, str, str]]:
    """Where a string of the code or a code span of a page names a command: the place, the command, the next word."""
    for file in sorted((ROOT / "src").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not MAYBE_CALLED.search(text):
            continue  # To parse all files takes three seconds.
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for found in CALLED.finditer(node.value):
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", found[1], found[2] or ""
    for page in PAGES + FRONT:
        for span in re.findall(r"`(penstock [^`]*)`", prose(page)):
            if found := CALLED.match(span):
                yield str(page.relative_to(ROOT)), found[1], found[2] or ""


def test_commands_that_messages_docstrings_and_pages_name_exist() -> None:
    root = root_command()
    context = root.context_class(root, info_name="penstock")
    named = [item for item in named_commands() if item[1] != "serves"]  # "penstock serves DIR" is a sentence.
    unknown = []
    for place, name, word in named:
        command = root.get_command(context, name)
        if command is None or (word and hasattr(command, "get_command") and not command.get_command(context, word)):
            unknown.append((place, name, word))
    assert unknown == []
    assert len(named) > 200


def pages_of(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else nav.values():
        if isinstance(entry, str):
            yield entry
        else:
            yield from pages_of(entry)


def test_the_site_has_every_page_once() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    assert sorted(pages_of(site["nav"])) == [str(page.relative_to(DOCS)) for page in PAGES]


def test_files_name_pages_and_sections_that_exist() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    checked = 0
    for name in listed:
        if not name.endswith((".py", ".md", ".proto", "Makefile", ".toml", ".json")) or name == "CHANGELOG.md":
            continue
        for found in NAMED.finditer((ROOT / name).read_text(encoding="utf-8")):
            page = ROOT / found[0].partition(",")[0]
            assert page.exists(), (name, found[0])
            section = found[1]
            assert not section or section in headings(page) or f"**{section}." in page.read_text(), (name, found[0])
            checked += 1
    assert checked > 100


def test_every_exported_name_is_in_the_reference_of_python() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    assert '--8<-- "answers.md"' in page
    shown = re.findall(r"^::: (penstock(?:\.\w+)+)$", page, re.MULTILINE)
    assert {f"penstock.{name}" for name in penstock.__all__} - set(shown) == {
        "penstock.__version__",
        "penstock.answers",
    }
    assert "`penstock.__version__`" in page


def test_every_public_name_has_a_docstring() -> None:
    errors = [error for error in vars(penstock.errors).values() if inspect.isclass(error)]
    types = [kind for kind in vars(penstock.answers).values() if inspect.isclass(kind)]
    described = [error for error in errors if issubclass(error, Exception)] + types
    lacking = [kind.__name__ for kind in described if not kind.__doc__]
    for name in penstock.__all__:
        value = getattr(penstock, name)
        if inspect.isclass(value):
            lacking += [
                f"{name}.{member}"
                for member, attribute in vars(value).items()
                if not member.startswith("_")
                and isinstance(attribute, property | classmethod | staticmethod | type(test_lines_fit_on_a_screen))
                and not inspect.getdoc(getattr(value, member))
            ]
        if name != "__version__" and not vars(value).get("__doc__", value.__doc__):
            lacking.append(name)
    assert lacking == []


def public_calls() -> Iterator[tuple[str, Any]]:
    for name in penstock.__all__:
        value = getattr(penstock, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            calls = [(member, call) for member, call in vars(value).items() if inspect.isfunction(call)]
            yield from ((f"{name}.{member}", call) for member, call in calls if not member.startswith("_"))


REFERS = re.compile(r"\b(?:[Aa]s|See) ``")
"""A docstring that leaves parameters to that of another call."""


@pytest.mark.parametrize(("name", "call"), [pytest.param(*item, id=item[0]) for item in public_calls()])
def test_the_docstring_of_a_call_names_its_options_and_errors_that_exist(name: str, call: Any) -> None:
    text = inspect.getdoc(call) or ""
    options = [
        item.name
        for item in inspect.signature(call).parameters.values()
        if item.kind is not item.VAR_KEYWORD and (item.kind is item.KEYWORD_ONLY or item.default is not item.empty)
    ]
    if not REFERS.search(text):
        assert [option for option in options if not re.search(rf"\b{option}\b", text)] == []
    for error in re.findall(r"\b[A-Z]\w+Error\b", text):
        assert hasattr(penstock.errors, error) or hasattr(builtins, error), error


def script(name: str) -> Any:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def test_pages_include_each_generated_part_once() -> None:
    found = [name for page in PAGES for name in re.findall(r'^--8<-- "(.+)"$', page.read_text(), re.MULTILINE)]
    assert sorted(found) == sorted([*script("call_pages").included(), "cli.md"])


def test_generated_parts_have_every_call_and_every_type_of_an_answer() -> None:
    parts = script("call_pages").included()
    types = re.findall(r"^::: penstock\.answers\.(\w+)$", parts["answers.md"], re.MULTILINE)
    assert set(types) == {name for name, value in vars(penstock.answers).items() if inspect.isclass(value)}
    assert {"StreamFacts", "OpenTransaction", "ScaleResult"} <= set(types)
    native = dict(re.findall(r"^\| `([\w.]+)` \| (.*) \|$", parts["native-calls.md"], re.MULTILINE))
    assert native["transactions.ping"] == "`stream`, `txn`, `lease_ms`"
    assert native["segments.disk"] == ""
    rows = parts["rest-calls.md"].splitlines()
    assert "| `DELETE /v1/holds/{id}?owner=` |  | Lift a hold and return it |" in rows
    assert (
        "| `POST /v1/erasures/{id}/withdraw` | `who`, `why` | Withdraw an erasure that is not decided yet. A repeated call changes nothing |"
        in rows
    )
    assert len({row.count("|") for row in rows}) == 1


def test_the_reference_of_the_command_line_has_every_command() -> None:
    command_reference = script("docs").command_reference
    sections = dict(
        re.findall(r"^## (penstock[^\n]*)\n\n```text\n(.*?)\n```$", command_reference(), re.MULTILINE | re.DOTALL)
    )
    assert len(sections) > 60
    for name, text in sections.items():
        assert text.startswith(f"Usage: {name} "), name
        assert "--help" in text, name
