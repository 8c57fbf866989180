"""Which stream each row goes to. Needs numpy and pyarrow. Source: docs/design/0016-sink.md, "Several streams"."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.model.errors import InvalidArgumentError, InvalidNameError
from penstock.model.names import StreamName
from penstock.spark.arrays import numbers
from penstock.spark.options import WriteOptions
from penstock.spark.writing.frames import Places, check_targets

_SHOWN = 200  # characters of a bad value in an error


class RowTargets:
    """Assigns rows to streams: all to the target of the options, or each to the stream that its columns name."""

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._known: dict[tuple[str | None, str], StreamName] = {}

    def split(self, rows: pa.RecordBatch) -> list[tuple[StreamName, Places | None]]:
        """The streams of the rows, each once, with the places of its rows in order; None: all rows.

        Raises: InvalidArgumentError (a row names no stream, or not the target), InvalidNameError.
        """
        target = self._options.target
        if target is not None:
            check_targets(rows, self._columns, target)
            return [(target, None)]
        for name in self._columns:
            if rows.column(name).null_count:
                raise InvalidArgumentError(
                    "a row names no stream; filter or fill the column first",
                    column=name,
                    nulls=rows.column(name).null_count,
                )
        streams = rows.column("stream").dictionary_encode()
        names: list[str] = streams.dictionary.to_pylist()
        codes = numbers(streams.indices).astype(np.int64)
        scopes: list[str | None] = [None]
        if "scope" in self._columns:
            coded = rows.column("scope").dictionary_encode()
            scopes = coded.dictionary.to_pylist()
            codes = codes * len(scopes) + numbers(coded.indices)
        found: dict[StreamName, list[int]] = {}
        for code in np.unique(codes).tolist():
            found.setdefault(self._stream(scopes[code % len(scopes)], names[code // len(scopes)]), []).append(code)
        if len(found) == 1:
            return [(stream, None) for stream in found]
        return [(stream, np.flatnonzero(np.isin(codes, chosen))) for stream, chosen in found.items()]

    def _stream(self, scope: str | None, name: str) -> StreamName:
        known = self._known.get((scope, name))
        if known is None:
            known = self._known[scope, name] = self._parsed(scope, name)
        return known

    def _parsed(self, scope: str | None, name: str) -> StreamName:
        given = self._options.scope
        if scope is not None and given is not None and scope != given:
            raise InvalidArgumentError(
                "a row names another scope than option scope; drop the option, or filter the rows",
                column="scope",
                found=scope[:_SHOWN],
                scope=given,
            )
        scope = given if scope is None else scope
        if scope is None and "/" not in name:
            raise InvalidArgumentError(
                "a row names a stream without its scope; write SCOPE/STREAM, add a column scope, or set option scope",
                column="stream",
                found=name[:_SHOWN],
            )
        try:
            stream = (StreamName.parse(name) if "/" in name else StreamName(scope or "", name)).checked()
        except InvalidNameError as error:
            raise InvalidNameError(
                f"a row has an illegal stream name: {error.message}",
                **({} if scope is None else {"scope": scope[:_SHOWN]}),
                stream=name[:_SHOWN],
            ) from None
        if scope is not None and stream.scope != scope:
            raise InvalidArgumentError("a row names two scopes", scope=scope[:_SHOWN], stream=name[:_SHOWN])
        return stream
