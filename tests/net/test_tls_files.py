"""The files of a server's TLS: which are refused, with which advice, and what a reload does."""

from __future__ import annotations

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from penstock.app.telemetry import Counters
from penstock.model.errors import InvalidArgumentError
from penstock.net.tls.certificates import NO_ALPN, load_tls
from penstock.net.tls.server_tls import ServerTls
from penstock.storage.machine.clock import RealClock
from penstock.testing.fakes import FakeClock
from tests.certificates import DAY, Authority, Files, pem

ROOT = Authority()
BETWEEN = Authority("between", ROOT)
NOW_MS = RealClock().now_ms()


def _clock() -> FakeClock:
    clock = FakeClock()
    clock.ms = NOW_MS
    return clock


def refusal(files: Files, **more: object) -> str:
    with pytest.raises(InvalidArgumentError) as caught:
        load_tls(files.settings(**more), now_ms=NOW_MS)
    text = str(caught.value)
    assert "PRIVATE KEY" not in text
    return text


def test_a_certificate_with_its_chain_is_accepted(tmp_path: Path) -> None:
    loaded = load_tls(BETWEEN.issue(tmp_path).settings(), now_ms=NOW_MS)
    assert loaded.subject == "CN=server"
    assert loaded.contexts[NO_ALPN].minimum_version is ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize(
    ("dates", "advice"),
    [
        ({"begins": -2 * DAY, "ends": -DAY}, "has expired; renew it"),
        ({"begins": DAY}, "not valid yet; wait, or check this machine's clock"),
        ({"hosts": ()}, "names no host"),
        ({"client": True}, "not one for servers"),
        ({"mode": 0o644}, "chmod 600"),
        ({"reverse": True}, "wrong order"),
    ],
)
def test_a_certificate_with_which_no_client_could_connect_is_refused_with_advice(tmp_path, dates, advice) -> None:
    assert advice in refusal(BETWEEN.issue(tmp_path, **dates))


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    one, other = ROOT.issue(tmp_path, "one"), ROOT.issue(tmp_path, "other")
    assert "belongs to another certificate" in refusal(Files(one.certificate, other.key))


def test_the_key_of_the_issuer_is_a_chain_in_the_wrong_order(tmp_path: Path) -> None:
    files = BETWEEN.issue(tmp_path)
    files.key.write_bytes(pem(BETWEEN.key))
    assert "the one of the private key comes first" in refusal(files)


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_files_of_anything_else_are_refused(tmp_path: Path, content: bytes) -> None:
    files = ROOT.issue(tmp_path)
    good, key = files.certificate.read_bytes(), files.key.read_bytes()
    files.certificate.write_bytes(content)
    assert str(files.certificate) in refusal(files)
    files.certificate.write_bytes(good)
    files.key.write_bytes(content)
    assert "no private key" in refusal(files)
    files.key.write_bytes(key)
    authorities = tmp_path / "authorities.pem"
    authorities.write_bytes(content)
    assert str(authorities) in refusal(files, client_ca=authorities)


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    files = ROOT.issue(tmp_path)
    for path in (files.certificate, files.key):
        path.rename(tmp_path / "aside")
        assert f"path={path}" in refusal(files)
        path.mkdir()
        assert f"path={path}" in refusal(files)
        path.rmdir()
        (tmp_path / "aside").rename(path)


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    files = ROOT.issue(tmp_path)
    key = load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    assert "encrypted with a password" in refusal(files)


def test_a_reload_takes_new_files_and_keeps_the_old_ones_where_the_new_are_broken(tmp_path: Path) -> None:
    files = ROOT.issue(tmp_path)
    counters, clock = Counters(), _clock()
    tls = ServerTls(files.settings(), clock=clock, telemetry=counters)
    first = tls.context(NO_ALPN)
    assert not tls.reload()
    assert tls.context(NO_ALPN) is first

    whole = files.certificate.read_bytes()
    files.certificate.write_bytes(whole[: len(whole) // 2])
    assert not tls.reload()
    assert tls.context(NO_ALPN) is first
    assert tls.problem is not None
    assert "certificate" in tls.problem
    assert counters.gauges["certificate_refused"] == 1

    files.certificate.write_bytes(whole)
    tls.reload()
    assert tls.problem is None
    assert counters.gauges["certificate_refused"] == 0

    ROOT.issue(tmp_path, ends=80 * DAY)
    assert tls.reload()
    assert tls.context(NO_ALPN) is not first
    assert counters.gauges["certificate_expiry_time_seconds"] == pytest.approx(NOW_MS / 1000 + 80 * 86_400, abs=7200)


def test_a_certificate_is_late_in_the_last_third_of_its_life_and_fails_after_it(tmp_path: Path) -> None:
    clock = _clock()
    files = ROOT.issue(tmp_path, begins=-timedelta(hours=1), ends=timedelta(hours=11))
    tls = ServerTls(files.settings(), clock=clock, telemetry=Counters())
    assert tls.problem is None
    clock.ms += 8 * 3_600_000
    assert tls.problem is not None
    assert tls.failure is None
    clock.ms += 4 * 3_600_000
    assert tls.failure is not None
