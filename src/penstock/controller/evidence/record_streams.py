"""The streams in which the store records its decisions: their creation and their policy.

Source: docs/formats/audit.md, docs/formats/erasure-feed.md.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeAlias

from penstock.codec.control.streams import ScopeRecord, StreamRecord
from penstock.controller import keys, retention_keys
from penstock.controller.metadata import Metadata, changing, overwrite, stored
from penstock.controller.settings import ControllerSettings
from penstock.model.names import SYSTEM_SCOPE, StreamName
from penstock.model.policies import RetentionPolicy, RetentionType, StreamConfig
from penstock.ports.data.tables import KEY_ABSENT

CreateStream: TypeAlias = Callable[[StreamName, StreamConfig], Awaitable[None]]
"""Creates an internal stream unless it exists."""


def record_policy(settings: ControllerSettings) -> RetentionPolicy:
    """The policy of such a stream unless the operator sets one: entries are kept that long, and no longer."""
    age_ms = settings.audit_max_age_ms
    return RetentionPolicy(type=RetentionType.TIME, minimum=age_ms, maximum=age_ms)


async def ensure_record_stream(
    metadata: Metadata, name: StreamName, create_stream: CreateStream, settings: ControllerSettings
) -> None:
    """Create the stream unless it exists, and apply the current settings to it. Repeatable. Raises as
    ``Metadata.put``."""
    (entry,) = await metadata.entries([keys.scope(SYSTEM_SCOPE)])
    if stored(entry, ScopeRecord).value is None:
        await metadata.put(overwrite(keys.scope(SYSTEM_SCOPE), ScopeRecord()))
    policy = record_policy(settings)
    await create_stream(name, StreamConfig(retention=policy))
    await changing(lambda: _keep_policy(metadata, name, policy))


async def _keep_policy(metadata: Metadata, name: StreamName, policy: RetentionPolicy) -> None:
    """Apply the policy, unless the operator has set one: an earlier process may have used other settings."""
    found = await metadata.get(keys.stream(name), StreamRecord)
    (chosen,) = await metadata.entries([retention_keys.record_policy(name)])
    record = found.value
    if record is None or chosen.version != KEY_ABSENT:
        return
    if record.config.retention != policy or record.policy is not None:
        changed = replace(record, config=replace(record.config, retention=policy), policy=None)
        await metadata.put(found.put(changed))
