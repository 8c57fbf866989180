"""Policies of namespaces and topics: retention, time-to-live, backlog quotas, idleness, persistence.

They are the store's own policy documents, of the scope and of the stream. The facade also keeps each body as it was
sent, and returns it as long as the document still has the same values. Source: docs/reference/pulsar-admin.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from penstock.core.policies.levels import resolve
from penstock.core.policies.locks import with_lock_of
from penstock.model.errors import InvalidArgumentError, ScopeNotFoundError, StreamNotFoundError
from penstock.model.names import StreamName
from penstock.model.retention import (
    EMPTY,
    INHERIT,
    Backlog,
    EffectivePolicy,
    Inherit,
    OnExceed,
    PolicyDocument,
    Unsubscribed,
)
from penstock.model.values.dataclass import dataclass
from penstock.net.http.pulsar.bodies import (
    INACTIVE_DEFAULT,
    AdminError,
    Inactive,
    Quota,
    Retention,
    backlog_of,
    conflicts,
    idle_of,
    inactive_of,
    inactive_of_body,
    no_retain,
    number_of_limit,
    quotas_of,
    read_quota,
    refuse_quota,
    refuse_retention,
    retain_of,
    retention_of,
    with_action,
)
from penstock.net.http.pulsar.context import RELEASED, Admin, Topic, closed
from penstock.net.http.pulsar.global_policies import BEFORE, GLOBAL, global_document, joined, split, with_global
from penstock.net.http.pulsar.names import NamespaceName
from penstock.net.http.pulsar.records import Record, namespace_key, topic_key

_Value = TypeVar("_Value")
NO_RETENTION = Retention(0, 0)
NO_NAMESPACE = "Namespace policies does not exist"


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A namespace or a topic that has policies. ``is_global``: the level of a topic's global policies."""

    target: StreamName | str
    key: bytes
    namespace: NamespaceName
    topic: Topic | None = None
    is_global: bool = False

    @property
    def word(self) -> str:
        return "namespace" if self.topic is None else "topic"


def namespace_level(namespace: NamespaceName) -> Level:
    return Level(target=namespace.scope, key=namespace_key(namespace), namespace=namespace)


