"""Renders snapshots in Prometheus's text formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from penstock.app.metrics.catalogue import METRICS, Metric, MetricKind
from penstock.app.telemetry import BOUNDS_S, Snapshot
from penstock.model.values.dataclass import dataclass

_Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A process, as ``server`` or ``worker-0``, and its metrics; "" has those of the whole store."""

    process: str
    snapshot: Snapshot


def render(sources: Sequence[Source], *, accept: str = "") -> tuple[bytes, str]:
    """The metrics as text, and its media type. ``accept``: the request's header."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshots(sources))
    try:
        encoder, content_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encoder, content_type = choose_encoder("")
    return encoder(registry), content_type


class _Snapshots(Collector):
    def __init__(self, sources: Sequence[Source]) -> None:
        self._families: dict[str, _Family] = {}
        for source in sources:
            self._take(source)

    def collect(self) -> Iterator[_Family]:
        yield from self._families.values()

    def _take(self, source: Source) -> None:
        for name, labels, value in (*source.snapshot.counts, *source.snapshot.gauges):
            metric = METRICS.get(name)
            family = None if metric is None else self._family(metric)
            if metric is not None and isinstance(family, CounterMetricFamily | GaugeMetricFamily):
                family.add_metric(_values(metric, source.process, labels), value)
        for name, labels, (sum_s, *counts) in source.snapshot.distributions:
            metric = METRICS.get(name)
            family = None if metric is None else self._family(metric)
            if metric is not None and isinstance(family, HistogramMetricFamily):
                buckets = list(zip(_BOUNDS, map(float, accumulate(counts)), strict=True))
                family.add_metric(_values(metric, source.process, labels), buckets, sum_s)

    def _family(self, metric: Metric) -> _Family:
        found = self._families.get(metric.name)
        if found is None:
            kind = _FAMILIES[metric.kind]
            labels = [*metric.labels] if metric.of_store else ["process", *metric.labels]
            found = self._families[metric.name] = kind(f"penstock_{metric.name}", metric.help, labels=labels)
        return found


_BOUNDS = (*map(str, BOUNDS_S), "+Inf")
_FAMILIES: Mapping[MetricKind, type[_Family]] = {
    MetricKind.COUNTER: CounterMetricFamily,
    MetricKind.GAUGE: GaugeMetricFamily,
    MetricKind.SECONDS: HistogramMetricFamily,
}


def _values(metric: Metric, process: str, labels: Sequence[str]) -> Sequence[str]:
    return labels if metric.of_store else (process, *labels)
