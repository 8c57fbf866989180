"""Our own client at a server with identities: it fetches tokens for segments, and renews them."""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from access_world import ORDERS, PASSWORD, SEGMENT, Doors, run

from penstock.app.telemetry import Counters
from penstock.core.access.resources import parse_grant
from penstock.model.credentials import Credentials
from penstock.model.errors import NotConnectedError, PermissionDeniedError, UnauthenticatedError
from penstock.model.names import StreamName
from penstock.net.dial.controller import RemoteController, dial_controller
from penstock.net.dial.security import security_for
from penstock.net.dial.segment_tokens import SegmentTokens, life_s
from penstock.net.dial.segments import RemoteSegments
from penstock.net.wire.wire_errors import OWN_TOKEN
from penstock.ports.data.segments import Append
from penstock.storage.access.users_file import User, change_users, users_path
from penstock.storage.machine.rng import RealRng
from penstock.testing.fakes import FakeClock

WRITER = UUID(int=8)
BOB_RIGHTS = ("/scope:shop/stream:orders=read,write",)


class Counting(SegmentTokens):
    """Counts the tokens that were asked for."""

    def __init__(self, controller: RemoteController) -> None:
        self.asked: list[StreamName] = []
        self._controller = controller
        super().__init__(self._count)

    async def _count(self, stream: StreamName) -> str:
        self.asked.append(stream)
        return await self._controller.segment_token(stream)


@asynccontextmanager
async def client(opened: Doors, user: str) -> AsyncIterator[tuple[RemoteSegments, Counting]]:
    address = f"127.0.0.1:{opened.grpc.port}"
    security = security_for(
        address,
        tls=None,
        default_tls=None,
        credentials=Credentials.basic(user, PASSWORD),
        clock=FakeClock(),
        insecure=False,
    )
    async with dial_controller(address, security=security) as controller:
        tokens = Counting(controller)
        async with RemoteSegments(
            controller, native=controller.segments, rng=RealRng(), telemetry=Counters(), tokens=tokens
        ) as segments:
            yield segments, tokens


def add_bob(path):
    def add(users: dict[str, User]) -> None:
        users["bob"] = User(name="bob", password=users["ann"].password, grants=tuple(map(parse_grant, BOB_RIGHTS)))

    change_users(users_path(path), add)


def event(number: int, previous: int) -> Append:
    return Append(segment=SEGMENT, writer=WRITER, data=b"\0\0\0\0\0\0\0\1x", event_number=number, previous=previous)


async def stored(segments: RemoteSegments) -> bytes:
    return b"".join(bytes(part) for part in (await segments.read(SEGMENT, 0, 100)).parts)


def test_our_client_fetches_one_token_for_a_stream_and_another_after_its_end(tmp_path):
    async def test(opened: Doors) -> None:
        add_bob(tmp_path)
        async with client(opened, "bob") as (segments, tokens):
            last = await segments.setup_append(SEGMENT, WRITER)
            await segments.append(event(1, last))
            assert (await segments.info(SEGMENT)).length == 9
            assert tokens.asked == [ORDERS]
            # The clock of the server jumps, so the client learns of the end by a refusal.
            opened.clock.jump(601_000)
            assert await stored(segments) == event(1, last).data
            assert len(tokens.asked) == 2
            opened.clock.jump(601_000)
            assert await segments.setup_append(SEGMENT, WRITER) == 1
            opened.clock.jump(601_000)
            direct = await asyncio.wait_for(direct_line(segments), 10)
            direct.close()

    run(tmp_path, test)


async def direct_line(segments: RemoteSegments):
    """The first attempt is refused, and the next one has a new token."""
    with pytest.raises(UnauthenticatedError):
        await segments.open_direct(SEGMENT, UUID(int=9))
    return await segments.open_direct(SEGMENT, UUID(int=9))


def test_a_writer_whose_token_ends_learns_it_and_is_set_up_again(tmp_path, monkeypatch):
    async def test(opened: Doors) -> None:
        add_bob(tmp_path)
        monkeypatch.setattr("penstock.net.wire.permits.GRACE_S", 0.05)
        async with client(opened, "bob") as (segments, _tokens):
            last = await segments.setup_append(SEGMENT, WRITER)
            await segments.append(event(1, last))
            opened.clock.jump(599_960)
            # Set up again with little time left: the store ends the writer by the id of this setup.
            assert await segments.setup_append(SEGMENT, WRITER) == 1
            await asyncio.sleep(0.3)
            await asyncio.wait_for(segments.append(event(2, 1)), 10)
            assert len(await stored(segments)) == 18

    run(tmp_path, test)


