"""For stores in tests that know only single appends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from penstock.model.errors import PenstockError
from penstock.ports.data.direct_appends import AppendsDone, FrameAppend
from penstock.ports.data.segments import Append, AppendDone, Appended


class AppendsOneByOne:
    """``submit_appends`` by ``submit_append``."""

    def submit_append(self, request: Append, done: AppendDone) -> None:
        raise NotImplementedError

    def submit_appends(self, appends: Sequence[FrameAppend], done: AppendsDone) -> None:
        for place, (segment, writer, data, number, count, previous) in enumerate(appends):
            request = Append(
                segment=segment, writer=writer, data=data, event_number=number, event_count=count, previous=previous
            )
            self.submit_append(request, partial(_answer, done, place))


def _answer(done: AppendsDone, place: int, outcome: Appended | PenstockError) -> None:
    done((place,), (outcome.end_offset,) if isinstance(outcome, Appended) else outcome)
