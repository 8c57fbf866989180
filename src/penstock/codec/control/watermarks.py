"""What the controller stores about watermarks. Source: docs/formats/metadata.md."""

from __future__ import annotations

from typing import Annotated

from penstock.codec.control.record import Field, JsonRecord, Positions, dump_positions
from penstock.model.values.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterMarkRecord(JsonRecord):
    """The time and position that a writer noted last."""

    KIND = "writer mark"
    time_ms: Annotated[int, Field("the noted time; ms by convention")]
    position: Annotated[Positions, Field("where the writer had written to", dump=dump_positions)]
    noted_ms: Annotated[int, Field("wall clock, ms: when it was noted")]
    left: Annotated[bool, Field("the writer was removed", optional=True)] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRecord(JsonRecord):
    """The last watermark of a stream, and the place after it in the mark stream. There may be a newer one after it."""

    KIND = "watermark"
    segment: Annotated[int, Field("segment of the mark stream")]
    place: Annotated[int, Field("offset after the watermark, bytes")]
    lower_ms: Annotated[int, Field("lower bound of times; ms by convention")]
    upper_ms: Annotated[int, Field("upper bound of times")]
    cut: Annotated[Positions, Field("the position that it speaks of", dump=dump_positions)]
