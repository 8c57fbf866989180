"""A log on a simulated disk that crashes at a chosen write."""

import asyncio

from penstock.storage.log.limits import LogLimits
from penstock.storage.log.local_log import LocalLog
from penstock.testing.simulation.machine.files import SimFiles

LIMITS = LogLimits(segment_bytes=16 << 10, budget_bytes=160 << 10, max_frame_bytes=8 << 10)


def crash_at_write(disk, *, power, matches):
    """Kill the process with the first write to a path that ``matches``, before its sync."""
    hit = asyncio.get_running_loop().create_future()

    def written(path):
        if matches(path) and not hit.done():
            disk.on_write = None
            disk.crash(power=power)
            hit.set_result(path)

    disk.on_write = written
    return hit


async def ended(*tasks):
    """What the dead process had begun ends, too late to change anything."""
    own = asyncio.current_task()
    while left := [task for task in (*tasks, *asyncio.all_tasks()) if task is not own and not task.done()]:
        for task in left:
            task.cancel()
        for task in (await asyncio.wait(left))[0]:
            if not task.cancelled():
                task.exception()  # It died with its node.


async def opened(disk, limits=LIMITS):
    log = await LocalLog.open(SimFiles(disk), limits=limits)
    return log, [frame async for _, frame in log.replay()]
