"""Seeded mutations that know where bytes matter: lengths and counts, ends, numbers in JSON."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_INTERESTING = (0, 1, 2, 7, 8, 15, 16, 127, 128, 255, 256, 4095, 4096, 65535, 65536, 1 << 24, (1 << 31) - 1, 1 << 31)
_WIDTHS = (1, 2, 4, 4, 4, 8, 8)
_TOKEN = re.compile(rb'-?\d+(?:\.\d+)?|"[^"\\]{0,60}"|true|false|null|[\[\]{},:]')
_JSON = (
    *(
        b"0",
        b"-1",
        b"1e999",
        b"-0.0",
        b"1.5",
        b"9223372036854775808",
        b"NaN",
        b"Infinity",
        b"true",
        b"null",
        b'""',
        b"[]",
    ),
    *(b"{}", b'"\\ud800"', b'"\\u0000"', b'"../../etc"', b'"a/b"', b'"v":1,', b"4", b'"x"', b"9" * 40),
)
_LONG = (b"[" * 2000, b'{"a":' * 500, b"9" * 5000)
"""Too deep and too long for a JSON parser: rarely, for they are slow to refuse."""
BYTES_MAX = 1 << 16
"""Inputs do not grow beyond this."""


class Mutator:
    """Gives one mutation of an input after the other; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def choose(self, corpus: Sequence[bytes]) -> bytes:
        return corpus[int(self._chance.random() * len(corpus))]

    def mutated(self, data: bytes, corpus: Sequence[bytes], *, text: bool) -> bytes:
        """``data`` changed in one to four places. ``text``: it is JSON, whose words are changed as often as its bytes."""
        out = bytearray(data)
        chance = self._chance.random
        for _ in range(1 + int(chance() ** 3 * 4)):
            if text and chance() < 0.6:
                self._word(out)
            else:
                _STEPS[int(chance() * len(_STEPS))](self, out, corpus)
        return bytes(out[:BYTES_MAX])

    # --- one change each ------------------------------------------------------------------------------------

    def _place(self, out: bytearray) -> int:
        return int(self._chance.random() * len(out))

    def _flip(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        if out:
            out[self._place(out)] ^= 1 << int(self._chance.random() * 8)

    def _byte(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        if out:
            out[self._place(out)] = int(self._chance.random() * 256)

    def _number(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        """A length, a count, an offset: set to what breaks things, or moved by a little."""
        width = _WIDTHS[int(self._chance.random() * len(_WIDTHS))]
        if len(out) < width:
            return
        at = int(self._chance.random() * (len(out) - width + 1))
        if self._chance.random() < 0.3:
            value = int.from_bytes(out[at : at + width], "big") + int(self._chance.random() * 9) - 4
        else:
            value = _INTERESTING[int(self._chance.random() * len(_INTERESTING))]
            value = -value if self._chance.random() < 0.4 else value
        out[at : at + width] = (value % (1 << (8 * width))).to_bytes(width, "big")

    def _cut(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        if out:
            del out[self._place(out) :]

    def _drop(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        if out:
            at = self._place(out)
            del out[at : at + 1 + int(self._chance.random() ** 2 * 32)]

    def _insert(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        size = 1 + int(self._chance.random() ** 2 * 32)
        at = int(self._chance.random() * (len(out) + 1))
        out[at:at] = self._chance.randbytes(size)

    def _repeat(self, out: bytearray, _corpus: Sequence[bytes]) -> None:
        if out and len(out) < BYTES_MAX // 4:
            at = self._place(out)
            piece = bytes(out[at : at + 1 + int(self._chance.random() * 64)])
            out[at:at] = piece * (1 + int(self._chance.random() ** 4 * 200))

    def _splice(self, out: bytearray, corpus: Sequence[bytes]) -> None:
        other = self.choose(corpus)
        if other and out:
            out[self._place(out) :] = other[int(self._chance.random() * len(other)) :]

    def _word(self, out: bytearray) -> None:
        """Another word in place of one of a JSON text."""
        words = list(_TOKEN.finditer(out[:4096]))
        if not words:
            return
        word = words[int(self._chance.random() * len(words))]
        if self._chance.random() < 0.2:
            other = words[int(self._chance.random() * len(words))].group()
        elif self._chance.random() < 0.01:
            other = _LONG[int(self._chance.random() * len(_LONG))]
        else:
            other = _JSON[int(self._chance.random() * len(_JSON))]
        out[word.start() : word.end()] = other


_STEPS = (
    Mutator._flip,
    Mutator._flip,
    Mutator._byte,
    Mutator._number,
    Mutator._number,
    Mutator._number,
    Mutator._cut,
    Mutator._drop,
    Mutator._insert,
    Mutator._repeat,
    Mutator._splice,
)
