"""A controller that signs, and the files of its keys."""

from contextlib import asynccontextmanager

from controller_world import QUIET

from penstock.app.telemetry import Counters
from penstock.controller.controller import open_controller
from penstock.ports.control.layout import Endpoint
from penstock.storage.machine.signing_keys import DIRECTORY, FileSigningKeys
from penstock.testing.fakes import FakeClock, SeededRng


@asynccontextmanager
async def signing(segments, data, clock=None, keys=None):
    clock = clock or FakeClock()
    segments.now_ms = clock.now_ms
    async with open_controller(
        segments,
        clock,
        SeededRng(7),
        lambda _: Endpoint(host="here", port=1),
        Counters(),
        QUIET,
        steady=clock.passed_s,
        signing=keys or FileSigningKeys(data),
    ) as controller:
        yield controller


def key_files(data):
    return sorted((data / DIRECTORY).glob("*"))
