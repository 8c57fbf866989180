"""A stream over a real store whose events are counted in bytes."""

from __future__ import annotations

from typing import Any

from controller_world import STREAM, config
from disks import Disks

from penstock.controller.controller import Controller
from penstock.model.retention import PolicyDocument, Retain

HEADER = 8


def keeping(**retain: Any) -> PolicyDocument:
    return PolicyDocument(retain=Retain(**retain))


async def left(controller: Controller) -> int:
    return (await controller.streams.describe(STREAM)).size_bytes


async def over_a_store(work: Any, count: int = 1) -> None:
    disks = Disks()
    async with disks.serving() as (store, controller):
        await controller.scopes.create("s")
        await controller.streams.create(STREAM, config(count))
        await work(store, controller, disks.clock)
