"""The metrics of a cluster's stores, which the active controller shows beside its own. Source: docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from penstock.app.cluster.lines import ContainerLine
from penstock.app.metrics.page import WorkerMetrics
from penstock.model.errors import NotConnectedError


class StoreMetrics(Mapping[str, WorkerMetrics]):
    """By process, as ``store s1``: the stores that serve a container now. A store is asked over the link to one of its
    containers. The lines are borrowed."""

    def __init__(self, lines: Sequence[ContainerLine]) -> None:
        self._lines = lines

    def _found(self) -> Mapping[str, ContainerLine]:
        found: dict[str, ContainerLine] = {}
        for one in self._lines:
            if one.held is not None:
                name = f"store {one.held.store}"
                if name not in found or (one.line.link is not None and found[name].line.link is None):
                    found[name] = one
        return dict(sorted(found.items()))

    def __getitem__(self, process: str) -> WorkerMetrics:
        return partial(_ask, self._found()[process])

    def __iter__(self) -> Iterator[str]:
        return iter(self._found())

    def __len__(self) -> int:
        return len(self._found())


async def _ask(one: ContainerLine) -> Any:
    link = one.line.link
    if link is None:
        raise NotConnectedError("the store is not connected", container=one.number)
    return await link.call("metrics")
