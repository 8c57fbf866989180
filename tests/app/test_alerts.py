"""Each alert of examples/monitoring fires in a live server for its cause, and only then."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
from alert_causes import causes, certificate_causes
from alert_rules import firing, load_rules

RULES = load_rules(Path(__file__).resolve().parents[2] / "examples" / "monitoring" / "alerts.yml")


@pytest.mark.slow
def test_each_cause_in_a_live_server_raises_its_alert_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: set[str] = set()
    for directory in (tmp_path / "plain", tmp_path / "tls"):
        directory.mkdir()
    for step, timeline in chain(
        causes(tmp_path / "plain", monkeypatch), certificate_causes(tmp_path / "tls", monkeypatch)
    ):
        assert (step.cause, firing(RULES, timeline.pages)) == (step.cause, set(step.expected))
        raised |= step.expected
    # A worker that is down: test_metrics_server.py.
    assert raised | {"PenstockWorkerDown"} == {rule.name for rule in RULES}
