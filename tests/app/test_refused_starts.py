"""A server that cannot start says so before it makes a store: nothing is left that would decide for the next call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.app.settings import EmbeddedSettings, StandaloneSettings
from penstock.app.standalone import open_standalone
from penstock.model.errors import AddressInUseError, DirectoryInUseError, InvalidArgumentError, PenstockError
from penstock.storage.machine.data_directory import DataDirectory

PORTS = ("controller_port", "store_port", "http_port")
FREE = dict.fromkeys(PORTS, 0)


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def refusal(data: Path, store: dict[str, Any] | None = None, **settings: Any) -> PenstockError:
    async def start() -> None:
        async with open_standalone(
            StandaloneSettings(store=EmbeddedSettings(data=data, **store or {}), **{**FREE, **settings})
        ):
            pass

    with pytest.raises(PenstockError) as caught:
        asyncio.run(start())
    return caught.value


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", PORTS)
def test_a_port_that_is_taken_is_found_before_a_store_is_made(
    tmp_path: Path, taken: int, name: str, workers: int
) -> None:
    error = refusal(tmp_path / "data", workers=workers, **{name: taken})
    assert isinstance(error, AddressInUseError)
    assert error.fields["port"] == taken
    assert not (tmp_path / "data").exists()


def test_one_port_is_not_two(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    assert isinstance(refusal(tmp_path / "data", controller_port=port, http_port=port), AddressInUseError)
    assert not (tmp_path / "data").exists()


def test_the_ports_of_all_workers_are_looked_at(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path / "data", workers=2, store_port=65535), InvalidArgumentError)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    "tier2",
    [
        {"tier2": "missing/directory"},
        {"tier2": "ftp://host/path"},
        {"tier2": "s3://"},
        {"tier2": "s3://["},
        {"tier2": "http://[::1"},
        {"tier2": "s3://bucket/prefix", "tier2_endpoint": "http://["},
        {"tier2": "s3://bucket/prefix", "tier2_endpoint": "nonsense"},
        {"tier2": "s3://bucket/prefix", "tier2_endpoint": "http://far.away"},
    ],
)
def test_a_tier_2_that_cannot_be_is_found_before_a_store_is_made(
    tmp_path: Path, tier2: dict[str, Any], workers: int
) -> None:
    assert isinstance(refusal(tmp_path / "data", tier2, workers=workers), InvalidArgumentError)
    assert not (tmp_path / "data").exists()
    if workers == 1:
        with pytest.raises(InvalidArgumentError):
            penstock.open(tmp_path / "data", **tier2)
        assert not (tmp_path / "data").exists()


def test_a_store_in_use_is_refused_for_that_though_its_ports_are_taken_as_well(tmp_path: Path, taken: int) -> None:
    with DataDirectory.open(tmp_path / "data"):
        assert isinstance(refusal(tmp_path / "data", store_port=taken), DirectoryInUseError)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "[::1]", "m1:9090", "a..b", "a" * 64, "a b", "tls://m1", "a\0"])
def test_an_address_to_which_nobody_could_connect_is_refused(tmp_path: Path, host: str) -> None:
    assert isinstance(refusal(tmp_path / "data", advertised_host=host), InvalidArgumentError)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("host", ["m1", "store-1.lan", "10.0.0.1", "2001:db8::1"])
def test_the_name_or_the_number_of_a_host_is_accepted(tmp_path: Path, host: str) -> None:
    assert StandaloneSettings(store=EmbeddedSettings(data=tmp_path), advertised_host=host).advertised == host
