"""Records of the controller's table: one JSON object for each key, with a version in each.

Readable on purpose: an engineer at night can read a key with any table tool. A record is a dataclass; annotations of
its fields define how they are stored. The data dictionary (``codec.dictionary``) is made from the same annotations.
Source: docs/formats/metadata.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self, TypeVar, get_args, get_type_hints

import msgspec

from penstock.model.errors import CorruptDataError, PenstockError, VersionTooNewError
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

VERSION = 1

Positions = Mapping[SegmentId, int]
Fields = dict[str, Any]
R = TypeVar("R")

_encode = msgspec.json.Encoder(uuid_format="hex").encode


class Record(Protocol):
    """A value of the controller's table."""

    def encode(self) -> bytes: ...

    @classmethod
    def decode(cls, data: bytes) -> Self: ...


@dataclass(frozen=True, slots=True)
class Field:
    """How a field of a record is stored, and what it means.

    Args:
        text: Meaning and unit, for the data dictionary. name: Its name in JSON, if different from the attribute.
        optional: Left out while it has its default. added: Always written, but records of earlier versions may lack it.
        version: The first version of the record that has the field. A record that has the field is written with this
        version, so that an older program refuses it instead of doing harm. dump: Converts the value to JSON, if
        msgspec's form is not the stored one. Not called for None. A named function, like ``load``: the annotation of a
        lambda is evaluated outside of its module. load: Converts JSON to the value. Not called for None.
    """

    text: str
    name: str = ""
    optional: bool = False
    added: bool = False
    version: int = VERSION
    dump: Callable[[Any], Any] | None = None
    load: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredField:
    """A field of a record type: attribute, type, default, and its ``Field``."""

    attribute: str
    type: Any
    default: Any
    form: Field

    @property
    def key(self) -> str:
        return self.form.name or self.attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """How a record type is stored: its fields in the order in which they are written, and how they are read."""

    fields: tuple[StoredField, ...]
    newest: int
    read: Callable[[bytes], Any]


_FORMS: dict[type, RecordForm] = {}
_NOT_NULL = bool | int | float | str | list[Any] | dict[str, Any]
"""Any JSON except null, for which ``load`` is not called."""


def record_form(kind: type) -> RecordForm:
    """The form of a subclass of ``JsonRecord``, read from its annotations once."""
    if kind not in _FORMS:
        hints = get_type_hints(kind, include_extras=True)
        found, wire = [], []
        for item in dataclasses.fields(kind):
            bare, form = get_args(hints[item.name])
            default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
            stored = StoredField(attribute=item.name, type=bare, default=default, form=form)
            found.append(stored)
            optional = {"default": default} if form.optional or form.added else {}
            wire_type = bare if form.load is None else Any if type(None) in get_args(bare) else _NOT_NULL
            wire.append((item.name, wire_type, msgspec.field(name=stored.key, **optional)))
        _FORMS[kind] = RecordForm(
            fields=tuple(found),
            newest=max((item.form.version for item in found), default=VERSION),
            read=msgspec.json.Decoder(msgspec.defstruct(kind.__name__, wire)).decode,
        )
    return _FORMS[kind]


class JsonRecord:
    """Base of the records. All fields of a subclass, a frozen dataclass, are annotated with a ``Field``.

    Decoding an encoded record returns the same record. Fields that this version does not know are ignored.
    """

    __slots__ = ()
    KIND: ClassVar[str]
    """Name of the record in errors."""

    def encode(self) -> bytes:
        version, fields = VERSION, {}
        for item in record_form(type(self)).fields:
            value, form = getattr(self, item.attribute), item.form
            if form.optional and value == item.default:
                continue
            version = max(version, form.version)
            fields[item.key] = value if form.dump is None or value is None else form.dump(value)
        return dump_record(fields, version=version)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Raises VersionTooNewError, CorruptDataError."""
        return checked(cls.KIND, data, cls.of, newest=record_form(cls).newest)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """The record, without a check of its version. Raises LookupError, TypeError, ValueError, PenstockError."""
        form = record_form(cls)
        read = form.read(data)
        values = {}
        for item in form.fields:
            value, load = getattr(read, item.attribute), item.form.load
            values[item.attribute] = value if load is None or value is None else load(value)
        return cls(**values)


class _Versioned(msgspec.Struct):
    v: int


_version_of = msgspec.json.Decoder(_Versioned).decode


def checked(kind: str, data: bytes, build: Callable[[bytes], R], *, newest: int = VERSION) -> R:
    """The record that ``build`` returns for the bytes. Raises VersionTooNewError, CorruptDataError."""
    try:
        version = _version_of(data).v
        if version > newest:
            raise VersionTooNewError("metadata was written by a newer version", record=kind, version=version)
        return build(data)
    except VersionTooNewError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, PenstockError) as error:
        raise CorruptDataError("metadata record cannot be read", record=kind, data=bytes(data[:80])) from error


def dump_record(fields: Fields, *, version: int = VERSION) -> bytes:
    """The bytes of a record with these fields."""
    return _encode({"v": version, **fields})


def load_record(kind: str, data: bytes, build: Callable[[Fields], R], *, newest: int = VERSION) -> R:
    """The record that ``build`` returns for the fields. Raises VersionTooNewError, CorruptDataError."""
    return checked(kind, data, lambda data: build(msgspec.json.decode(data)), newest=newest)


def dump_positions(cut: Positions) -> dict[str, int]:
    """A cut, or lengths of segments, sorted by segment."""
    return {str(segment): cut[segment] for segment in sorted(cut)}


def load_positions(fields: Mapping[str, int]) -> Positions:
    return {SegmentId(int(segment)): int(offset) for segment, offset in fields.items()}
