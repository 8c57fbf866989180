"""The doors of a server with identities over a real store, in one process, and credentials of each kind of caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import grpc
from rest_support import Answer, _call
from wire_peers import RawPeer

from penstock.app.access.refusal_audit import RefusalAudit
from penstock.app.access.security import behind_doors, open_security
from penstock.app.access.settings import AccessSettings
from penstock.app.telemetry import Counters
from penstock.codec.wire import commands as c
from penstock.controller.controller import Controller
from penstock.core.access.resources import parse_grant
from penstock.model.cuts import StreamCut
from penstock.model.names import StreamName
from penstock.model.policies import StreamConfig
from penstock.net.grpc.grpc_server import GrpcServer
from penstock.net.http.http_server import RestServer
from penstock.net.native.calls import SERVICE
from penstock.net.security import Security
from penstock.net.wire.wire_server import WireServer
from penstock.ports.control.groups import ReaderGroupConfig
from penstock.ports.control.layout import Endpoint
from penstock.segmentstore.store import SegmentStore
from penstock.storage.access.bearer import StoreTokens
from penstock.storage.access.delegation import Issuer
from penstock.storage.access.passwords import hash_password
from penstock.storage.access.store_key import load_key
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.storage.machine.rng import RealRng
from penstock.testing.fakes import FakeClock
from penstock.testing.world import World

ORDERS = StreamName("shop", "orders")
SEGMENT = "shop/orders/0.#epoch.0"
PASSWORD = "correct horse"
HASH = hash_password(PASSWORD)
RIGHTS: Mapping[str, Sequence[str]] = {
    "foreign": ["/scope:other=*"],
    "reader": ["/scope:shop/stream:orders=read", "/scope:shop/reader-group:app=read"],
    "writer": ["/scope:shop/stream:orders=write"],
    "admin": ["/scope:shop=admin"],
    "auditor": ["/=audit"],
    "scraper": ["/=metrics"],
}
"""What callers may do. Those called none, wrong and expired are nobody."""
NOBODY = ("none", "wrong", "expired")


@dataclass
class Doors:
    """The open doors, and the credentials of each kind of caller."""

    controller: Controller
    store: SegmentStore
    channel: grpc.aio.Channel
    grpc: GrpcServer
    wire: WireServer
    rest: RestServer
    clock: FakeClock
    issuer: Issuer
    security: Security
    credentials: Mapping[str, str]
    refusals: RefusalAudit

    async def native(self, name: str, request: bytes, caller: str) -> str:
        """The outcome of a native call: ``made``, or the code that refused it."""
        metadata = [("authorization", self.credentials[caller])] if self.credentials[caller] else []
        return await self.rpc(f"/{SERVICE}/{name}", request, metadata)

    async def rpc(self, path: str, request: bytes, metadata: Sequence[tuple[str, str]]) -> str:
        try:
            await self.channel.unary_unary(path)(request, metadata=metadata, timeout=20)
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            return code if code in ("UNAUTHENTICATED", "PERMISSION_DENIED") else "made"
        return "made"

    async def http(self, method: str, path: str, caller: str, **headers: str) -> Answer:
        sent = {"content-type": "application/json", **headers}
        if self.credentials[caller]:
            sent.setdefault("authorization", self.credentials[caller])
        body = b"{}" if method in ("PUT", "POST") else None
        return await asyncio.to_thread(_call, self.rest.port, method, path, body, sent)

    async def peer(self) -> RawPeer:
        peer = RawPeer(*await asyncio.open_connection("127.0.0.1", self.wire.port))
        assert await peer.ask(c.Hello(17, 5)) == c.Hello(17, 5)
        return peer


@asynccontextmanager
async def doors(path: Path) -> AsyncIterator[Doors]:
    def add(users: dict[str, User]) -> None:
        users["ann"] = User(name="ann", password=HASH, grants=(parse_grant("/scope:shop/stream:orders=read"),))

    change_users(users_path(path), add)
    clock, telemetry = FakeClock(), Counters()
    world = World(clock=clock)
    async with AsyncExitStack() as stack:
        store, controller = await stack.enter_async_context(world.serving())
        refusals = await stack.enter_async_context(RefusalAudit(controller.record_refusals, clock))
        security = open_security(AccessSettings(), path, None, clock=clock, telemetry=telemetry, refused=refusals)
        control, segments = behind_doors(controller, store, security, telemetry)
        wire_server = await stack.enter_async_context(
            WireServer(store, port=0, rng=RealRng(), telemetry=telemetry, security=security)
        )
        world.endpoint = Endpoint(host="127.0.0.1", port=wire_server.port)
        rest = await stack.enter_async_context(RestServer(control, store, clock=clock, port=0, security=security))
        server = await stack.enter_async_context(GrpcServer(control, segments, port=0, security=security))
        for scope in ("shop", "other"):
            await controller.scopes.create(scope)
        await controller.streams.create(ORDERS, StreamConfig())
        await controller.groups.create(
            ReaderGroupConfig(scope="shop", name="app", id=UUID(int=5), start_cuts={ORDERS: StreamCut(ORDERS, {})})
        )
        key = load_key(path)
        tokens = StoreTokens(key, clock)

        def token(name: str, rights: Sequence[str], *, ttl_s: int = 3600) -> str:
            grants = [parse_grant(text) for text in rights]
            return "Bearer " + tokens.issue(name, grants, ttl_s=ttl_s, token_id=UUID(int=1))

        credentials = {
            "none": "",
            "wrong": "Bearer " + token("x", ["/=*"])[7:-4] + "AAAA",
            "expired": token("expired", ["/=*"], ttl_s=0),
            **{name: token(name, rights) for name, rights in RIGHTS.items()},
        }
        yield Doors(
            controller=controller,
            store=store,
            channel=await stack.enter_async_context(grpc.aio.insecure_channel(f"127.0.0.1:{server.port}")),
            grpc=server,
            wire=wire_server,
            rest=rest,
            clock=clock,
            issuer=Issuer(key, clock),
            security=security,
            credentials=credentials,
            refusals=refusals,
        )


def run(path: Path, test: Any) -> None:
    async def main() -> None:
        async with doors(path) as opened:
            await test(opened)

    asyncio.run(main())
