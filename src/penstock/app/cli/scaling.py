"""``penstock stream scaling``."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.app.cli.common.options import SEGMENTS
from penstock.app.cli.common.output import print_facts, say
from penstock.app.cli.common.target import ControllerOption, DataOption, JsonOption, StreamArgument, open_target
from penstock.app.cli.common.words import moment
from penstock.core.scaling.decision import show
from penstock.model.answers.scaling import StreamScaling
from penstock.model.errors import InvalidArgumentError
from penstock.model.policies import ScaleType, ScalingPolicy

app = typer.Typer(help="Scale a stream by the rate of its events.", no_args_is_help=True)

EventsOption = Annotated[
    int | None,
    typer.Option("--events-per-s", metavar="N", help="Target rate of each segment, in events.", show_default=False),
]
KilobytesOption = Annotated[
    int | None,
    typer.Option("--kbytes-per-s", metavar="N", help="Target rate of each segment, in kB.", show_default=False),
]
FactorOption = Annotated[
    int, typer.Option("--factor", metavar="N", help="Split a segment into at most this many parts.")
]


def scaling_policy(events: int | None, kbytes: int | None, factor: int, segments: int) -> ScalingPolicy:
    """The policy that the options state; without a rate, a fixed number of segments. Raises InvalidArgumentError."""
    if events is not None and kbytes is not None:
        raise InvalidArgumentError("give a rate in events or in kB, not both", events=events, kbytes=kbytes)
    if events is None and kbytes is None:
        return ScalingPolicy(min_segments=segments)
    kind = ScaleType.KILOBYTES_PER_S if events is None else ScaleType.EVENTS_PER_S
    rate = events if kbytes is None else kbytes
    return ScalingPolicy(type=kind, target_rate=rate or 0, factor=factor, min_segments=segments)


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
    factor: FactorOption = 2,
    segments: Annotated[
        int, typer.Option("--segments", metavar="N", min=1, help=f"{SEGMENTS} By rate: the least.")
    ] = 1,
    controller: ControllerOption = None,
    data: DataOption = None,
    json: JsonOption = False,
) -> None:
    """Scale the stream by rate from now on. Without a rate, it gets a fixed number of segments.

    \b
    penstock stream scaling set demo/clicks --events-per-s 1000 --factor 4 --segments 2
    """
    policy = scaling_policy(events, kbytes, factor, segments)
    with open_target(controller, data) as store:
        store.stream(stream).update(scaling=policy)
    say(f"{stream}: {policy_in_words(policy)}", as_json=json, stream=stream, **policy_fields(policy))


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
        or "none since the server started; penstock audit has earlier ones",
    }
