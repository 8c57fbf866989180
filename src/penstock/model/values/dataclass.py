"""``dataclass`` of the standard library, with methods that are compiled at their first call.

The decorator of the standard library compiles six methods for each class, 0.5 to 1 ms of CPU. A server imports four
hundred such classes before its first event, and needs the methods of few. Fields, slots, ``replace``, ``asdict``, ``match``,
pickles and errors are as with the standard library, and type checkers see its decorator. Classes without slots, with an
order, or with a frozen base are left to it. ``InitVar`` is not supported.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

_Method = Callable[..., Any]
_DEFAULT = "_default_"


class _Factory:
    """Stands for an argument that was not given and whose default a function makes."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()
_KNOWN = {"slots", "frozen", "eq", "repr", "init", "kw_only"}


def _made(cls: type | None = None, /, **options: bool) -> Any:
    """Make a class a dataclass. ``options``: as for ``dataclasses.dataclass``."""
    if cls is None:
        return lambda one: _made(one, **options)
    if not options.get("slots") or not options.keys() <= _KNOWN or any(map(_is_frozen, cls.__mro__)):
        return dataclasses.dataclass(**options)(cls)
    return _make(cls, options)


def _is_frozen(cls: Any) -> bool:
    return "__dataclass_params__" in cls.__dict__ and bool(cls.__dataclass_params__.frozen)


def _make(cls: type, options: Mapping[str, bool]) -> type:
    frozen, eq = options.get("frozen", False), options.get("eq", True)
    own = dict(cls.__dict__)
    if not cls.__doc__:
        cls.__doc__ = cls.__name__  # else the standard library writes the signature there, which is slow
    # Immutability comes from the methods below: those of the standard library are compiled for each class.
    made: Any = dataclasses.dataclass(
        init=False, repr=False, eq=False, slots=True, kw_only=options.get("kw_only", False)
    )(cls)
    for name in ("init", "repr", "eq", "frozen"):
        setattr(made.__dataclass_params__, name, options.get(name, name != "frozen"))
    methods: dict[str, Any] = {}
    if options.get("init", True):
        methods["__init__"] = _late(made, "__init__", _init)
        methods["__signature__"] = _Signature()
    if options.get("repr", True):
        methods["__repr__"] = _late(made, "__repr__", _repr)
    if eq:
        methods["__eq__"] = _late(made, "__eq__", _eq)
    if frozen:
        methods |= _frozen(made)
    for name, method in methods.items():
        if name not in own:
            setattr(made, name, method)
    if eq and own.get("__hash__") is None and ("__hash__" not in own or "__eq__" in own):
        made.__hash__ = _late(made, "__hash__", _hash) if frozen else None
    return made  # type: ignore[no-any-return]


def _late(owner: type, name: str, write: Callable[[type], _Method]) -> _Method:
    """A method that is written at its first call, and then takes the place of this one."""

    def method(self: Any, /, *args: Any, **named: Any) -> Any:
        return settle()(self, *args, **named)

    def settle() -> _Method:
        written = write(owner)
        written.__qualname__, written.__module__ = f"{owner.__qualname__}.{name}", owner.__module__
        # Two threads can both write it: the methods are the same.
        setattr(owner, name, written)
        return written

    method.__name__, method.__qualname__, method.__module__ = name, f"{owner.__qualname__}.{name}", owner.__module__
    method.settle = settle  # type: ignore[attr-defined]
    return method


def _compiled(name: str, parameters: str, lines: list[str], known: dict[str, Any]) -> _Method:
    space = dict(known)
    exec(f"def {name}({parameters}):\n " + "\n ".join(lines or ["pass"]), space)
    method: _Method = space[name]
    return method


def _init(owner: Any) -> _Method:
    known: dict[str, Any] = {"_set": object.__setattr__, "_factory": _FACTORY}
    frozen = _is_frozen(owner)
    plain: list[str] = ["self"]
    named: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(owner):
        name, default = field.name, f"{_DEFAULT}{field.name}"
        has_factory = field.default_factory is not dataclasses.MISSING
        has_default = field.default is not dataclasses.MISSING
        if has_factory or has_default:
            known[default] = field.default_factory if has_factory else field.default
        if field.init:
            shown = f"{name}=_factory" if has_factory else f"{name}={default}" if has_default else name
            (named if field.kw_only else plain).append(shown)
            value = f"{default}() if {name} is _factory else {name}" if has_factory else name
        elif has_factory or has_default:
            value = f"{default}()" if has_factory else default
        else:
            continue
        slot = getattr(owner, name, None)
        if not frozen:
            lines.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):
            # Sets the slot itself: two thirds of the time of ``object.__setattr__``.
            known[f"_set_{name}"] = slot.__set__
            lines.append(f"_set_{name}(self, {value})")
        else:
            lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(owner, "__post_init__"):
        lines.append("self.__post_init__()")
    written = _compiled("__init__", ", ".join([*plain, *(["*", *named] if named else [])]), lines, known)
    written.__annotations__ = {field.name: field.type for field in dataclasses.fields(owner) if field.init}
    written.__annotations__["return"] = None
    return written


def _repr(owner: Any) -> _Method:
    from reprlib import recursive_repr

    shown = ", ".join(f"{field.name}={{self.{field.name}!r}}" for field in dataclasses.fields(owner) if field.repr)
    text = f"return self.__class__.__qualname__ + f{f'({shown})'!r}"
    return recursive_repr("...")(_compiled("__repr__", "self", [text], {}))


def _eq(owner: Any) -> _Method:
    names = [field.name for field in dataclasses.fields(owner) if field.compare]
    mine, other = _tuple("self", names), _tuple("other", names)
    same = ["if other.__class__ is self.__class__:", f" return {mine} == {other}", "return NotImplemented"]
    return _compiled("__eq__", "self, other", same, {})


def _hash(owner: Any) -> _Method:
    found = [field.name for field in dataclasses.fields(owner) if (field.compare if field.hash is None else field.hash)]
    return _compiled("__hash__", "self", [f"return hash({_tuple('self', found)})"], {})


def _tuple(of: str, names: list[str]) -> str:
    return "(" + "".join(f"{of}.{name}," for name in names) + ")"


def _frozen(owner: Any) -> dict[str, _Method]:
    """What refuses changes, and what pickles write and read instead of changing attributes."""
    names = frozenset(field.name for field in dataclasses.fields(owner))

    def refuse_to_set(self: Any, name: str, value: Any) -> None:
        if type(self) is owner or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(owner, self).__setattr__(name, value)

    def refuse_to_delete(self: Any, name: str) -> None:
        if type(self) is owner or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(owner, self).__delattr__(name)

    return {
        "__setattr__": refuse_to_set,
        "__delattr__": refuse_to_delete,
        "__getstate__": _state,
        "__setstate__": _restore,
    }


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=False):
        object.__setattr__(self, field.name, value)


class _Signature:
    """``inspect.signature`` of the class, from the ``__init__`` that the first look compiles."""

    def __get__(self, instance: object, owner: Any) -> Any:
        for base in owner.__mro__:
            written = base.__dict__.get("__init__")
            if hasattr(written, "settle"):
                written.settle()
            if written is not None:
                break
        found = inspect.signature(owner.__init__)
        return found.replace(parameters=list(found.parameters.values())[1:])


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _made
