"""Streams in which some events hold a secret."""

from __future__ import annotations

SECRET = b"canary-7f3a"


def files_with(directory, needle=SECRET):
    return [str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file() and needle in p.read_bytes()]


def fill(stream, count=3000, start=0):
    with stream.writer() as writer:
        for number in range(start, start + count):
            writer.write((SECRET if number % 7 == 3 else b"plain") + b" %d" % number, key=str(number % 50))


def events_of(stream):
    with stream.reader(until_tail=True) as reader:
        return list(reader)


def hits_of(events):
    return [event for event in events if event.data.startswith(SECRET)]
