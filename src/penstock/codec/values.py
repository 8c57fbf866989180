"""Values of the ports as msgpack and back, as their type hints describe them.

A record is a map of its fields, without fields that have their default value. So an earlier version understands it as
long as no new feature is used. Unknown fields are refused in requests and ignored in replies. An enum is its value, a
stream ``[scope, stream]``, a cut ``[scope, stream, {segment: offset}]``; sequences are read as tuples. Policies and
answers of the planner have their JSON form (docs/formats/policy.md, docs/formats/planner.md). Source:
docs/formats/native-api.md.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate
from typing import Any, NewType, TypeAlias, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec

from penstock.codec.answers import as_json, from_json
from penstock.codec.columns import Records, column
from penstock.codec.control.effective_policy import decode_effective, encode_effective
from penstock.codec.control.policy_document import decode_document, encode_document
from penstock.model.cuts import StreamCut
from penstock.model.errors import InvalidArgumentError, PenstockError, ProtocolError
from penstock.model.names import StreamName
from penstock.model.retention import EffectivePolicy, PolicyDocument
from penstock.model.segments import SegmentId
from penstock.model.values.dataclass import dataclass

Function: TypeAlias = Callable[[Any], Any]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, RecursionError, msgspec.DecodeError)


@dataclass(frozen=True, slots=True)
class Form:
    """How values of one type are encoded: the plain types that ``pack`` returns and ``unpack`` accepts.

    ``unpack`` raises TypeError, ValueError, KeyError, or what the value's own checks raise.
    """

    plain: tuple[type, ...]
    pack: Function
    unpack: Function


def _same(value: Any) -> Any:
    return value


def _checked(form: Form) -> Form:
    """The form, with an ``unpack`` that raises TypeError for other plain types: Python would convert many of them
    silently."""
    plain, inner = form.plain, form.unpack
    if object in plain:
        return form

    def unpack(value: Any) -> Any:
        if type(value) not in plain:
            raise TypeError(f"expected {' or '.join(kind.__name__ for kind in plain)}, got {type(value).__name__}")
        return value if inner is _same else inner(value)

    return Form(plain, form.pack, unpack)


def _unpack_stream(value: Any) -> StreamName:
    scope, stream = value
    return StreamName.parse(scope + "/" + stream)


def _unpack_cut(value: Any) -> StreamCut:
    scope, stream, positions = value
    if not all(type(item) is int for pair in positions.items() for item in pair):
        raise TypeError("positions of a cut must be whole numbers")
    return StreamCut(_unpack_stream((scope, stream)), {SegmentId(segment): at for segment, at in positions.items()})


_KNOWN: dict[Any, Form] = {
    Any: Form((object,), _same, _same),
    **{kind: Form((kind,), _same, _same) for kind in (type(None), bool, int, str)},
    **{kind: Form((bytes,), bytes, _same) for kind in (bytes, bytearray, memoryview)},
    float: Form((float, int), float, float),
    UUID: Form((bytes,), lambda value: value.bytes, lambda value: UUID(bytes=value)),
    StreamName: Form((list,), lambda value: [value.scope, value.stream], _unpack_stream),
    StreamCut: Form(
        (list,),
        lambda value: [value.stream.scope, value.stream.stream, dict(value.positions)],
        _unpack_cut,
    ),
    PolicyDocument: Form((dict,), encode_document, decode_document),
    EffectivePolicy: Form((dict,), encode_effective, decode_effective),
}


@cache
def form_of(hint: Any, *, strict: bool) -> Form:
    """The form of values of the type. ``strict``: records with unknown fields are refused.

    Raises TypeError for a type that no port uses yet.
    """
    return _checked(_form_of(hint, strict=strict))


def _form_of(hint: Any, *, strict: bool) -> Form:
    if hint in _KNOWN:
        return _KNOWN[hint]
    if isinstance(hint, NewType):
        return form_of(hint.__supertype__, strict=strict)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _union([form_of(item, strict=strict) for item in arguments])
    if origin is tuple and arguments[-1:] != (...,):
        return _fixed([form_of(item, strict=strict) for item in arguments])
    if origin in (tuple, list, Sequence):
        return _columns(arguments[0], strict=strict) or _sequence(form_of(arguments[0], strict=strict))
    if origin in (dict, Mapping):
        return _mapping(*(form_of(item, strict=strict) for item in arguments))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return Form(tuple({type(item.value) for item in hint}), lambda value: value.value, hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return Form((dict,), as_json, lambda value: from_json(hint, value))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _record(hint, strict=strict)
    raise TypeError(f"no form is known for {hint!r}")


def _union(forms: Sequence[Form]) -> Form:
    """The plain type selects the member, so no two members may share one, except kinds of byte strings."""
    by_plain = {plain: form for form in reversed(forms) for plain in form.plain}

    packing = _packing_any([form for form in forms if form.pack is not _same])
    return Form(tuple(by_plain), packing, lambda value: by_plain[type(value)].unpack(value))


def _packing_any(forms: Sequence[Form]) -> Function:
    if not forms:
        return _same

    def pack(value: Any) -> Any:
        if value is None:
            return None
        for form in forms:
            try:
                return form.pack(value)
            except (AttributeError, TypeError):
                continue
        return value

    return pack


def _sequence(item: Form) -> Form:
    pack: Function = list if item.pack is _same else lambda values: [item.pack(value) for value in values]

    return Form((list,), pack, lambda values: tuple([item.unpack(value) for value in values]))


def _columns(kind: Any, *, strict: bool) -> Form | None:
    """For records of whole numbers only, of which there may be millions: columns take a quarter of the size of maps."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return None
    hints = get_type_hints(kind)
    fields = {
        field.name: (form_of(hints[field.name], strict=strict), field.default) for field in dataclasses.fields(kind)
    }
    if not all(int in form.plain and {*form.plain} <= {int, type(None)} for form, _ in fields.values()):
        return None
    if all(default is not dataclasses.MISSING for _, default in fields.values()):
        return None  # Without a column, the number of records would be unknown.

    def pack(values: Any) -> Any:
        columns = {name: column(values, name) for name in fields}
        return {
            name: list(_differences(items))
            for name, items in columns.items()
            if fields[name][1] is dataclasses.MISSING or any(item != fields[name][1] for item in items)
        }

    needed = [name for name, (_, default) in fields.items() if default is dataclasses.MISSING]
    # A record that checks its fields is made, and so checked, at once.
    checks = hasattr(kind, "__post_init__")

    def unpack(value: Any) -> Any:
        _check_known(kind, value, fields, strict=strict)
        if not value.keys() >= {*needed}:
            raise ValueError(f"{kind.__name__} lacks {', '.join(sorted({*needed} - value.keys()))}")
        columns = {name: _unpack_column(form, value[name]) for name, (form, _) in fields.items() if name in value}
        found: Records[Any] = Records(kind, columns)
        return tuple(found) if checks else found

    return Form((dict,), pack, unpack)


