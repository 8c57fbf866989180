"""Erasures that run at the same time over the same chunks: each receipt can be verified, in any order."""

from __future__ import annotations

import threading

import pytest
from erasure_events import SECRET, events_of, files_with, fill, hits_of

import penstock

_ERASURES = 6


@pytest.mark.parametrize("repetition", range(2))
def test_each_of_several_erasures_at_once_can_be_verified(tmp_path, repetition):
    data = tmp_path / "data"
    with penstock.open(data) as store:
        stream = store.create_stream("s/t", segments=2, create_scope=True)
        fill(stream, 1200)
        hits = hits_of(events_of(stream))
        start, errors = threading.Barrier(_ERASURES), []

        def erase(number):
            try:
                start.wait()
                # Every chunk holds events of all erasures.
                stream.erase(hits[number::_ERASURES], who="ann", why="a request", erasure=f"e{number}")
            except penstock.PenstockError as error:
                errors.append(error)

        threads = [threading.Thread(target=erase, args=(number,)) for number in range(_ERASURES)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert hits_of(events_of(stream)) == []
        assert files_with(data, SECRET) == []
        for number in (*range(_ERASURES), *reversed(range(_ERASURES))):
            found = store.erasures().verify(f"e{number}")
            assert found.problems == [], number
    with penstock.open(data) as store:
        for number in range(_ERASURES):
            assert store.erasures().verify(f"e{number}").problems == [], number
