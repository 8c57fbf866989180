"""The first connection of a session: reports at once what is wrong with an address, which later calls would retry."""

from __future__ import annotations

import asyncio
import ssl

from penstock.codec.wire.http2_frames import PREFACE
from penstock.model.errors import NotConnectedError, TlsError
from penstock.net.dial.addresses import connected_socket, parse_addresses
from penstock.net.dial.security import PLAIN, DialSecurity
from penstock.net.tls.client import ClientTls

REFUSED_S = 1.5
"""How long the first connection of a session is retried if it is refused: the server may still be starting."""

_PAUSE_S = 0.05
_ANSWER_S = 1.0
"""How long an answer is waited for. A server that is busy says nothing yet, and is none to warn of."""
_GREETING = PREFACE + b"\0\0\0\4\0\0\0\0\0"  # an empty SETTINGS frame
_ALERT, _HANDSHAKE = 0x15, 0x16  # types of TLS's records
_REFUSED_CERTIFICATE = (
    "UNKNOWN_CA",
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "CERTIFICATE_EXPIRED",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REVOKED",
)
"""TLS's alerts about the client's certificate, in the names that OpenSSL gives them."""
_REFUSAL = (
    "the server refuses the client's certificate; it must be one for clients, of an authority that the server trusts, and"
    " valid now"
)
_UNKNOWN_AUTHORITY = {18, 19, 20, 21}  # OpenSSL's codes for certificates of an unknown authority


async def check_listens(address: str, *, wait_s: float = REFUSED_S, security: DialSecurity = PLAIN) -> None:
    """Return when a server listens at the address of a controller, or at one of several, and speaks TLS or not as asked.
    Also returns if this cannot be determined.

    For the first connection of a session; later connections wait for a server that restarts. Raises NotConnectedError if
    connections are refused for ``wait_s``; TlsError; InvalidArgumentError as ``parse_addresses``.
    """
    loop = asyncio.get_running_loop()
    targets = parse_addresses(address)
    give_up_at = loop.time() + wait_s
    while True:
        looks: list[TlsError | ConnectionRefusedError] = []
        for target in targets:
            found = await _look(target, max(_PAUSE_S, wait_s), security)
            if found is None:
                return
            looks.append(found)
        if loop.time() + _PAUSE_S > give_up_at:
            failure = next((one for one in looks if isinstance(one, TlsError)), looks[0])
            if isinstance(failure, TlsError):
                raise failure
            raise NotConnectedError(
                "connection refused: nothing listens at this address; check the host, the port, and that"
                " `penstock standalone`, or the active `penstock controller` of a cluster, runs there",
                address=",".join(targets),
                waited_s=wait_s,
            ) from failure
        await asyncio.sleep(_PAUSE_S)


async def _look(target: str, wait_s: float, security: DialSecurity) -> TlsError | ConnectionRefusedError | None:
    """Why nothing can be served there; None: a server answers, or this cannot be determined. Raises TlsError."""
    try:
        async with asyncio.timeout(wait_s):
            return await _greeted(target, security)
    except ConnectionRefusedError as error:
        return error
    except (OSError, TimeoutError):
        return None  # An unknown name or a lost route may be temporary. If not, the next call reports it.


async def _greeted(target: str, security: DialSecurity) -> TlsError | None:
    """None if a server answers; what it means if it closes the connection. Raises OSError, TlsError."""
    host, _, port = target.rpartition(":")
    host = host.strip("[]")
    connected = await connected_socket(host, int(port))
    context = security.context()
    try:
        reader, writer = await asyncio.open_connection(
            sock=connected, ssl=context, server_hostname=None if context is None else host
        )
    except ssl.SSLError as error:
        raise tls_error(error, target) from error
    except (ConnectionError, asyncio.IncompleteReadError):
        if context is None:
            raise
        return _closes(target, security)
    except BaseException:
        connected.close()
        raise
    try:
        writer.write(_GREETING)
        async with asyncio.timeout(_ANSWER_S):
            received = await reader.read(1)
    except TimeoutError:
        return None
    except ssl.SSLError as error:
        raise tls_error(error, target) from error
    except ConnectionError:
        received = b""
    finally:
        writer.transport.abort()
    if received and not (context is None and received[0] in (_ALERT, _HANDSHAKE)):
        return None
    # With TLS 1.3, a server refuses a client's certificate after the client's end of the handshake.
    return _closes(target, security) if security.tls is None else _asks(target, security.tls)


def _closes(target: str, security: DialSecurity) -> TlsError:
    if security.tls is None:
        return TlsError(
            f"the server closes plain connections, as one with TLS does; try tls://{target}", address=target
        )
    return TlsError(
        f"the server closes TLS connections, as a plain one does; if it may be plain, try tcp://{target}",
        address=target,
    )


def _asks(target: str, tls: ClientTls) -> TlsError:
    if tls.certificate is not None:
        return TlsError(_REFUSAL, address=target)
    return TlsError(
        "the server asks for a client's certificate; name it: tls_cert and tls_key, --client-cert and --client-key",
        address=target,
    )


def tls_error(error: ssl.SSLError, target: str) -> TlsError:
    """What a failed handshake means, and what to do. ``target``: ``host:port``."""
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _UNKNOWN_AUTHORITY:
            text = (
                "the server's certificate is of an authority that is not trusted here; name the file of its authority:"
                " tls_ca, --tls-ca or PENSTOCK_TLS_CA"
            )
        elif "mismatch" in error.verify_message or "not valid for" in error.verify_message:
            text = "the server's certificate is of another host; connect to a name that it has"
        else:
            text = "the server's certificate cannot be trusted"
        return TlsError(text, address=target, reason=error.verify_message)
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return TlsError(
            "the server asks for a client's certificate; name it: tls_cert and tls_key, --client-cert and --client-key",
            address=target,
            reason=reason,
        )
    if any(alert in reason for alert in _REFUSED_CERTIFICATE):
        return TlsError(_REFUSAL, address=target, reason=reason)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER" in reason:
        return TlsError(
            f"the server does not speak TLS; if it may be plain, try tcp://{target}", address=target, reason=reason
        )
    return TlsError("the TLS handshake failed", address=target, reason=reason)
