"""Subscribers of a stream whose policy was a mistake."""

from __future__ import annotations

from controller_world import GROUP_ID, STREAM, cut_at, seg

from penstock.controller.controller import Controller
from penstock.model.policies import ReaderGroupRetention
from penstock.model.retention import PolicyDocument, Retain
from penstock.ports.control.groups import ReaderGroupConfig

ONE = seg(0, 0)
CORRECT = PolicyDocument(retain=Retain(min_bytes=0), grace_s=3600)


async def subscribed(controller: Controller, name: str, at: int) -> None:
    config = ReaderGroupConfig(
        scope="s", name=name, id=GROUP_ID, retention=ReaderGroupRetention.MANUAL, start_cuts={STREAM: cut_at({ONE: at})}
    )
    await controller.groups.create(config)