def topic_level(topic: Topic, *, is_global: bool = False) -> Level:
    return Level(
        target=topic.stream,
        key=topic_key(topic.name),
        namespace=topic.name.namespace,
        topic=topic,
        is_global=is_global,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """The current state of a level: its document, its record in this API, and the policy that results with the levels
    above."""

    document: PolicyDocument
    record: Record
    applied: EffectivePolicy

    @property
    def made_here(self) -> bool:
        """Whether it is a namespace that was created through this API, and so has Pulsar's defaults."""
        return self.record.get("pulsar") is True

    @property
    def retention(self) -> Retention | None:
        """As it was sent, while the document has the same values; else in minutes and MiB, rounded up; None if
        unset."""
        given = self.record.get("retention")
        retain = self.document.retain
        if given is not None:
            kept = Retention(given["retentionTimeInMinutes"], given["retentionSizeInMB"])
            if retain_of(kept, retain) == retain:
                return kept
        elif (
            self.made_here
            and replace(RELEASED.retain, max_bytes=retain.max_bytes, max_age_s=retain.max_age_s) == retain
        ):
            return None
        return retention_of(retain)

    @property
    def quotas(self) -> dict[str, Quota]:
        """The quotas by type, each with the action in force: as they were set through this API if the document still
        has those limits, else from the document."""
        given = {kind: read_quota(body) for kind, body in self.record.get("quotas", {}).items()}
        backlog = self.document.backlog
        said = self.written(replace(self.document, backlog=backlog_of(given, backlog))).backlog
        if (said.max_bytes, said.max_age_s) == (backlog.max_bytes, backlog.max_age_s):
            return {kind: with_action(kind, quota, self.applied) for kind, quota in given.items()}
        return quotas_of(backlog, self.applied)

    @property
    def ttl_s(self) -> int | None:
        return self._number("ttl", self.document.backlog.ttl_s, 1)

    @property
    def expiration_min(self) -> int | None:
        return self._number("subscription_expiration", self.document.idle.subscriber_s, 60)

    def _number(self, name: str, limit: Any, unit: int) -> int | None:
        given = self.record.get(name)
        if given is not None and limit == (given * unit or None):
            return int(given)
        if given is None and limit is None and self.made_here:
            return None
        return number_of_limit(limit, unit)

    @property
    def inactive(self) -> Inactive | None:
        given = self.record.get("inactive")
        idle = self.document.idle
        if given is not None:
            kept = inactive_of_body(given)
            if idle_of(kept, idle) == idle:
                return kept
        default = RELEASED.idle
        if self.made_here and (idle.stream_s, idle.stream_when) == (default.stream_s, default.stream_when):
            return None
        return inactive_of(idle)

    def written(self, document: PolicyDocument) -> PolicyDocument:
        """The document to write at this level: one of a namespace created here leaves nothing to the server."""
        return closed(document) if self.made_here else document

    @property
    def persistence(self) -> Mapping[str, Any] | None:
        return self.record.get("persistence")


class Policies:
    """Reads and changes the policies of levels."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    async def get(self, level: Level, missing: str = "Namespace does not exist") -> Stored:
        """Raises AdminError 404."""
        if level.topic is None:
            await self._admin.check_namespace(level.namespace, missing)
        try:
            document = await self._admin.controller.policies.get(level.target)
        except StreamNotFoundError as error:
            raise AdminError(404, f"Topic {level.topic} not found") from error
        except ScopeNotFoundError as error:
            raise AdminError(404, missing) from error
        record = await self._admin.records.get(level.key) or {}
        if level.topic is not None:
            own, beneath, bodies = split(document, record)
            document, record = (beneath, bodies) if level.is_global else (own, record)
        return Stored(document=document, record=record, applied=await self._applied(level, document))

    async def _from(self, level: Level) -> list[Stored]:
        """The level and those that apply if it sets nothing: for a topic its own, the global one, the namespace."""
        found = [await self.get(level, NO_NAMESPACE if level.topic is None else "")]
        if level.topic is not None:
            if not level.is_global:
                found.append(await self.get(topic_level(level.topic, is_global=True)))
            found.append(await self.get(namespace_level(level.namespace)))
        return found

    async def _applied(self, level: Level, document: PolicyDocument) -> EffectivePolicy:
        """The policy that results from the document. The levels above are loaded only if they decide the action of a
        quota."""
        backlog = document.backlog
        open_ended = isinstance(backlog.on_exceed, Inherit) and (
            (backlog.max_bytes is not INHERIT and backlog.on_exceed_bytes is INHERIT)
            or (backlog.max_age_s is not INHERIT and backlog.on_exceed_age is INHERIT)
        )
        if not open_ended:
            return resolve(document, EMPTY, EMPTY)
        controller = self._admin.controller
        above = EMPTY if level.topic is None else await controller.policies.get(level.namespace.scope)
        return resolve(document, above, await controller.policies.get(None))

    async def _change(
        self,
        level: Level,
        change: Callable[[Stored], PolicyDocument],
        note: Callable[[Record], Record],
        *,
        missing: str = NO_NAMESPACE,
    ) -> None:
        """Replace the document, then the record of it: after a crash in between, the document counts."""
        async with self._admin.lock(f"policy/{level.target}"):
            if level.topic is not None:
                with suppress(AdminError):  # An unfinished change that cannot be completed is dropped.
                    await self._finish_global(level)
            stored = await self.get(level, missing)
            changed = stored.written(change(stored))
            records = self._admin.records
            if level.is_global:
                after = note(stored.record)
                await records.change(level.key, lambda record: {**with_global(record, after), BEFORE: stored.record})
                await self._finish_global(level)
                return
            if level.topic is not None:
                beneath = await self.get(replace(level, is_global=True))
                changed = joined(changed, beneath.document)
            await self._write(level, changed)
            await records.change(level.key, note)

    async def _write(self, level: Level, document: PolicyDocument) -> None:
        """Replace the whole document. Raises AdminError 400."""
        controller = self._admin.controller
        now = await controller.policies.get(level.target)
        document = with_lock_of(document, now)
        if document == now:
            return
        try:
            await controller.policies.set(level.target, document)
        except InvalidArgumentError as error:
            raise AdminError(400, str(error)) from error

    async def _finish_global(self, level: Level) -> None:
        """Complete a change of global policies, if one is unfinished: write the record's global policies to the document.

        Until this is done, the record also has the earlier ones, so after a crash it still shows which policies of the
        document are global. Raises AdminError 400; then the earlier global policies apply again.
        """
        records = self._admin.records
        record = await records.get(level.key) or {}
        if BEFORE not in record:
            return
        own, *_ = split(await self._admin.controller.policies.get(level.target), record)
        try:
            await self._write(level, joined(own, global_document(record.get(GLOBAL, {}))))
        except AdminError:
            await records.change(level.key, lambda now: with_global(now, now.get(BEFORE, {})))
            raise
        await records.change(level.key, lambda now: with_global(now, now.get(GLOBAL, {})))

    # --- retention -----------------------------------------------------------------------------------------

    async def set_retention(self, level: Level, retention: Retention | None) -> None:
        """None: removed. Raises AdminError 404 and 412."""
        stored = await self.get(level, NO_NAMESPACE)
        if retention is not None:
            for quota in await self._quotas_against(level, stored):
                if conflicts(retention, quota):
                    raise refuse_retention(level.word)

        def change(now: Stored) -> PolicyDocument:
            before = now.document.retain
            if retention is not None:
                retain = retain_of(retention, before)
                return replace(now.document, retain=retain, unsubscribed=Unsubscribed.RELEASE)
            if now.made_here and level.topic is None:
                retain = replace(RELEASED.retain, max_bytes=before.max_bytes, max_age_s=before.max_age_s)
                return replace(now.document, retain=retain, unsubscribed=Unsubscribed.RELEASE)
            return replace(now.document, retain=no_retain(before), unsubscribed=INHERIT)

        await self._change(level, change, _noting("retention", None if retention is None else retention.to_json()))

    async def _quotas_against(self, level: Level, stored: Stored) -> list[Quota]:
        """The quotas that a new retention of the level is compared with: for a namespace its size quota, for a topic
        both quotas that apply to it."""
        if level.topic is None:
            size = stored.quotas.get("destination_storage")
            return [] if size is None else [size]
        applied: dict[str, Quota] = {}
        for item in reversed(await self._from(level)):
            applied |= item.quotas
        return list(applied.values())

    # --- quotas --------------------------------------------------------------------------------------------

    async def set_quota(self, level: Level, kind: str, quota: Quota | None) -> None:
        """None: removed. Raises AdminError 404 and 412."""
        missing = "" if level.topic is None else NO_NAMESPACE
        stored = await self.get(level, missing)
        if quota is not None and conflicts(await self._retention_against(level, kind, stored), quota):
            raise refuse_quota(level.word)

        def quotas(now: Mapping[str, Quota]) -> dict[str, Quota]:
            kept = {name: item for name, item in now.items() if name != kind}
            return kept if quota is None else {**kept, kind: quota}

        decided: dict[str, Quota] = {}

        def change(now: Stored) -> PolicyDocument:
            decided.clear()
            decided.update(quotas(now.quotas))
            return replace(now.document, backlog=backlog_of(decided, _without_shared_action(now)))

        def note(record: Record) -> Record:
            bodies = {name: item.to_json() for name, item in decided.items()}
            return _noting("quotas", bodies or None)(record)

        await self._change(level, change, note, missing=missing)

    async def _retention_against(self, level: Level, kind: str, stored: Stored) -> Retention | None:
        """The retention that a new quota of the level is compared with: none for an age quota of a namespace."""
        if level.topic is None:
            return stored.retention if kind == "destination_storage" else None
        return next((found for item in await self._from(level) if (found := item.retention) is not None), None)

    # --- other policies ------------------------------------------------------------------------------------------

    async def set_ttl(self, level: Level, seconds: int | None) -> None:
        """None: removed. 0: no time-to-live, whatever the next level sets. Raises AdminError 404 and 412."""
        if seconds is not None and seconds < 0:
            raise AdminError(412, f"Invalid value for message TTL: {seconds}")
        ttl = INHERIT if seconds is None else seconds or None

        def change(now: Stored) -> PolicyDocument:
            return replace(now.document, backlog=replace(now.document.backlog, ttl_s=ttl))

        await self._change(level, change, _noting("ttl", seconds))

    async def set_expiration(self, level: Level, minutes: int | None) -> None:
        """As ``set_ttl``, for idle subscriptions."""
        if minutes is not None and minutes < 0:
            raise AdminError(412, f"Invalid value for subscription expiration time: {minutes}")
        idle_s = INHERIT if minutes is None else minutes * 60 or None

        def change(now: Stored) -> PolicyDocument:
            return replace(now.document, idle=replace(now.document.idle, subscriber_s=idle_s))

        await self._change(level, change, _noting("subscription_expiration", minutes))

    async def set_inactive(self, level: Level, inactive: Inactive | None) -> None:
        """None: removed. Raises AdminError 404."""

        def change(now: Stored) -> PolicyDocument:
            return replace(now.document, idle=idle_of(inactive, now.document.idle))

        await self._change(level, change, _noting("inactive", None if inactive is None else inactive.to_json()))

    async def set_persistence(self, level: Level, body: Mapping[str, Any] | None) -> None:
        """Recorded and returned, but without effect on how data is stored here. Raises AdminError 404."""
        await self._change(level, lambda now: now.document, _noting("persistence", body))

    # --- applied -------------------------------------------------------------------------------------------

    async def applied(self, level: Level) -> dict[str, Any]:
        """Each policy that applies to a topic: its own, else the global one, else the namespace's, else a broker's
        default. For the level of global policies: as it would apply to a topic without its own."""
        levels = await self._from(level)
        # As the broker answers: the map of the first level that has one. The limits in force are merged by type.
        quotas = next((item.quotas for item in levels if item.quotas), dict(_UNLIMITED))
        if level.topic is not None and not level.is_global and quotas != _UNLIMITED:
            effective = await self._admin.controller.policies.effective(level.topic.stream)
            quotas = {kind: with_action(kind, quota, effective) for kind, quota in quotas.items()}
        return {
            "retention": _first([item.retention for item in levels], NO_RETENTION).to_json(),
            "messageTTL": _first([item.ttl_s for item in levels], 0),
            "subscriptionExpirationTime": _first([item.expiration_min for item in levels], 0),
            "inactiveTopicPolicies": _first([item.inactive for item in levels], INACTIVE_DEFAULT).to_json(),
            "persistence": _first([item.persistence for item in levels], PERSISTENCE_DEFAULT),
            "backlogQuotaMap": {kind: quota.to_json() for kind, quota in quotas.items()},
        }


def _without_shared_action(stored: Stored) -> Backlog:
    """The backlog limits without ``on_exceed``, which earlier versions wrote as the action of all Pulsar quotas."""
    backlog = stored.document.backlog
    own = (backlog.on_exceed_bytes, backlog.on_exceed_age)
    if not stored.record.get("quotas") or any(isinstance(action, OnExceed) for action in own):
        return backlog
    events = backlog.on_exceed_events
    if backlog.max_events is not INHERIT and events is INHERIT:
        events = backlog.on_exceed
    return replace(backlog, on_exceed=INHERIT, on_exceed_events=events)


def _first(values: Sequence[_Value | None], default: _Value) -> _Value:
    return next((value for value in values if value is not None), default)


def _noting(name: str, body: Any) -> Callable[[Record], Record]:
    def note(record: Record) -> Record:
        kept = {key: value for key, value in record.items() if key != name}
        return kept if body is None else {**kept, name: body}

    return note


PERSISTENCE_DEFAULT: Mapping[str, Any] = {
    "bookkeeperEnsemble": 1,
    "bookkeeperWriteQuorum": 1,
    "bookkeeperAckQuorum": 1,
    "managedLedgerMaxMarkDeleteRate": 1.0,
}
_UNLIMITED: Mapping[str, Quota] = {
    "destination_storage": Quota(-1, -1, "producer_request_hold"),
    "message_age": Quota(-1, -1, "producer_request_hold"),
}
