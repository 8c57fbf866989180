"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# A law holds on a busy machine too: how long an example takes is none of a test's business.
settings.register_profile("laws", deadline=None, max_examples=50)
settings.register_profile("long", deadline=None, max_examples=1000)
settings.load_profile("laws")
