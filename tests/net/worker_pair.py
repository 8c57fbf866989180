"""Both ends of a line between server and worker."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager

from penstock.net.workers.link import open_link


@asynccontextmanager
async def pair(handlers, takers=None, may_answer=None):
    """The asking end and the answering one."""
    ours, theirs = socket.socketpair()
    far = await open_link(theirs, name="far", handlers=handlers, takers=takers, may_answer=may_answer)
    near = await open_link(ours, name="near", handlers={"echo": echo})
    try:
        yield near, far
    finally:
        for link in (near, far):
            link.close()
        await asyncio.wait([near.closed, far.closed])


async def echo(*arguments):
    return list(arguments)
