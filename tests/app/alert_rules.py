"""Evaluates the conditions of alert rules on scraped pages, for what these rules use of Prometheus's language.

A page is what one scrape returned. A rule fires if its condition held on every page of the last ``for``. The slow suite
gives the same pages to Prometheus itself, so a mistake here shows as a difference.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_TOKEN = re.compile(r"\s*(>=|<=|==|[-><(){}\[\],]|\w+=\"[^\"]*\"|[\w.:]+)")
_COMPARE = {">": operator.gt, "<": operator.lt, "==": operator.eq, ">=": operator.ge, "<=": operator.le}
_LABEL = re.compile(r'(\w+)="((?:[^"\\\\]|\\\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``at_s``: the time of the scrape by Prometheus's clock. ``samples``: by name, the value of each set of labels."""

    at_s: float
    samples: Mapping[str, Vector]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    name: str
    condition: str
    for_s: float


def parse_page(text: str, *, at_s: float, job: str = "penstock") -> Page:
    """``text``: what the server answered; None: it did not answer."""
    samples: dict[str, Vector] = {"up": {frozenset({("job", job)}): 1.0}}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            name, _, labels = series.partition("{")
            samples.setdefault(name, {})[frozenset(_LABEL.findall(labels))] = float(value)
    return Page(at_s=at_s, samples=samples)


def no_answer(*, at_s: float, job: str = "penstock") -> Page:
    return Page(at_s=at_s, samples={"up": {frozenset({("job", job)}): 0.0}})


def load_rules(path: Path) -> Sequence[Rule]:
    groups = yaml.safe_load(path.read_text())["groups"]
    return [
        Rule(name=one["alert"], condition=one["expr"], for_s=_duration_s(one.get("for", "0s")))
        for group in groups
        for one in group["rules"]
    ]


def firing(rules: Sequence[Rule], pages: Sequence[Page]) -> set[str]:
    """The alerts that fire at the time of the last page."""
    return {rule.name for rule in rules if _fires(rule, pages)}


def _fires(rule: Rule, pages: Sequence[Page]) -> bool:
    held: set[Labels] | None = None
    for count in range(len(pages), 0, -1):
        found = set(evaluate(rule.condition, pages[:count]))
        held = found if held is None else held & found
        if not held:
            return False
        if pages[-1].at_s - pages[count - 1].at_s >= rule.for_s:
            return True
    return False


def evaluate(condition: str, pages: Sequence[Page]) -> Vector:
    """The series for which the condition holds at the time of the last page."""
    tokens = _TOKEN.findall(condition)
    parser = _Parser(tokens, pages)
    found = parser.either()
    assert not parser.left, parser.left
    assert isinstance(found, dict)
    return found


class _Parser:
    def __init__(self, tokens: list[str], pages: Sequence[Page]) -> None:
        self.left = tokens
        self._pages = pages

    def _next(self) -> str:
        return self.left.pop(0)

    def _take(self, token: str) -> bool:
        if self.left and self.left[0] == token:
            self._next()
            return True
        return False

    def either(self) -> Vector | float:
        found = self._both()
        while self._take("or"):
            other = self._both()
            assert isinstance(found, dict)
            assert isinstance(other, dict)
            found = other | found
        return found

    def _both(self) -> Vector | float:
        found = self._comparison()
        while self._take("and"):
            other = self._comparison()
            assert isinstance(found, dict)
            assert isinstance(other, dict)
            found = {labels: value for labels, value in found.items() if labels in other}
        return found

    def _comparison(self) -> Vector | float:
        found = self._difference()
        if not self.left or self.left[0] not in _COMPARE:
            return found
        compare = _COMPARE[self._next()]
        limit = self._difference()
        assert isinstance(found, dict)
        assert isinstance(limit, float)
        return {labels: value for labels, value in found.items() if compare(value, limit)}

    def _difference(self) -> Vector | float:
        found = self._term()
        while self._take("-"):
            other = self._term()
            if isinstance(found, dict):
                assert isinstance(other, float)
                found = {labels: value - other for labels, value in found.items()}
            elif isinstance(other, dict):
                found = {labels: found - value for labels, value in other.items()}
            else:
                found = found - other
        return found

    def _term(self) -> Vector | float:
        token = self._next()
        if re.fullmatch(r"[\d.]+", token):
            return float(token)
        if self._take("("):
            return self._call(token)
        return self._series(token)[-1][1]

    def _call(self, name: str) -> Vector | float:
        found: Vector | float
        if name == "time":
            found = self._pages[-1].at_s
        elif name == "abs":
            inner = self.either()
            assert isinstance(inner, dict)
            found = {labels: abs(value) for labels, value in inner.items()}
        elif name == "increase":
            found = {labels: _increase(points) for labels, points in self._range().items() if len(points) > 1}
        else:
            assert name == "predict_linear", name
            points = self._range()
            assert self._take(",")
            ahead_s = float(self._next())
            found = {
                labels: _predict(one, self._pages[-1].at_s + ahead_s) for labels, one in points.items() if len(one) > 1
            }
        assert self._take(")")
        return found

    def _range(self) -> dict[Labels, list[tuple[float, float]]]:
        found: dict[Labels, list[tuple[float, float]]] = {}
        series = self._series(self._next())
        assert self._take("[")
        since_s = self._pages[-1].at_s - _duration_s(self._next())
        assert self._take("]")
        for at_s, vector in series:
            for labels, value in vector.items():
                if at_s > since_s:
                    found.setdefault(labels, []).append((at_s, value))
        return found

    def _series(self, name: str) -> list[tuple[float, Vector]]:
        wanted: set[tuple[str, str]] = set()
        if self._take("{"):
            while not self._take("}"):
                label, _, value = self._next().partition("=")
                wanted.add((label, value.strip('"')))
                self._take(",")
        return [
            (page.at_s, {labels: value for labels, value in page.samples.get(name, {}).items() if wanted <= labels})
            for page in self._pages
        ]


def _increase(points: list[tuple[float, float]]) -> float:
    values = [value for _, value in points]
    return sum(after - before if after >= before else after for before, after in zip(values, values[1:], strict=False))


def _predict(points: list[tuple[float, float]], at_s: float) -> float:
    mean_s = sum(x for x, _ in points) / len(points)
    mean = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_s) ** 2 for x, _ in points)
    slope = sum((x - mean_s) * (y - mean) for x, y in points) / spread
    return mean + slope * (at_s - mean_s)


def _duration_s(text: str) -> float:
    return float(text[:-1]) * _UNITS_S[text[-1]]
