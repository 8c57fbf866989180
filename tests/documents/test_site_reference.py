"""The site's reference of the blocking client: derived methods have the parameters and texts of their originals."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_derived_methods_are_described_as_their_originals(monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "scripts"), *sys.path])
    griffe = pytest.importorskip("griffe", reason="make docs installs what builds the site")
    from derived_calls import DerivedCalls

    package = griffe.load("penstock", search_paths=[ROOT / "src"], extensions=griffe.load_extensions(DerivedCalls))
    assert isinstance(package, griffe.Module)
    stores = package["client.blocking.stores"]
    for name in ("reader", "head"):
        method, original = stores["Stream"].functions[name], package["client.stream.AsyncStream"].functions[name]
        assert [item.name for item in method.parameters] == [item.name for item in original.parameters]
        assert method.docstring is not None
        assert method.docstring.value == original.docstring.value
