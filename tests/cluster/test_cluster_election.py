"""One controller is active, and knows in time when it is not any more."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import pytest

from penstock.codec.store.cluster_nodes import LEADER, TERM, Term, decode_node
from penstock.model.errors import NodeNotFoundError, SessionEndedError, UnknownOutcomeError
from tests.cluster.cluster_kit import Candidate, boot_clock, new_cluster, until_leading
from tests.cluster.virtual_time import run_virtually


def test_one_leads_and_the_next_has_a_higher_term():
    async def main():
        coordinator = await new_cluster()
        one, other = Candidate(coordinator.open(), "one"), Candidate(coordinator.open(), "other")
        (first,) = await until_leading(one, other)
        await asyncio.sleep(60)
        second = other if first is one else one
        assert second.term is None
        assert first.term.term == 1
        first.stop.set()
        assert await first.task == "resigned"
        await until_leading(second)
        assert second.term.term == 2
        assert decode_node(Term, (await second.session.read(TERM)).data) == second.term
        second.stop.set()
        await second.task
        with pytest.raises(NodeNotFoundError):
            await second.session.read(LEADER)

    run_virtually(main())


def test_the_end_of_the_session_ends_the_block():
    async def main():
        coordinator = await new_cluster()
        one, other = Candidate(coordinator.open(), "one"), Candidate(coordinator.open(), "other")
        (first,) = await until_leading(one, other)
        coordinator.expire(first.session.session().id)
        with pytest.raises(SessionEndedError, match="may no longer be the active one"):
            await first.task
        second = other if first is one else one
        await until_leading(second)
        assert second.term.term == 2
        second.stop.set()
        await second.task

    run_virtually(main())


def test_the_end_of_the_lease_ends_the_block_though_the_session_seems_to_live():
    async def main():
        coordinator = await new_cluster()
        session = coordinator.open()
        real, end_s = session.session, math.inf
        session.session = lambda: replace(real(), lease_end_s=end_s)
        one = Candidate(session, "one")
        await until_leading(one)
        await asyncio.sleep(10)
        assert not one.task.done()
        end_s = boot_clock() + 3
        began = boot_clock()
        with pytest.raises(SessionEndedError):
            await one.task
        assert 3 <= boot_clock() - began <= 9

    run_virtually(main())


def test_a_cancelled_leader_frees_the_place_and_stays_cancelled():
    async def main():
        coordinator = await new_cluster()
        one = Candidate(coordinator.open(), "one")
        await until_leading(one)
        one.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one.task
        with pytest.raises(NodeNotFoundError):
            await coordinator.open().read(LEADER)

    run_virtually(main())


def test_an_election_whose_answer_was_lost_is_recognised():
    async def main():
        coordinator = await new_cluster()
        session = coordinator.open()
        real, lost = session.multi, 1

        async def multi(changes):
            nonlocal lost
            found = await real(changes)
            if lost:
                lost -= 1
                raise UnknownOutcomeError("no answer")
            return found

        session.multi = multi
        one = Candidate(session, "one")
        await until_leading(one)
        assert one.term.term == 1
        one.stop.set()
        await one.task

    run_virtually(main())
