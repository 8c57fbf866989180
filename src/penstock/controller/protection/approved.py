"""What an approval depends on, and how the store performs what was approved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.controller.context import Context
from penstock.controller.retention.policies import document_of, load_levels, scope_document, server_document
from penstock.model.cuts import StreamCut
from penstock.model.errors import ConflictError
from penstock.model.names import StreamName
from penstock.model.retention import PolicyTarget

if TYPE_CHECKING:
    from penstock.ports.control.plane import ControlPlane


async def facts_of(
    ctx: Context, plane: ControlPlane, action: str, target: PolicyTarget, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The state that an action depends on: the policies that apply, which stream has the name, and a hold to release.

    An approval is void once any of it has changed. Raises ScopeNotFoundError, StreamNotFoundError.
    """
    facts: dict[str, Any] = {}
    if isinstance(target, StreamName):
        view = await ctx.streams.get(target)
        levels = await load_levels(ctx, view)
        facts["incarnation"] = view.record.incarnation
        facts["policies"] = [encode_document(item) for item in (document_of(view.record), levels.scope, levels.server)]
    else:
        facts["policies"] = [encode_document(await server_document(ctx))]
        if target is not None:
            facts["policies"].append(encode_document((await scope_document(ctx, target))[0]))
    if action == "release":
        held = [item for item in await plane.holds.list(target) if item.id == arguments["hold"]]
        facts["hold"] = [[item.owner, item.reason, item.created_ms, item.until_ms] for item in held]
    if action == "require":
        facts["required"] = list(await plane.approvals.required(target))
    return facts


async def perform(plane: ControlPlane, action: str, target: PolicyTarget, arguments: Mapping[str, Any]) -> None:
    """Make the call that was approved, with exactly its arguments. Raises what the call raises."""
    match action, target:
        case "truncate", StreamName():
            await plane.streams.truncate(target, StreamCut.from_text(arguments["cut"]))
        case "delete", StreamName():
            await plane.streams.delete(target, seal=arguments["seal"])
        case "delete", str():
            await plane.scopes.delete(target)
        case "release", _:
            await plane.holds.release(arguments["hold"], owner=arguments["owner"])
        case "shorten", _:
            await plane.policies.set(target, decode_document(arguments["document"]))
        case "require", _:
            await plane.approvals.require(target, arguments["actions"])
        case _:
            raise ConflictError("this version cannot perform what was approved", action=action)