def test_a_line_takes_a_new_token_while_its_writer_writes(tmp_path, monkeypatch):
    """No append fails, and the store gets each of them once."""

    async def test(opened: Doors) -> None:
        add_bob(tmp_path)
        monkeypatch.setattr("penstock.net.dial.segment_tokens.life_s", lambda _: 0.2)
        async with client(opened, "bob") as (segments, tokens):
            previous = await segments.setup_append(SEGMENT, WRITER)
            until = asyncio.get_running_loop().time() + 0.7
            number = 0
            pending: list[asyncio.Future[object]] = []
            while asyncio.get_running_loop().time() < until:
                number += 1
                pending.append(asyncio.ensure_future(segments.append(event(number, previous))))
                previous = number
                if len(pending) >= 8:
                    await pending.pop(0)
                await asyncio.sleep(0)
            await asyncio.gather(*pending)
            assert len(tokens.asked) >= 3
            assert (await segments.info(SEGMENT)).length == 9 * number
            # An idle writer's line ends, and opens again with the next append.
            await asyncio.sleep(0.3)
            await segments.append(event(number + 1, previous))

    run(tmp_path, test)


def test_a_removed_user_is_out_when_the_token_ends(tmp_path):
    async def test(opened: Doors) -> None:
        add_bob(tmp_path)
        async with client(opened, "bob") as (segments, _):
            last = await segments.setup_append(SEGMENT, WRITER)
            await segments.append(event(1, last))
            change_users(users_path(tmp_path), lambda users: users.pop("bob"))
            assert (await segments.info(SEGMENT)).length == 9
            opened.clock.jump(601_000)
            for call in (segments.info(SEGMENT), segments.read(SEGMENT, 0, 9), segments.setup_append(SEGMENT, WRITER)):
                with pytest.raises(UnauthenticatedError):
                    await asyncio.wait_for(call, 10)

    run(tmp_path, test)


def test_a_client_without_tokens_or_rights_gets_nothing(tmp_path):
    async def test(opened: Doors) -> None:
        async with client(opened, "ann") as (segments, _):
            assert (await segments.info(SEGMENT)).length == 0
            with pytest.raises(PermissionDeniedError):
                await segments.setup_append(SEGMENT, WRITER)
            with pytest.raises(PermissionDeniedError):
                await segments.open_direct(SEGMENT, WRITER)
            with pytest.raises(PermissionDeniedError):
                await segments.info("other/stream/0.#epoch.0")
        async with RemoteSegments(
            opened.controller,
            native=None,
            rng=RealRng(),
            telemetry=Counters(),  # type: ignore[arg-type]
        ) as bare:
            with pytest.raises(PermissionDeniedError):
                await bare.info(SEGMENT)

    run(tmp_path, test)


def test_tokens_are_asked_for_once_used_while_the_controller_restarts_and_kept_after_a_refusal(monkeypatch):
    def token(life: int) -> str:
        claims = urlsafe_b64encode(json.dumps({"iat": 1000, "exp": 1000 + life}).encode()).decode().rstrip("=")
        return f"h.{claims}.s"

    async def main() -> None:
        answers: list[str | Exception] = [token(2), NotConnectedError("down"), token(600), NotConnectedError("down")]

        async def ask(_stream: StreamName) -> str:
            await asyncio.sleep(0)
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        monkeypatch.setattr("penstock.net.dial.segment_tokens._USED", 0.01)
        tokens = SegmentTokens(ask)
        await asyncio.gather(*(tokens.ensure(f"s/t/{number}.#epoch.0") for number in range(9)))
        assert len(answers) == 3
        assert tokens.of("s/t/7") == f"penstock {token(2)}"
        assert tokens.of("s/other/7") == OWN_TOKEN
        await asyncio.sleep(0.05)
        await tokens.ensure("s/t/1")  # The controller is down, and the token is still valid.
        assert len(answers) == 2
        tokens.refused("s/t/1")
        assert tokens.of("s/t/1") == f"penstock {token(2)}"
        await tokens.ensure("s/t/1")
        assert tokens.of("s/t/1") == f"penstock {token(600)}"
        tokens.refused("s/t/1")
        with pytest.raises(NotConnectedError):
            await tokens.ensure("s/t/1")

    asyncio.run(main())
    assert life_s(token(600)) == 600.0
    for odd in ("", "x", "a.b.c", "a.e30.c", f"a.{urlsafe_b64encode(b'[]').decode()}.c"):
        assert life_s(odd) == 60.0


def test_the_file_of_a_token_that_the_server_refuses_is_named(tmp_path):
    async def test(opened: Doors) -> None:
        file = tmp_path / "token"
        file.write_text("garbage\n")
        address = f"127.0.0.1:{opened.grpc.port}"
        security = security_for(
            address,
            tls=None,
            default_tls=None,
            credentials=Credentials.bearer_file(file),
            clock=FakeClock(),
            insecure=False,
        )
        with pytest.raises(UnauthenticatedError) as caught:
            async with dial_controller(address, security=security):
                pass
        assert caught.value.fields["path"] == str(file)

    run(tmp_path, test)