def _unpack_column(form: Form, values: Any) -> list[int | None]:
    if type(values) is list and int in form.plain and all(type(item) is int for item in values):
        return list(accumulate(values))
    return list(_sums([form.unpack(item) for item in values]))


def _differences(items: Sequence[int | None]) -> Iterator[int | None]:
    before = 0
    for item in items:
        yield None if item is None else item - before
        before = before if item is None else item


def _sums(items: Sequence[int | None]) -> Iterator[int | None]:
    before = 0
    for item in items:
        before += item or 0
        yield None if item is None else before


def _check_known(kind: type, value: Mapping[str, Any], fields: Mapping[str, Any], *, strict: bool) -> None:
    if strict and not value.keys() <= fields.keys():
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(map(str, value.keys() - fields.keys())))}")


def _fixed(items: Sequence[Form]) -> Form:
    def pack(values: Any) -> Any:
        return [item.pack(value) for item, value in zip(items, values, strict=True)]

    def unpack(values: Any) -> Any:
        return tuple([item.unpack(value) for item, value in zip(items, values, strict=True)])

    return Form((list,), pack, unpack)


def _mapping(key: Form, item: Form) -> Form:
    if list in key.plain:  # msgpack cannot have these keys, so the mapping becomes pairs.
        pairs = _sequence(_fixed([key, item]))
        return Form((list,), lambda value: pairs.pack(value.items()), lambda value: dict(pairs.unpack(value)))

    def unpack(value: Any) -> Any:
        return {key.unpack(name): item.unpack(content) for name, content in value.items()}

    return Form((dict,), lambda value: {key.pack(name): item.pack(content) for name, content in value.items()}, unpack)


