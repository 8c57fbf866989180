"""Every metric of a server: its name, its kind and what it says.

A metric is exposed as ``penstock_`` and its name; a counter gets ``_total``. Names and labels are stable: dashboards and
alerts depend on them. A name that the code uses and this list lacks fails a test.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from penstock.model.values.dataclass import dataclass


class MetricKind(enum.Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    SECONDS = "histogram"
    """A distribution of durations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric. ``labels``: names of its labels, without ``process``. ``of_store``: it belongs to the whole store, so
    it has no label ``process``."""

    name: str
    kind: MetricKind
    help: str
    labels: Sequence[str] = ()
    of_store: bool = False

    @property
    def exposed(self) -> str:
        """The name that Prometheus shows."""
        return f"penstock_{self.name}{'_total' if self.kind is MetricKind.COUNTER else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    title: str
    metrics: Sequence[Metric]


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.COUNTER, help=text, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, labels=labels)


def _seconds(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.SECONDS, help=text, labels=labels)


def _of_store(name: str, text: str, *labels: str) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, help=text, labels=labels, of_store=True)


CATALOGUE: Sequence[Chapter] = (
    Chapter(
        title="The process",
        metrics=(
            _gauge("up", "1 if the process answered this scrape, else 0"),
            _gauge("started_time_seconds", "When the process started, in seconds since the Unix epoch"),
            _gauge("clock_time_seconds", "The wall clock of the process, in seconds since the Unix epoch"),
            _gauge("resident_bytes", "Memory of the process"),
            _gauge("memory_budget_bytes", "Memory that the process may use"),
            _gauge("open_files", "Open file descriptors of the process"),
            _counter("cpu_seconds", "CPU time of the process, user and system"),
            _gauge("not_ready", "1 for each function that does not work now", "function"),
        ),
    ),
    Chapter(
        title="Protection",
        metrics=(
            _gauge("insecure", "1 if other machines can reach ports without TLS or authentication"),
            _gauge("certificate_expiry_time_seconds", "When the server's certificate expires, since the Unix epoch"),
            _gauge("certificate_refused", "1 if the TLS files were changed and cannot be used; the old ones stay"),
            _counter("tls_reloads", "New TLS files, by outcome: ok or refused", "outcome"),
            _counter("authentications", "Credentials that were checked; outcome: ok, refused or throttled", "outcome"),
            _counter("refusals", "Calls refused for lack of credentials or rights, by door and error", "door", "error"),
            _counter("tls_handshakes", "TLS handshakes, by outcome: ok or failed", "outcome"),
            _counter("tls_expired_connections", "Connections that ended because the client's certificate had expired"),
        ),
    ),
    Chapter(
        title="Writers and readers",
        metrics=(
            _gauge("wire_connections", "Open connections to the segment store's port"),
            _counter("wire_received_bytes", "Bytes received from clients of the segment store"),
            _counter("wire_appends", "Acknowledged appends; each contains one or more events"),
            _counter("wire_appended_events", "Acknowledged events"),
            _counter("wire_appended_bytes", "Acknowledged bytes of events with their headers"),
            _seconds("wire_append_seconds", "From the arrival of an append to its acknowledgement; a sample"),
            _counter("wire_throttled_appends", "Appends that had to wait because the store had no room"),
            _seconds("wire_request_seconds", "Duration of other requests to that port, such as to create a segment"),
            _counter("wire_reads", "Replies to reads of segments"),
            _counter("wire_read_bytes", "Bytes sent in replies to reads"),
            _counter("wire_protocol_errors", "Connections that broke the protocol"),
            _gauge("arena_pooled_bytes", "Receive buffers that are free for reuse"),
            _counter("arena_overflows", "Receive buffers beyond the budget"),
            _counter("quota_refusals", "Appends refused or held by a backlog quota"),
        ),
    ),
    Chapter(
        title="Calls",
        metrics=(
            _gauge("grpc_connections", "Open connections to the controller's port"),
            _counter("calls", "Calls over gRPC; outcome: ok, refused, failed or cancelled", "call", "outcome"),
            _seconds("call_seconds", "Duration of calls over gRPC"),
            _gauge("http_connections", "Open connections to the HTTP port; a scrape is one of them"),
            _counter("http_requests", "HTTP requests by method and class of the status, as in 2xx", "method", "status"),
            _seconds("http_request_seconds", "Duration of HTTP requests"),
        ),
    ),
    Chapter(
        title="The log (tier 1)",
        metrics=(
            _counter("log_writes", "Writes of the log; each ends with one sync"),
            _counter("log_written_bytes", "Bytes written to the log"),
            _seconds("log_write_seconds", "From a write of the log to its durability"),
            _counter("log_full_refusals", "Appends refused because the log has no room"),
            _counter("checkpoints", "Checkpoints of containers"),
            _counter("checkpoint_failures", "Failed checkpoints; they are repeated"),
            _counter("containers_offline", "Containers that have stopped; a restart recovers them"),
        ),
    ),
    Chapter(
        title="Memory and history (tier 2)",
        metrics=(
            _gauge("unflushed_bytes", "Acknowledged bytes that are not in tier 2 yet"),
            _gauge("unflushed_limit_bytes", "Above this many unflushed bytes, appends wait"),
            _gauge("tail_cache_bytes", "Bytes of events in memory"),
            _gauge("cache_allowed_bytes", "Bytes of events that may stay in memory now"),
            _counter("tiered_bytes", "Bytes written to chunks"),
            _counter("tiering_failures", "Failed writes of chunks; they are repeated"),
            _counter("adopted_bytes", "Bytes of chunks that the Spark sink wrote"),
            _counter("unadopted_chunks", "Chunks of failed tasks of the Spark sink, deleted"),
            _counter("freed_bytes", "Bytes of deleted chunks"),
            _counter("orphan_chunks", "Chunks without a reference, deleted"),
            _counter("orphan_scan_failures", "Failed searches for such chunks"),
            _counter("catalogue_bytes", "Bytes written to the catalogue in tier 2"),
            _counter("catalogue_snapshots", "Whole copies of the catalogue"),
            _counter("catalogue_failures", "Failed writes of the catalogue; they are repeated"),
            _counter("corrupt_blocks", "Blocks whose checksum did not match when they were read"),
            _counter("damage_met", "Damaged chunks found while space was freed"),
            _counter("scrubbed_bytes", "Bytes verified by scrubs"),
            _counter("scrub_findings", "Damage found by scrubs"),
            _counter("segments_set_aside", "Segments whose records cannot be read"),
            _counter("writers_forgotten", "Writers whose last number was removed after their silence"),
        ),
    ),
    Chapter(
        title="Streams and transactions",
        metrics=(
            _counter("transactions_begun", "Transactions begun"),
            _counter("transactions_ended", "Transactions ended, by their state", "state"),
            _counter("transactions_expired", "Transactions whose lease ended"),
            _counter("batches_committed", "Batches of the Spark sink committed"),
            _counter("stream_scales", "Changes of a stream's segments"),
            _counter("rate_scales", "Changes by rate: split or merge", "action"),
            _counter("scaling_failures", "Streams whose rates could not be evaluated; they are retried"),
            _counter("watermarks", "Watermarks written"),
            _counter("workflow_failures", "Failed steps of workflows; they are repeated"),
            _counter("restored_streams", "Deleted streams that were restored"),
            _counter("idle_streams_deleted", "Streams deleted because they were idle"),
            _gauge("unreadable_records", "Records of the controller that cannot be read"),
        ),
    ),
    Chapter(
        title="Retention",
        metrics=(
            _seconds("retention_cycle_seconds", "Duration of retention cycles"),
            _gauge("retention_cycle_ended_time_seconds", "When the last cycle ended, in seconds since the Unix epoch"),
            _gauge(
                "retention_cycle_due_time_seconds",
                "When the next cycle must have ended, in seconds since the Unix epoch",
            ),
            _gauge(
                "retention_next_due_time_seconds",
                "When the next rule of a stream becomes due, in seconds since the Unix epoch; +Inf: none is known",
            ),
            _gauge("retention_streams", "Streams evaluated in the last cycle"),
            _counter("retention_failures", "Streams whose retention failed; they are retried"),
            _counter("retention_truncations", "Truncations by retention, by rule", "rule"),
            _counter("truncated_bytes", "Bytes truncated, by retention and by calls"),
            _counter("released_bytes", "Truncated bytes whose grace has ended"),
            _counter("undone_bytes", "Truncated bytes that an undo brought back"),
            _counter("evicted_bytes", "Unread bytes that a rule made subscribers skip"),
            _counter("dropped_subscribers", "Subscriptions that a rule ended"),
            _counter("subscriber_cuts", "Positions that subscribers acknowledged"),
            _counter("audit_entries", "Entries of the audit stream"),
            _counter("audit_entries_without_room", "Entries that were shortened for lack of room"),
            _counter("audit_unreadable_bytes", "Damaged bytes of the audit stream that were skipped"),
            _counter("erasures", "Erasures done"),
            _counter("erased_bytes", "Bytes blanked by erasures"),
            _counter("erasure_failures", "Failed steps of erasures; they are repeated"),
        ),
    ),
    Chapter(
        title="The store",
        metrics=(
            _of_store("disk_total_bytes", "Size of the disk below the data directory"),
            _of_store("disk_free_bytes", "Bytes that can still be written"),
            _of_store("disk_used_bytes", "What du counts for the data directory"),
            _of_store("disk_limit_seconds", "Time until the disk is full at the rate of the last hour of scrapes"),
            _of_store("holds", "Holds in force"),
            _of_store("erasures_open", "Erasures that are not done, by state", "state"),
            _of_store("erasure_cases", "Erasure cases that have not ended, by state", "state"),
            _of_store("erasure_cases_overdue", "Erasure cases that are not verified and past their due date"),
            _of_store("metric_sample_age_seconds", "Age of the sample of holds, erasures and streams"),
        ),
    ),
    Chapter(
        title="Streams, the largest ones and those named by --metrics-stream",
        metrics=(
            _of_store("stream_live_bytes", "Bytes that readers can read", "stream"),
            _of_store("stream_disk_bytes", "Bytes of the stream's files", "stream"),
            _of_store("stream_freed_bytes", "Bytes freed since the stream was created", "stream"),
            _of_store("stream_pending_bytes", "Truncated bytes still on disk, by reason", "stream", "why"),
            _of_store("stream_held_bytes", "Readable bytes by what keeps them", "stream", "kind", "holder"),
            _of_store("stream_oldest_seconds", "Age of the oldest recorded cut", "stream"),
            _of_store("stream_limit_seconds", "Time until a limit is reached at this hour's rate", "stream", "limit"),
            _of_store("subscriber_lag_bytes", "Bytes that the subscriber has not acknowledged", "stream", "subscriber"),
            _of_store("subscriber_lag_events", "Events it has not acknowledged", "stream", "subscriber"),
            _of_store("subscriber_lag_seconds", "Age of its oldest unread event", "stream", "subscriber"),
            _of_store("subscriber_held_bytes", "Bytes that only this subscriber keeps", "stream", "subscriber"),
            _of_store(
                "subscriber_idle_seconds", "Time since it made progress with data unread", "stream", "subscriber"
            ),
            _of_store(
                "subscriber_info",
                "Always 1; query: the id of the Spark query that reads, or empty",
                *("stream", "subscriber", "query"),
            ),
        ),
    ),
)

METRICS = {metric.name: metric for chapter in CATALOGUE for metric in chapter.metrics}
