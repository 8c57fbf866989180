"""``penstock stream scaling``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.app.cli.common.options import SEGMENTS
from penstock.app.cli.common.output import print_facts, say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.app.cli.common.words import moment
from penstock.core.scaling.decision import show
from penstock.core.units import counted
from penstock.model.answers.scaling import StreamScaling
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import INT_MAX, ScaleType, ScalingPolicy

app = typer.Typer(help="Scale a stream by the rate of its events.", no_args_is_help=True)

EventsOption = Annotated[
    int | None,
    typer.Option("--events-per-s", metavar="N", help="Target rate of each segment, in events.", show_default=False),
]
KilobytesOption = Annotated[
    int | None,
    typer.Option("--kbytes-per-s", metavar="N", help="Target rate of each segment, in kB.", show_default=False),
]
FACTOR = 2
"""Into how many parts a busy segment is split at most, by default."""

FactorOption = Annotated[
    int | None,
    typer.Option(
        "--factor",
        metavar="N",
        help=f"With a rate: split a segment into at most this many parts.  [default: {FACTOR}]",
        show_default=False,
    ),
]


def scaling_policy(events: int | None, kbytes: int | None, factor: int | None, segments: int) -> ScalingPolicy:
    """The policy that the options state; without a rate, a fixed number of segments. Raises InvalidArgumentError."""
    if events is not None and kbytes is not None:
        raise InvalidArgumentError("give a rate in events or in kB, not both", events=events, kbytes=kbytes)
    if events is None and kbytes is None:
        if factor is not None:
            raise InvalidArgumentError("--factor needs a rate: --events-per-s or --kbytes-per-s", factor=factor)
        return ScalingPolicy(min_segments=segments)
    for option, given, least in (("--events-per-s", events, 1), ("--kbytes-per-s", kbytes, 1), ("--factor", factor, 2)):
        if given is not None and not least <= given <= INT_MAX:
            raise InvalidArgumentError(f"{option} must be a whole number from {least} to {INT_MAX}", value=given)
    kind = ScaleType.KILOBYTES_PER_S if events is None else ScaleType.EVENTS_PER_S
    rate = events if kbytes is None else kbytes
    return ScalingPolicy(
        type=kind, target_rate=rate or 0, factor=FACTOR if factor is None else factor, min_segments=segments
    )


def policy_in_words(policy: ScalingPolicy) -> str:
    """``at least 2 segments of up to 100 events/s each, factor 4``, or ``fixed``."""
    if policy.type is ScaleType.FIXED:
        return "fixed number of segments"
    rate = f"{policy.target_rate} {unit_of(policy)}/s"
    return f"by rate: {rate} for each segment, factor {policy.factor}, at least {policy.min_segments}"


def unit_of(policy: ScalingPolicy) -> str:
    """What the policy counts."""
    return "kB" if policy.type is ScaleType.KILOBYTES_PER_S else "events"


@app.command("set")
def set_policy(
    stream: StreamArgument,
    events: EventsOption = None,
    kbytes: KilobytesOption = None,
    factor: FactorOption = None,
    segments: Annotated[
        int | None,
        typer.Option(
            "--segments",
            metavar="N",
            min=1,
            help=f"{SEGMENTS} With a rate: the least.  [default: 1 with a rate, else as many as there are]",
            show_default=False,
        ),
    ] = None,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Scale the stream by rate from now on, or stop that: without a rate, its number of segments is fixed.

    A fixed number that differs from the present one splits or merges segments at once.

    \b
    penstock stream scaling set demo/clicks --events-per-s 1000 --factor 4 --segments 2
    penstock stream scaling set demo/clicks                  keep the segments that there are
    penstock stream scaling set demo/clicks --segments 4
    """
    policy = scaling_policy(events, kbytes, factor, segments or 1)
    with open_target(controller, data) as store:
        if policy.type is ScaleType.FIXED and segments is None:
            policy = ScalingPolicy(min_segments=len(store.stream(stream).describe().segments))
        store.stream(stream).update(scaling=policy)
    count = f": {counted(policy.min_segments, 'segment')}" if policy.type is ScaleType.FIXED else ""
    say(f"{stream}: {policy_in_words(policy)}{count}", as_json=json, stream=stream, **policy_fields(policy))


@app.command()
def explain(
    stream: StreamArgument, controller: ControllerOption = None, data: DataOption = None, json: JsonOption = False
) -> None:
    """Print the rates of each segment, what would be done now and why, and the last changes with their reasons.

    \b
    penstock stream scaling explain demo/clicks
    """
    with open_target(controller, data) as store:
        found = store.stream(stream).explain_scaling()
    print_facts(scaling_fields(found) if json else scaling_texts(found), as_json=json)


def policy_fields(policy: ScalingPolicy) -> dict[str, object]:
    """The policy as fields of JSON."""
    return {
        "type": policy.type.value,
        "target_rate": policy.target_rate,
        "factor": policy.factor,
        "min_segments": policy.min_segments,
    }


def scaling_fields(found: StreamScaling) -> dict[str, object]:
    """What ``explain`` prints as JSON. Rates are per second over 2, 5, 10 and 20 minutes."""
    return {
        "stream": str(found.stream),
        "policy": policy_fields(found.policy),
        "epoch": found.epoch,
        "action": found.action.value,
        "reason": found.reason,
        "segments": [
            {
                "segment": show(item.range.segment),
                "low": item.range.keys.low,
                "high": item.range.keys.high,
                "heat": item.heat.value,
                "rates": None
                if item.rates is None
                else [item.rates.two, item.rates.five, item.rates.ten, item.rates.twenty],
            }
            for item in found.segments
        ],
        "changes": [
            {"at_ms": item.at_ms, "action": item.action.value, "epoch": item.epoch, "reason": item.reason}
            for item in found.changes
        ],
    }


def scaling_texts(found: StreamScaling) -> dict[str, object]:
    """What ``explain`` prints for people."""
    unit = unit_of(found.policy)
    return {
        "stream": f"{found.stream}, epoch {found.epoch}",
        "scaling": policy_in_words(found.policy),
        "now": found.reason,
        "segments": [
            f"{show(item.range.segment)}  keys [{item.range.keys.low:.4f}, {item.range.keys.high:.4f})  {item.heat.value}"
            + (
                "  not measured yet"
                if item.rates is None
                else f"  {item.rates.two:.1f} / {item.rates.five:.1f} / {item.rates.ten:.1f} / {item.rates.twenty:.1f} "
                f"{unit}/s over 2 / 5 / 10 / 20 min"
            )
            for item in found.segments
        ]
        or "none are measured",
        "changes": [f"{moment(item.at_ms)}  {item.reason}" for item in found.changes]
        or f"none since the server started; earlier ones: penstock retention audit {found.stream} --kind scale",
    }