def _record(kind: type, *, strict: bool) -> Form:
    hints = get_type_hints(kind)
    fields = {
        field.name: (form_of(hints[field.name], strict=strict), _default(field)) for field in dataclasses.fields(kind)
    }

    def pack(value: Any) -> Any:
        made = {}
        for name, (form, default) in fields.items():
            content = getattr(value, name)
            if content is not default and content != default:
                made[name] = form.pack(content)
        return made

    def unpack(value: Any) -> Any:
        _check_known(kind, value, fields, strict=strict)
        return kind(**{name: form.unpack(value[name]) for name, (form, _) in fields.items() if name in value})

    return Form((dict,), pack, unpack)


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


class Call:
    """One call of a port: its name on the network, its request and its reply as bytes.

    Its forms are made at its first use: a server knows 130 calls at its start, and is asked for few of them. A type that has
    no form raises TypeError then.
    """

    def __init__(self, name: str, declared: Callable[..., Any]) -> None:
        """``declared``: the method of the Protocol."""
        self.name = name
        self.declared = declared

    @cached_property
    def _hints(self) -> Mapping[str, Any]:
        return get_type_hints(self.declared)

    @cached_property
    def _parameters(self) -> Mapping[str, tuple[Form, Any]]:
        return {
            parameter.name: (form_of(self._hints[parameter.name], strict=True), parameter.default)
            for parameter in list(inspect.signature(self.declared).parameters.values())[1:]
        }

    @cached_property
    def _reply(self) -> Form:
        return form_of(self._hints["return"], strict=False)

    def encode_request(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> bytes:
        """Raises TypeError as a call in Python does; InvalidArgumentError for a value that cannot be sent."""
        if len(arguments) > len(self._parameters) or not named.keys() <= self._parameters.keys():
            raise TypeError(f"{self.name} takes {', '.join(self._parameters)}")
        given = dict(zip(self._parameters, arguments, strict=False)) | dict(named)
        made = {}
        try:
            for name, (form, default) in self._parameters.items():
                if name in given and given[name] is not default:
                    made[name] = form.pack(given[name])
                elif default is inspect.Parameter.empty and name not in given:
                    raise TypeError(f"{self.name} needs {name}")
            return _encode(made)
        except (OverflowError, RecursionError, AttributeError, ValueError) as error:
            raise InvalidArgumentError("value does not fit into the request", call=self.name, why=str(error)) from error

    def decode_request(self, data: bytes) -> dict[str, Any]:
        """The arguments by name. Raises InvalidArgumentError, and what the values' own checks raise."""
        try:
            given = _decode(data)
            unknown = given.keys() - self._parameters.keys()
            if unknown:
                raise ValueError(f"{self.name} has no parameter {', '.join(sorted(map(str, unknown)))}")
            return {
                name: form.unpack(given[name]) if name in given or default is inspect.Parameter.empty else default
                for name, (form, default) in self._parameters.items()
            }
        except PenstockError:
            raise
        except _UNREADABLE as error:
            raise InvalidArgumentError("not a request of this call", call=self.name, why=str(error)[:200]) from error

    def encode_reply(self, value: Any) -> bytes:
        return _encode(self._reply.pack(value))

    def decode_reply(self, data: bytes) -> Any:
        """Raises ProtocolError."""
        try:
            return self._reply.unpack(_decode(data))
        except (PenstockError, *_UNREADABLE) as error:
            raise ProtocolError("reply cannot be decoded", call=self.name, why=str(error)[:200]) from error
