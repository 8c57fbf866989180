"""The command line as one language: a name has one meaning, a meaning has one name, help says formats and shows examples.

The documents are held to it too: every command that they show exists, with these options.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import whole_tree

ROOT = Path(__file__).parents[2]

FORMATS: Mapping[str, str] = {
    "SIZE": r"\d(GB|MiB)",
    "DURATION": r"\d(s|m|h|d)\b",
    "TIME": r"2026-01-31",
    "POSITION": r"earliest .*latest .*cut",
    "LIMIT": r"10MB",
    "SHARE": r"0\.\d",
    "SQL": r"column|expression|predicate",
    "DDL": r"STRING",
    "NAME=VALUE": r"\w=\w",
    "PERIOD": r"hour|day",
}
"""What the help of an option shows, by what the option takes: an example, or the words that it accepts."""


def commands(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS: Mapping[str, Any] = dict(commands(whole_tree()))


def options() -> Iterator[tuple[str, str, Any]]:
    """Command, name and parameter of every option."""
    for words, command in COMMANDS.items():
        for parameter in command.params:
            if parameter.param_type_name == "option":
                yield words, parameter.opts[0], parameter


def sentence(help_text: str) -> str:
    """The first sentence, without the default."""
    return re.split(r"(?<=\.)\s", help_text.split("  [")[0], maxsplit=1)[0]


def value_of(parameter: Any) -> str | None:
    return None if parameter.is_flag else parameter.metavar


def test_a_name_of_an_option_has_one_meaning() -> None:
    meanings = defaultdict(set)
    for _, name, parameter in options():
        # A choice may be between other words in another command.
        value = "CHOICE" if "|" in (value_of(parameter) or "") else value_of(parameter)
        meanings[name].add((value, tuple(parameter.opts), sentence(parameter.help or "")))
    assert {name: found for name, found in meanings.items() if len(found) > 1} == {}


def test_a_meaning_has_one_name() -> None:
    names = defaultdict(set)
    for _, name, parameter in options():
        names[sentence(parameter.help or "")].add(name)
    assert {text: found for text, found in names.items() if len(found) > 1} == {}


def test_every_option_says_its_format() -> None:
    for words, name, parameter in options():
        text, value = parameter.help or "", value_of(parameter)
        assert text, (words, name)
        if parameter.is_flag:
            continue
        assert value is not None, f"{words} {name} takes a value: name its format"
        assert value in FORMATS or re.fullmatch(r"[A-Z]+([:/][A-Z]+)?|[\w|.-]+|[A-Z]+=.*", value), (words, name, value)
        assert re.search(FORMATS.get(value, ""), text), f"{words} {name} {value}: {text}"


def shown(text: str) -> Iterator[list[str]]:
    """The words after ``penstock`` of every command line in the text."""
    text = re.sub(r"\\\n\s*", " ", text)
    for line in re.findall(r"^\s*(?:\$ )?(?:echo .*\| )?penstock ((?:[a-z]|--).*)$", text, re.MULTILINE):
        line = re.split(r"\s{2,}| #| \|", line)[0]
        yield shlex.split(line)
    for line in re.findall(r"`penstock ([a-z][^`]*)`", text):
        yield shlex.split(line.replace("'", "").replace('"', ""))


def wrong_in(words: list[str]) -> str | None:
    """What is wrong with a command line that a text shows; None if the command has these options."""
    for count in (3, 2, 1):
        command = COMMANDS.get(" ".join(words[:count]))
        if command is not None:
            known = {option for parameter in command.params for option in parameter.opts}
            given = {word.strip("[]").split("=")[0] for word in words[count:] if word.strip("[]").startswith("-")}
            unknown = {word for word in given if re.fullmatch(r"--[a-z].*|-[a-z]", word)} - known - {"--help", "--json"}
            return f"has no {', '.join(sorted(unknown))}" if unknown else None
    groups = {command.partition(" ")[0] for command in COMMANDS if " " in command}
    group_alone = words[0] in groups and (len(words) == 1 or not re.fullmatch(r"[a-z]+", words[1]))
    return None if group_alone or words[0].startswith("-") else "no such command"


@pytest.mark.parametrize("words", COMMANDS)
def test_help_of_a_command_shows_an_example_that_it_accepts(words: str) -> None:
    command = COMMANDS[words]
    text = command.help or ""
    examples = [item for item in shown(text) if " ".join(item).startswith(words)]
    assert examples, f"penstock {words} --help shows no example"
    required = sum(item.param_type_name == "argument" and item.required for item in command.params)
    for example in shown(text):
        assert wrong_in(example) is None, (example, wrong_in(example))
    assert all(len(item) >= len(words.split()) + required for item in examples)


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_the_documents_exists_with_its_options(path: Path) -> None:
    found = {" ".join(words): wrong_in(words) for words in shown(path.read_text())}
    assert {line: wrong for line, wrong in found.items() if wrong is not None} == {}
