"""What the first active controller does after a rebuild that has lost the end of a log.

Containers are then recovered up to different times, so streams can name segments that are lost. And positions that
clients remember could be given to other events. So missing segments are created, and all streams move to new segments,
as after the restore of a backup. Source: docs/design/0023-backup.md, docs/design/0065-cluster.md, "Rebuild".
"""

from __future__ import annotations

import logging

from penstock.app.cluster.lines import ContainerLines
from penstock.app.integrity.reconcile import Reconciled, reconcile_segments
from penstock.codec.store.cluster_nodes import RESTORED, Restored, decode_node
from penstock.controller.controller import Controller
from penstock.model.errors import NodeNotFoundError, UnavailableError
from penstock.ports.cluster.coordination import Coordination

log = logging.getLogger(__name__)


async def begin_after_rebuild(coordination: Coordination, lines: ContainerLines) -> Restored | None:
    """If a rebuild has lost something, make streams and segments consistent, before the controller opens. None: there is
    nothing to do. A crash leaves the rest to the next active controller.

    Raises UnavailableError (a container is not served), CorruptDataError (the node is damaged), and what the segments raise.
    """
    try:
        restored = decode_node(Restored, (await coordination.read(RESTORED)).data)
    except NodeNotFoundError:
        return None
    away = lines.away()
    if away is not None:
        raise UnavailableError("a rebuilt cluster starts only once all containers are served", reason=away)
    found = Reconciled()
    await reconcile_segments(lines.segments, found)
    for sentence in found.made:
        log.warning("rebuilt cluster: %s", sentence)
    for sentence in found.unreadable:
        log.error("rebuilt cluster: cannot be read: %s", sentence)
    return restored


async def end_after_rebuild(coordination: Coordination, controller: Controller, restored: Restored) -> None:
    """Move all streams to new segments, and delete the node. Serve no client before this returns."""
    streams = await controller.begin_restored(restored.jump)
    await coordination.delete(RESTORED, (await coordination.read(RESTORED)).version)
    log.warning("rebuilt cluster continues in new segments", extra={"streams": streams, "jump": restored.jump})
