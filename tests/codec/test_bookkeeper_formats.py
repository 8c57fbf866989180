"""BookKeeper's bytes: what its Java client sent and stored, and every cut and flipped bit of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec import bookie, ledger_metadata
from penstock.codec.bookie import Code, Entry, Operation
from penstock.codec.ledger_metadata import Ensemble, LedgerMetadata, LedgerState, Registration
from penstock.model.errors import (
    CorruptDataError,
    InvalidArgumentError,
    ProtocolError,
    VersionTooNewError,
)

GOLDEN = json.loads((Path(__file__).parent / "bookkeeper_golden.json").read_text())
FRAMES = {name: bytes.fromhex(text) for name, text in GOLDEN["frames"].items()}
DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "bookkeeper.md"
KEY = bookie.master_key(b"")
LEDGERS = st.integers(0, (1 << 63) - 1)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
BIGGER = LedgerMetadata(
    write_quorum=3,
    ack_quorum=2,
    created_ms=1700000000123,
    custom=(("application", b"penstock"), ("container", bytes([0, 200, 34, 92]))),
    token=0x1234567890ABCDEF,
    ensembles=(Ensemble(first_entry=0, bookies=("127.0.0.1:3181", "b-2", "b-3")),),
)


def of_state(name: str) -> LedgerMetadata:
    fields = {field: getattr(BIGGER, field) for field in LedgerMetadata.__dataclass_fields__}
    if name == "closed":
        fields |= {"state": LedgerState.CLOSED, "last_entry": 41, "length_bytes": 1 << 33}
    elif name == "in recovery":
        changed = Ensemble(first_entry=12, bookies=("127.0.0.1:3181", "b-4", "b-3"))
        fields |= {
            "state": LedgerState.IN_RECOVERY,
            "password": b'p"w\n\x01',
            "ensembles": (*BIGGER.ensembles, changed),
        }
    return LedgerMetadata(**fields)


def payload_of(frame: bytes) -> bytes:
    [one] = bookie.take_frames(bytearray(frame))
    return one


def entry_of(ledger: int, number: int, size: int, *, confirmed: int = -1) -> Entry:
    """As JavaLedgers.java fills it."""
    return Entry(
        ledger=ledger,
        entry=number,
        confirmed=confirmed,
        length_bytes=size * (number + 1),
        payload=bytes([number]) * size,
    )


def test_requests_are_those_of_the_java_client() -> None:
    first, second = entry_of(0, 0, 5), entry_of(0, 1, 5)
    expected = {
        "add": b"".join(bookie.encode_add(bookie.encode_entry(first), key=KEY)),
        "add with a payload": b"".join(bookie.encode_add(bookie.encode_entry(second), key=KEY)),
        "read": bookie.encode_read(0, 1),
        "batch read": bookie.encode_batch_read(0, 0, request_id=1, entries_max=100, size_max_bytes=1 << 20),
        "fencing read of the last entry": bookie.encode_read(1, bookie.LAST_ENTRY, fence_key=KEY),
        "recovery read": bookie.encode_read(1, 0, fence_key=KEY, flags=bookie.HIGH_PRIORITY),
        "recovery read of a missing entry": bookie.encode_read(1, 2, fence_key=KEY, flags=bookie.HIGH_PRIORITY),
        "recovery add": b"".join(
            bookie.encode_add(
                bookie.encode_entry(entry_of(1, 0, 9)), key=KEY, flags=bookie.RECOVERY_ADD | bookie.HIGH_PRIORITY
            )
        ),
        "auth request": bookie.encode_auth("TestPlugin", b"\x01\x02\xff"),
    }
    assert expected == {name: FRAMES[name] for name in expected}


def test_answers_of_real_bookies_are_understood() -> None:
    add = bookie.decode_answer(payload_of(FRAMES["add answered"]))
    assert (add.operation, add.code, add.ledger, add.entry, bytes(add.body)) == (Operation.ADD, Code.OK, 0, 0, b"")
    read = bookie.decode_answer(payload_of(FRAMES["read answered"]))
    assert bookie.decode_entry(read.body, ledger=0, entry=1) == entry_of(0, 1, 5)
    last = bookie.decode_answer(payload_of(FRAMES["fencing read of the last entry answered"]))
    assert last.entry == bookie.LAST_ENTRY
    assert bookie.decode_entry(last.body, ledger=1) == entry_of(1, 1, 9)
    missing = bookie.decode_answer(payload_of(FRAMES["recovery read of a missing entry answered"]))
    assert (missing.code, missing.ledger, missing.entry) == (Code.NO_ENTRY, 1, 2)
    batch = bookie.decode_answer(payload_of(FRAMES["batch read answered"]))
    request, entries = bookie.entries_of_batch(batch)
    assert (request, batch.code) == (1, Code.OK)
    assert [bookie.decode_entry(one, ledger=0) for one in entries] == [entry_of(0, number, 5) for number in range(3)]
    auth = bookie.decode_answer(payload_of(FRAMES["auth response"]))
    assert bookie.decode_auth(auth.body) == ("TestPlugin", b"\x01\x02\xff")


@pytest.mark.parametrize("name", [name for name in FRAMES if "answered" in name])
def test_our_bookie_answers_as_the_real_one(name: str) -> None:
    request = bookie.decode_request(payload_of(FRAMES[name.removesuffix(" answered")]))
    real = bookie.decode_answer(payload_of(FRAMES[name]))
    body = list(bookie.entries_of_batch(real)[1]) if request.operation is Operation.BATCH_READ else [real.body]
    if (request.ledger, request.entry) == (real.ledger, real.entry):
        assert b"".join(bookie.encode_answer(request, real.code, body)) == FRAMES[name]


@pytest.mark.parametrize("name", FRAMES)
def test_cut_frames_wait_and_cut_bodies_are_refused(name: str) -> None:
    frame = FRAMES[name]
    for size in range(len(frame)):
        buffer = bytearray(frame[:size])
        assert bookie.take_frames(buffer) == []
        assert bytes(buffer) == frame[:size]
    body = payload_of(frame)
    for size in range(len(body)):
        try:
            answer = bookie.decode_answer(body[:size])
            if answer.operation == Operation.BATCH_READ:
                bookie.entries_of_batch(answer)
            bookie.decode_request(body[:size])
        except ProtocolError:
            continue


@given(data=st.binary(max_size=80))
def test_any_bytes_are_a_frame_or_a_protocol_error(data: bytes) -> None:
    for decode in (bookie.decode_answer, bookie.decode_request, bookie.decode_auth):
        for prefix in (b"", bytes([2, *data[:1], 0, 0])):
            try:
                decode(prefix + data)
            except ProtocolError:
                continue


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.lists(st.integers(1, 40), max_size=20),
)
def test_frames_are_the_same_however_they_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(bookie.LENGTH.pack(len(body)) + body for body in bodies)
    buffer, found = bytearray(), []
    for cut in [*cuts, len(stream)]:
        buffer += stream[:cut]
        stream = stream[cut:]
        found += bookie.take_frames(buffer)
    assert found == bodies
    assert not buffer


def test_a_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        bookie.take_frames(bytearray(bookie.LENGTH.pack(bookie.FRAME_MAX_BYTES + 1)))


@given(ledger=LEDGERS, number=LEDGERS, confirmed=NUMBERS, length=NUMBERS, payload=st.binary(max_size=200))
def test_an_entry_is_read_as_it_was_written(
    ledger: int, number: int, confirmed: int, length: int, payload: bytes
) -> None:
    entry = Entry(ledger=ledger, entry=number, confirmed=confirmed, length_bytes=length, payload=payload)
    data = b"".join(bookie.encode_entry(entry))
    assert bookie.decode_entry(data, ledger=ledger, entry=number) == entry
    request = bookie.decode_request(payload_of(b"".join(bookie.encode_add([data], key=KEY, flags=2))))
    assert (request.ledger, request.entry, request.key, request.flags) == (ledger, number, KEY, 2)
    assert request.entry_bytes == data


def test_an_entry_with_any_flipped_bit_is_refused() -> None:
    data = b"".join(bookie.encode_entry(entry_of(7, 3, 5, confirmed=2)))
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptDataError):
            bookie.decode_entry(damaged, ledger=7, entry=3)
    for ledger, number in ((8, 3), (7, 4)):
        with pytest.raises(CorruptDataError, match="not the one"):
            bookie.decode_entry(data, ledger=ledger, entry=number)


@pytest.mark.parametrize("name", ["open", "in recovery", "closed"])
def test_metadata_are_those_of_the_java_client(name: str) -> None:
    data = bytes.fromhex(GOLDEN["metadata"][f"3 {name}"])
    assert ledger_metadata.encode_ledger_metadata(of_state(name)) == data
    assert ledger_metadata.decode_ledger_metadata(data, ledger=77) == of_state(name)


@pytest.mark.parametrize("name", ["open", "in recovery", "closed"])
def test_metadata_of_version_2_are_read(name: str) -> None:
    found = ledger_metadata.decode_ledger_metadata(bytes.fromhex(GOLDEN["metadata"][f"2 {name}"]), ledger=77)
    expected = of_state(name)
    assert (found.state, found.last_entry, found.length_bytes) == (
        expected.state,
        expected.last_entry,
        expected.length_bytes,
    )
    assert (found.ensembles, found.password, found.custom) == (expected.ensembles, expected.password, expected.custom)
    assert found.digest == ledger_metadata.CRC32C


def test_a_node_of_the_java_client_is_written_back_unchanged() -> None:
    data = bytes.fromhex(GOLDEN["metadata"]["written"])
    found = ledger_metadata.decode_ledger_metadata(data, ledger=0)
    assert (found.state, found.last_entry, found.length_bytes) == (LedgerState.CLOSED, 2, 15)
    assert ledger_metadata.encode_ledger_metadata(found) == data


@pytest.mark.parametrize("name", [name for name in GOLDEN["metadata"] if name[0] != "2"])
def test_metadata_cut_anywhere_are_refused(name: str) -> None:
    data = bytes.fromhex(GOLDEN["metadata"][name])
    for size in range(len(data)):
        with pytest.raises(CorruptDataError):
            ledger_metadata.decode_ledger_metadata(data[:size], ledger=1)


@given(body=st.binary(max_size=60), head=st.sampled_from(["2", "3", "1", "4", "", "x"]))
def test_any_bytes_are_metadata_or_an_error_of_ours(body: bytes, head: str) -> None:
    data = ledger_metadata.MAGIC + head.encode() + b"\n" + body
    try:
        ledger_metadata.decode_ledger_metadata(data, ledger=1)
    except (CorruptDataError, VersionTooNewError):
        return


def test_metadata_of_a_later_version_are_named() -> None:
    with pytest.raises(VersionTooNewError, match="version=4"):
        ledger_metadata.decode_ledger_metadata(ledger_metadata.MAGIC + b"4\n", ledger=1)


def test_paths_are_those_of_the_java_client() -> None:
    for number, path in GOLDEN["paths"].items():
        assert "/" + ledger_metadata.ledger_path(int(number)) == path
        assert ledger_metadata.parse_ledger_path(path[1:]) == int(number)
    for number in (-1, 1 << 63):
        with pytest.raises(InvalidArgumentError):
            ledger_metadata.ledger_path(number)


@given(LEDGERS | st.integers(0, 1 << 33))
def test_a_path_gives_back_its_ledger(ledger: int) -> None:
    path = ledger_metadata.ledger_path(ledger)
    assert ledger_metadata.parse_ledger_path(path) == ledger
    assert ledger_metadata.parse_ledger_path(path.replace("L", "")) is None


@given(st.text(alphabet="0123456789/L", max_size=30))
def test_a_path_that_names_a_ledger_is_its_own(path: str) -> None:
    found = ledger_metadata.parse_ledger_path(path)
    assert found is None or ledger_metadata.ledger_path(found) == path


def test_registrations_are_those_of_real_bookies() -> None:
    data = bytes.fromhex(GOLDEN["registration"])
    place = Registration(host="127.0.0.1", port=23811)
    assert ledger_metadata.decode_registration(data, bookie="b-1") == place
    assert ledger_metadata.encode_registration(place) == data
    zoned = Registration(host="h", port=1, properties=(("zone", "a"),))
    assert ledger_metadata.decode_registration(ledger_metadata.encode_registration(zoned), bookie="b-1") == zoned
    assert ledger_metadata.decode_registration(b"", bookie="[::1]:3181") == Registration(host="[::1]", port=3181)
    with pytest.raises(CorruptDataError, match="names no address"):
        ledger_metadata.decode_registration(b"", bookie="b-1")
    assert bytes.fromhex(GOLDEN["layout"]) == ledger_metadata.LAYOUT


@given(st.binary(max_size=40))
def test_any_bytes_are_a_registration_or_an_error_of_ours(data: bytes) -> None:
    try:
        ledger_metadata.decode_registration(data, bookie="host:1")
    except CorruptDataError:
        return


def test_byte_tables_of_the_document_are_the_layouts_of_the_codec() -> None:
    text = DOCUMENT.read_text()
    layouts = {
        "Entry": bookie.ENTRY,
        "Read": bookie.READ,
        "Batch read": bookie.BATCH_READ,
        "Answer": bookie.ANSWER,
    }
    codes = {"i64": "q", "i32": "i", "u32": "I"}
    for section, layout in layouts.items():
        part = text.split(f"\n### {section}\n")[1].split("\n#")[0]
        fields = [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("| ") and "`" not in line]
        form = ">" + "".join(codes[field] for field in fields if field in codes)
        assert form == layout.format, section
    for code in Code:
        assert f"| {code.value} | {code.name} |" in text
