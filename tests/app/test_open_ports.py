"""A server without protection repeats its warning every hour, and shows for how long."""

import asyncio
import logging

import pytest

from penstock.app.access.open_ports import OpenPorts
from penstock.testing.fakes import START_MS, FakeClock
from penstock.testing.simulation.machine.loop import SimLoop

MISSING = ("TLS is missing", "authentication is missing")


class LoopClock(FakeClock):
    """Wall time that passes with the loop's."""

    def now_ms(self):
        return START_MS + round(asyncio.get_running_loop().time() * 1000)


def run_for(hours, missing):
    """The lines for the console and the health after that time."""
    shown = []

    async def main():
        async with OpenPorts("10.0.0.1", missing, clock=LoopClock(), show_warning=shown.append) as ports:
            await asyncio.sleep(hours * 3600)
            text = ports.text()
        await asyncio.sleep(7200)  # after the block nothing is said
        return text

    loop = SimLoop(1)
    try:
        return shown, loop.run(main())
    finally:
        loop.close()


@pytest.mark.parametrize(("hours", "lines"), [(0.5, 1), (1.5, 2), (24.5, 25)])
def test_open_ports_cause_a_warning_at_the_start_and_every_hour(hours, lines, caplog):
    with caplog.at_level(logging.WARNING):
        shown, _ = run_for(hours, MISSING)
    assert len(shown) == lines
    assert all("TLS is missing and authentication is missing" in line for line in shown)
    logged = [record for record in caplog.records if "not protected" in record.message]
    assert [record.missing for record in logged] == ["; ".join(MISSING)] * lines


def test_health_shows_how_long_protection_has_been_missing():
    assert (
        run_for(0.5, MISSING)[1]
        == "other machines can reach 10.0.0.1, and TLS is missing and authentication is missing"
    )
    assert run_for(1.5, MISSING)[1].endswith("authentication is missing, for 1 hour now")
    assert run_for(24.5, MISSING)[1].endswith("authentication is missing, for 24 hours now")


def test_a_protected_server_does_not_warn(caplog):
    with caplog.at_level(logging.WARNING):
        assert run_for(3, ()) == ([], None)
    assert not [record for record in caplog.records if record.name.startswith("penstock")]
