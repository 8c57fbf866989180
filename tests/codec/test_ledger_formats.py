"""Bytes of encrypted ledgers and of their keys: golden ones, and every cut and flipped bit of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.codec.store.ledger_cipher import OVERHEAD_BYTES, LedgerCipher, sealed_parts
from penstock.codec.store.ledger_entries import (
    HEADER,
    SEALED_HEADER,
    SEALED_PART,
    FrameJoiner,
    LedgerHeader,
    decode_header,
    decode_part,
    encode_header,
)
from penstock.codec.store.ledger_keys import (
    KEY,
    MARKER,
    DestroyedSecret,
    decode_key_object,
    encode_marker,
    encode_secret,
)
from penstock.model.errors import CorruptDataError, InternalError, InvalidArgumentError, VersionTooNewError
from penstock.model.ledgers import LedgerKey

DOCUMENT = Path(__file__).parents[2] / "docs" / "formats" / "ledger-log.md"
SECRET = bytes(range(32))
NAME = LedgerKey(epoch=3, id=bytes(range(16)))
FRAME = b"a frame of the log"
TIME_MS = 1_700_000_000_123

GOLDEN_HEADER = (
    "50734c480200000000000000000000030000000000000029000102030405060708090a0b0c0d0e0fed4f1987eb10291ad274616704920de7"
)
GOLDEN_ENTRY = (
    "0200000000010000000000000000002a0000018bcfe5687b94670bee88d1b0703af34d69fe0a78a2b9a78cfd"
    "2362bac6c7224a45592bf7e8f53e"
)
GOLDEN_KEY = "50734c4b01000000000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1ffbc72f9f"
GOLDEN_MARKER = "50734c58010000000000018bcfe5687b000000000000000000000000000000000000000000000000dd85a624"


def cipher(*, secret: bytes = SECRET, uid: str = "u-1", ledger: int = 7, key: LedgerKey = NAME) -> LedgerCipher:
    return LedgerCipher(secret, key, uid=uid, ledger=ledger)


def entries(frame: bytes = FRAME, *, size: int = 4000) -> list[bytes]:
    return [b"".join(one) for one in sealed_parts(cipher(), 1, 42, frame, written_ms=TIME_MS, entry_max_bytes=size)]


def read_header(data: bytes) -> None:
    decode_header(data, ledger=7)
    cipher().check_header(data)


def test_golden_bytes_of_an_encrypted_ledger_and_its_key() -> None:
    assert cipher().header(41).hex() == GOLDEN_HEADER
    assert [one.hex() for one in entries()] == [GOLDEN_ENTRY]
    assert encode_secret(SECRET).hex() == GOLDEN_KEY
    assert encode_marker(TIME_MS).hex() == GOLDEN_MARKER
    assert str(NAME) == "0000000000000003-000102030405060708090a0b0c0d0e0f"
    assert LedgerKey.parse(str(NAME)) == NAME
    assert LedgerKey.parse(f"{NAME}.tmp") is None


def test_the_headers_of_both_versions_are_read() -> None:
    header = cipher().header(41)
    assert decode_header(header, ledger=7) == LedgerHeader(epoch=3, first=41, key=NAME.id)
    cipher().check_header(header)
    plain = LedgerHeader(epoch=3, first=41)
    assert decode_header(encode_header(plain), ledger=7) == plain
    with pytest.raises(VersionTooNewError):
        decode_header(header[:4] + b"\3" + header[5:], ledger=7)


@given(frame=st.binary(max_size=300), size=st.integers(OVERHEAD_BYTES + 1, 90), address=st.integers(1, 1 << 60))
def test_a_frame_is_its_decrypted_parts_joined(frame: bytes, size: int, address: int) -> None:
    parts = sealed_parts(cipher(), 1, address, frame, written_ms=TIME_MS, entry_max_bytes=size)
    sealed = [b"".join(one) for one in parts]
    assert all(len(one) <= size for one in sealed)
    joiner, reader = FrameJoiner(7, address), cipher()
    found = [joiner.add(one, reader.open(number, one)) for number, one in enumerate(sealed, 1)]
    assert found == [None] * (len(sealed) - 1) + [(address, frame)]


@pytest.mark.parametrize(
    "reader",
    [cipher(secret=bytes(32)), cipher(uid="u-2"), cipher(ledger=8), cipher(key=LedgerKey(epoch=4, id=NAME.id))],
)
def test_another_key_ledger_epoch_or_log_opens_nothing(reader: LedgerCipher) -> None:
    with pytest.raises(CorruptDataError):
        reader.check_header(cipher().header(41))
    with pytest.raises(CorruptDataError):
        reader.open(1, entries()[0])
    with pytest.raises(CorruptDataError):
        cipher().open(2, entries()[0])


@given(st.integers(0, 55), st.integers(0, 7))
def test_a_changed_bit_is_found_in_headers_entries_and_keys(at: int, bit: int) -> None:
    def flipped(data: bytes) -> bytes:
        index = at % len(data)
        return data[:index] + bytes([data[index] ^ 1 << bit]) + data[index + 1 :]

    refused = (CorruptDataError, VersionTooNewError)
    with pytest.raises(refused):
        read_header(flipped(cipher().header(41)))
    with pytest.raises(refused):
        cipher().open(1, flipped(entries()[0]))
    for data in (encode_secret(SECRET), encode_marker(5)):
        with pytest.raises(refused):
            decode_key_object(flipped(data), name="k")


@given(st.binary(max_size=80))
def test_any_bytes_are_an_entry_or_an_error_of_ours(data: bytes) -> None:
    for decode in (lambda one: cipher().open(1, one), lambda one: decode_key_object(one, name="k")):
        with pytest.raises((CorruptDataError, VersionTooNewError)):
            decode(data)


def test_a_part_shows_its_address_and_time_without_a_key_and_nothing_of_its_frame() -> None:
    (entry,) = entries()
    part = decode_part(entry, ledger=7)
    assert (part.index, part.total, part.address, part.written_ms) == (0, 1, 42, TIME_MS)
    assert FRAME[:4] not in entry
    with pytest.raises(CorruptDataError, match="another version"):
        FrameJoiner(7, 42).add(entry)


def test_no_number_is_encrypted_twice() -> None:
    writer = cipher()
    assert writer.seal(1, b"", b"one") != writer.seal(2, b"", b"one")
    for number in (2, 1, 4):
        with pytest.raises(InternalError):
            writer.seal(number, b"", b"other")


def test_a_key_object_is_a_secret_or_the_marker_that_replaced_it() -> None:
    assert decode_key_object(encode_secret(SECRET), name="k") == SECRET
    assert decode_key_object(encode_marker(5), name="k") == DestroyedSecret(at_ms=5)
    assert len(encode_marker(5)) == len(encode_secret(SECRET)), "a marker in place leaves no byte of the secret"
    with pytest.raises(InvalidArgumentError):
        encode_secret(b"short")


def test_byte_tables_of_the_document_are_the_layouts_of_the_codec() -> None:
    text = DOCUMENT.read_text()
    codes = {1: "B", 2: "H", 4: "I", 8: "Q"}
    layouts = {
        "Header of an encrypted ledger": SEALED_HEADER,
        "Head of an encrypted part": SEALED_PART,
        "Key object": KEY,
        "Marker": MARKER,
    }
    for section, layout in layouts.items():
        body = text.split(f"\n### {section}\n")[1].split("\n## ")[0].split("\n### ")[0]
        form, end = ">", 0
        for offset, size, field in re.findall(r"^\| (\d+) \| (\d+) \| (.+?) \|$", body, re.M):
            assert int(offset) == end
            special = {"magic": "4s", "padding": "x" * int(size) if int(size) < 3 else f"{size}x"}
            form += special.get(field) or codes.get(int(size), f"{size}s")
            end += int(size)
        assert (form, end) == (layout.format, layout.size), section
    assert SEALED_HEADER.size == HEADER.size + 32
