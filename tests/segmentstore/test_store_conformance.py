"""The real store keeps the laws of its port, whatever it tiers, forgets and recovers between two calls."""

from __future__ import annotations

import pytest
from store_laws import StoreLaws

from penstock.testing.conformance import laws, run_conformance
from penstock.testing.conformance.erasure import ErasureLaws
from penstock.testing.conformance.segments import SegmentLaws


@pytest.mark.parametrize("reopening", ["restart", "blackout"])
@pytest.mark.parametrize("what", ["nothing", "flush", "checkpoint", "evict"])
@pytest.mark.parametrize("law", [*laws(SegmentLaws), *laws(ErasureLaws)])
def test_laws_of_segments(law: str, what: str, reopening: str) -> None:
    run_conformance(lambda: StoreLaws(what, reopening, flush_bytes=30, chunk_bytes=100, free_head_bytes=1), law=law)
