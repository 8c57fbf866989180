"""The policy document as options of a command: one for each field, a whole file, or Pravega's form."""

from __future__ import annotations

import functools
import inspect
import json as jsonlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.app.cli.common.options import DURATIONS, SCOPE, SIZES
from penstock.app.cli.policies import MaxOption, MinOption, TypeOption, parse_policy
from penstock.codec.control.policy_document import BY_PATH, Field, Kind, check_value, decode_document
from penstock.core.policies.levels import seconds, validate, with_pravega, with_value
from penstock.core.policies.locks import with_lock_of
from penstock.core.units import parse_duration_ms, parse_size
from penstock.model.errors import InvalidArgumentError
from penstock.model.names import StreamName, check_name
from penstock.model.policies import RetentionPolicy
from penstock.model.retention import EMPTY, INHERIT, Level, PolicyDocument, PolicyTarget
from penstock.model.values.dataclass import dataclass

_FILE_MAX = 1 << 20  # bytes; a policy document takes a few hundred
UNLIMITED, LEFT_OPEN = "unlimited", "inherit"
_DROPPED = ("retain.", "unsubscribed")
_MEANT_UNLIMITED = frozenset(("-1", "none", "never", "infinite", "inf", "off"))


_METAVARS = {
    Kind.BYTES: "SIZE",
    Kind.SECONDS: "DURATION",
    Kind.EVENTS: "COUNT",
    Kind.SHARE: "SHARE",
    Kind.TIME: "TIME",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    name: str
    path: str
    help: str

    @property
    def field(self) -> Field:
        return BY_PATH[self.path]

    @property
    def parameter(self) -> str:
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def text(self) -> str:
        """The help, with what the option takes."""
        return f"{self.help}{ {Kind.BYTES: f' {SIZES}', Kind.SECONDS: f' {DURATIONS}'}.get(self.field.kind, '') }"

    @property
    def metavar(self) -> str:
        if self.field.choices is not None:
            return "|".join(str(item.value) for item in self.field.choices)
        return _METAVARS[self.field.kind]


OPTIONS: Final = tuple(
    _Option(name=name, path=path, help=text)
    for name, path, text in (
        ("--min-bytes", "retain.min_bytes", "No rule leaves less than this."),
        ("--min-age", "retain.min_age_s", "No rule removes younger data."),
        ("--combine", "retain.combine", "With two minimums: data may be deleted past either (any) or past both (all)."),
        ("--max-bytes", "retain.max_bytes", "Keep no more than this, even if unread."),
        ("--max-age", "retain.max_age_s", "Keep nothing older, even if unread."),
        ("--measure", "retain.measure", "Apply limits to the stream, or to each segment."),
        (
            "--lock-until",
            "retain.lock_until",
            "Until then, as in 2026-01-31 or 2026-01-31T12:00:00Z, nobody can keep less or delete by hand. It stays.",
        ),
        ("--unsubscribed", "unsubscribed", "What to do with data above the minimum without subscribers."),
        ("--ttl", "backlog.ttl_s", "Unread data older than this counts as read."),
        ("--backlog-bytes", "backlog.max_bytes", "Quota: unread bytes allowed."),
        ("--backlog-age", "backlog.max_age_s", "Quota: age of unread data allowed."),
        ("--backlog-events", "backlog.max_events", "Quota: unread events allowed."),
        (
            "--on-exceed",
            "backlog.on_exceed",
            "At a quota: writers wait (hold), fail (reject), or subscribers skip unread data (evict).",
        ),
        ("--on-exceed-bytes", "backlog.on_exceed_bytes", "The same, for the byte quota only."),
        ("--on-exceed-age", "backlog.on_exceed_age", "The same, for the age quota only."),
        ("--on-exceed-events", "backlog.on_exceed_events", "The same, for the event quota only."),
        ("--evict-to", "backlog.evict_to", "Evict down to this share of the quota, for example 0.9."),
        ("--idle-subscriber", "idle.subscriber_s", "Drop a subscriber that acknowledges nothing for this time."),
        ("--idle-stream", "idle.stream_s", "Delete a stream that is unused for this time."),
        ("--idle-when", "idle.stream_when", "When a stream counts as unused."),
        ("--grace", "grace_s", "How long a truncation can be undone."),
    )
)

FileOption = Annotated[
    str | None,
    typer.Option(
        "--policy", metavar="FILE|-", help="Replace the whole policy with this JSON document.", show_default=False
    ),
]
NoneOption = Annotated[bool, typer.Option("--none", help="Set no limits here: the next level applies, if any.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange:
    """What the options of one command say: a whole document, Pravega's form, then single fields by their path."""

    whole: PolicyDocument | None = None
    pravega: RetentionPolicy | None = None
    drop: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return self == PolicyChange()

    def check(self, level: Level | PolicyTarget) -> None:
        """Raises InvalidArgumentError where no document of that level can be so, as with a minimum over the maximum."""
        validate(self.apply(EMPTY), level)

    def apply(self, document: PolicyDocument) -> PolicyDocument:
        """The document after the change. Fields that the change does not name stay."""
        changed = document if self.whole is None else self.whole
        if self.drop or self.pravega is not None:
            # All of it, also what Pravega's form cannot show.
            changed = with_lock_of(replace(changed, retain=EMPTY.retain, unsubscribed=EMPTY.unsubscribed), changed)
            if self.pravega is not None:
                changed = with_pravega(changed, self.pravega)
        for path, value in self.fields.items():
            changed = with_value(changed, path, value)
        return changed


def takes_policy(function: Callable[..., None]) -> Callable[..., None]:
    """The command with all options of a policy; it is called with ``change`` in place of them."""
    own = inspect.signature(function, eval_str=True)
    added = [
        inspect.Parameter(
            option.parameter,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                typer.Option(option.name, metavar=option.metavar, help=option.text, show_default=False),
            ],
        )
        for option in OPTIONS
    ]
    for name, kind, default in (
        ("policy", FileOption, None),
        ("kind", TypeOption, None),
        ("minimum", MinOption, None),
        ("maximum", MaxOption, None),
        ("none", NoneOption, False),
    ):
        added.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    kept = [
        item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own.parameters.values() if item.name != "change"
    ]
    first = [item for item in kept if item.default is inspect.Parameter.empty]
    rest = [item for item in kept if item.default is not inspect.Parameter.empty]

    @functools.wraps(function)
    def command(**given: Any) -> None:
        options = {item.name: given.pop(item.name) for item in added}
        function(change=_change(options), **given)

    # The command line is built from these, not from the wrapper's own ``**given``.
    parameters = [*first, *added, *rest]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {item.name: item.annotation for item in parameters} | {"return": None}
    return command


def _change(given: Mapping[str, Any]) -> PolicyChange:
    fields = {item.path: _parse(item, given[item.parameter]) for item in OPTIONS if given[item.parameter] is not None}
    pravega = parse_policy(given["kind"], given["minimum"], given["maximum"])
    if given["none"] and pravega is not None:
        raise InvalidArgumentError("give --type or --none, not both")
    whole = None if given["policy"] is None else read_document(given["policy"])
    limits = [item.name for item in OPTIONS if item.path.startswith(_DROPPED) and item.path in fields]
    if given["none"] and limits:
        raise InvalidArgumentError("--none cannot be combined with limits; drop one of them", given=", ".join(limits))
    return PolicyChange(whole=whole, pravega=pravega, drop=given["none"], fields=fields)


def _parse(option: _Option, text: str) -> Any:
    """The value of one option. Raises InvalidArgumentError that names the option and what would be accepted."""
    item, word = option.field, text.strip().lower()
    if word == LEFT_OPEN:
        return INHERIT
    value: Any = text
    try:
        if word in (UNLIMITED, "null"):
            value = None
        elif item.kind is Kind.BYTES:
            value = parse_size(text)
        elif item.kind is Kind.SECONDS:
            value = 0 if word == "0" else seconds(parse_duration_ms(text))
        elif item.kind is Kind.EVENTS:
            value = int(text)
        elif item.kind is Kind.SHARE:
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        return check_value(item, value)
    except InvalidArgumentError as error:
        fields = {"value": repr(text), **error.fields}
        for name in fields.keys() & {"rule", "accepted"}:
            # In the document it is null, here it is a word.
            fields[name] = str(fields[name]).replace("null lifts", f"{UNLIMITED} lifts").replace("null for ", "")
        raise InvalidArgumentError(
            f"{option.name} cannot be used: {error.message}{_hint(item, word)}", **fields
        ) from error
    except (ValueError, OverflowError) as error:
        raise InvalidArgumentError(
            f"{option.name} must be a number{_hint(item, word)}",
            field=item.path,
            value=repr(text[:60]),
            accepted=item.accepted,
        ) from error


def _hint(item: Field, word: str) -> str:
    """What may have been meant by a limit that cannot be used."""
    lifted = word in _MEANT_UNLIMITED and item.kind in (Kind.BYTES, Kind.SECONDS, Kind.EVENTS)
    return f'; for no limit write "{UNLIMITED}"' if lifted and item.path != "grace_s" else ""


def read_document(source: str) -> PolicyDocument:
    """The policy document in the file, or of standard input for ``-``. Raises InvalidArgumentError."""
    if source == "-":
        text = sys.stdin.read(_FILE_MAX)
    else:
        path = Path(source)
        if not path.is_file():
            raise InvalidArgumentError("no such policy file", policy=source)
        if path.stat().st_size > _FILE_MAX:
            raise InvalidArgumentError("the policy file is too large; the limit is 1 MiB", policy=source)
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        body = jsonlib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            "the policy file is not JSON; docs/formats/policy.md has an example", policy=source, cause=str(error)[:80]
        ) from error
    return decode_document(body)


LevelArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SCOPE/STREAM", show_default=False, help="The stream; or a level above it: --scope, --server."
    ),
]
ScopeOption = Annotated[str | None, typer.Option("--scope", metavar="SCOPE", help=SCOPE, show_default=False)]
ServerOption = Annotated[bool, typer.Option("--server", help="All streams of the server.")]


def target_of(stream: str | None, scope: str | None, server: bool) -> PolicyTarget:
    """The one level that is named. Raises InvalidArgumentError, InvalidNameError."""
    if (stream is not None) + (scope is not None) + server != 1:
        raise InvalidArgumentError("name one level: SCOPE/STREAM, --scope SCOPE or --server")
    if stream is not None:
        if "/" not in stream:
            raise InvalidArgumentError(
                f"not a stream; write SCOPE/STREAM, or, for a whole scope, write --scope {stream[:60]}",
                stream=repr(stream[:60]),
            )
        return StreamName.parse(stream)
    return None if scope is None else check_name("scope", scope)


def target_in_words(target: PolicyTarget) -> str:
    """The level, for people."""
    if target is None:
        return "server"
    return str(target) if isinstance(target, StreamName) else f"scope {target}"
