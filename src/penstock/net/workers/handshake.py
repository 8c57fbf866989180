"""The handshake of a link over TCP: its frames and proofs, without sockets.

Four frames, each with its length (``uint16``) in front: ``hello`` (dialer), ``challenge`` (listener), ``proof``
(dialer), ``verdict`` (listener). A proof is the HMAC-SHA256, keyed by the secret of the cluster, of the direction, both
nonces and the hello. The hello has the version, the cluster, the container, the term and the controller.

An end only authenticates a message that names its own role and contains a nonce that it has just drawn itself. So a
proof that was reflected, replayed, or obtained by asking either end to sign, fits no other handshake. Source: SKID3
(Menezes et al., Handbook of Applied Cryptography, 10.3.2).
"""

from __future__ import annotations

import hmac
import struct
from typing import Final

from penstock.model.errors import InvalidArgumentError, PenstockError, ProtocolError
from penstock.model.values.dataclass import dataclass
from penstock.net.workers.values import decode_error, encode_error
from penstock.ports.rng import Rng

FRAME_MAX_BYTES: Final = 1024
"""Of a frame of the handshake, without its length: names of clusters and controllers are short."""
LENGTH: Final = struct.Struct(">H")
_MAGIC: Final = b"penstock link\n"
_VERSION: Final = 1
_NONCE_BYTES: Final = 32  # as long as the proof: a nonce never repeats
_PROOF_BYTES: Final = 32  # HMAC-SHA256
_SECRET_MIN_BYTES: Final = 16  # fewer could be found by trying, from one handshake that was recorded
_NAME_MAX_BYTES: Final = 256  # of a cluster's id or a controller's name
_MESSAGE_MAX: Final = 60  # characters of an error that is too long: at most 12 bytes each in JSON
_HELLO: Final = struct.Struct(f">{len(_MAGIC)}sB{_NONCE_BYTES}sQQHH")
_ERROR: Final = struct.Struct(">H")
_DIALER, _LISTENER = b"dialer\0", b"listener\0"
_DENIED, _ACCEPTED, _REFUSED = b"D", b"A", b"R"


@dataclass(frozen=True, slots=True)
class Greeting:
    """Which link the dialer wants. ``cluster``: its id. ``container``: number of the container. ``term``: number of the
    election. ``controller``: name of the controller, for logs."""

    cluster: str
    container: int
    term: int
    controller: str

    def __post_init__(self) -> None:
        for name in ("container", "term"):
            if not 0 <= getattr(self, name) < 1 << 63:
                raise InvalidArgumentError("number of a greeting is out of range", **{name: getattr(self, name)})
        for name in ("cluster", "controller"):
            if len(_bytes(getattr(self, name))) > _NAME_MAX_BYTES:
                raise InvalidArgumentError("name in a greeting is too long", name=name, most=_NAME_MAX_BYTES)


def check_secret(secret: bytes) -> bytes:
    """The secret. Raises InvalidArgumentError if it is short."""
    if len(secret) < _SECRET_MIN_BYTES:
        raise InvalidArgumentError("secret of the cluster is too short", least_bytes=_SECRET_MIN_BYTES)
    return secret


def draw_nonce(rng: Rng) -> bytes:
    return rng.randrange(1 << 8 * _NONCE_BYTES).to_bytes(_NONCE_BYTES, "big")


def encode_hello(greeting: Greeting, nonce: bytes) -> bytes:
    cluster, controller = _bytes(greeting.cluster), _bytes(greeting.controller)
    sizes = len(cluster), len(controller)
    return _HELLO.pack(_MAGIC, _VERSION, nonce, greeting.container, greeting.term, *sizes) + cluster + controller


def decode_hello(hello: bytes) -> Greeting:
    """Raises ProtocolError, for another version too."""
    if len(hello) < _HELLO.size:
        raise ProtocolError("not the first frame of a link")
    magic, version, _, container, term, cluster_size, controller_size = _HELLO.unpack_from(hello)
    if magic != _MAGIC or version != _VERSION or len(hello) != _HELLO.size + cluster_size + controller_size:
        raise ProtocolError("not the first frame of a link of this version")
    end = _HELLO.size + cluster_size
    try:
        cluster, controller = hello[_HELLO.size : end].decode(), hello[end:].decode()
        return Greeting(cluster, container, term, controller)
    except (UnicodeDecodeError, InvalidArgumentError) as error:
        raise ProtocolError("not the first frame of a link of this version") from error


def check_challenge(challenge: bytes) -> bytes:
    """The listener's nonce. Raises ProtocolError."""
    if len(challenge) != _NONCE_BYTES:
        raise ProtocolError("not the challenge of a link")
    return challenge


def dialer_proof(secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    return _proof(secret, _DIALER, hello, challenge)


def proves(proof: bytes, secret: bytes, hello: bytes, challenge: bytes) -> bool:
    """Whether the dialer knows the secret. Takes the same time for any wrong proof."""
    return hmac.compare_digest(proof, dialer_proof(secret, hello, challenge))


DENIAL: Final = _DENIED
"""The verdict on a dialer that does not know the secret. It has no proof: anyone may receive it."""


def encode_verdict(refusal: PenstockError | None, secret: bytes, hello: bytes, challenge: bytes) -> bytes:
    """The verdict on a dialer that knows the secret: None accepts it."""
    body = _ACCEPTED if refusal is None else _REFUSED + _short_error(refusal)
    return body + _proof(secret, _LISTENER, hello, challenge, body)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``denied``: the listener, which may be anyone, does not accept our proof. ``refusal``: what it raised, if it knows the
    secret."""

    denied: bool = False
    refusal: PenstockError | None = None


def decode_verdict(verdict: bytes, secret: bytes, hello: bytes, challenge: bytes) -> Verdict | None:
    """The verdict. None: the listener does not know the secret. Raises ProtocolError: it knows the secret, and does not
    speak this version."""
    if verdict == _DENIED:
        return Verdict(denied=True)
    body, proof = verdict[:-_PROOF_BYTES], verdict[-_PROOF_BYTES:]
    if not hmac.compare_digest(proof, _proof(secret, _LISTENER, hello, challenge, body)):
        return None
    if body == _ACCEPTED:
        return Verdict()
    if body[:1] != _REFUSED or len(body) < 1 + _ERROR.size:
        raise ProtocolError("not the verdict of a link")
    end = 1 + _ERROR.size + _ERROR.unpack_from(body, 1)[0]
    return Verdict(refusal=decode_error(body[1 + _ERROR.size : end], body[end:]))


def _short_error(error: PenstockError) -> bytes:
    """The error in one frame: without its fields if they are long."""
    text, beside = encode_error(error)
    if len(text) + sum(map(len, beside)) > FRAME_MAX_BYTES - 1 - _ERROR.size - _PROOF_BYTES:
        text, beside = encode_error(type(error)(error.message[:_MESSAGE_MAX]))
    return _ERROR.pack(len(text)) + text + b"".join(beside)


def _proof(secret: bytes, direction: bytes, hello: bytes, challenge: bytes, body: bytes = b"") -> bytes:
    # Unambiguous: direction and challenge have fixed lengths, and the hello contains its own.
    return hmac.digest(secret, direction + challenge + hello + body, "sha256")


def _bytes(name: str) -> bytes:
    return name.encode("utf-8", "replace")
