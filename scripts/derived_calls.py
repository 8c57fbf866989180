"""Extension of mkdocstrings: the derived methods of the blocking client, with the parameters and texts of their originals.

It reads source without running it, where ``head = blocking(AsyncStream.head)`` is an attribute.
"""

from __future__ import annotations

from typing import Any

import griffe

DERIVING = {"blocking", "blocking_as", "counterpart_of"}
"""The functions of ``penstock.client.blocking.derived``."""


def derived(attribute: Any) -> griffe.Function | None:
    """The method that the value of ``attribute`` makes, or None if it makes none."""
    call = attribute.value
    if not isinstance(call, griffe.ExprCall) or str(call.function) not in DERIVING:
        return None
    owner, _, name = str(call.arguments[0]).rpartition(".")
    collection = attribute.modules_collection
    original = collection[attribute.resolve(owner)].all_members[name]
    returns = call.arguments[1] if len(call.arguments) > 1 else original.returns
    method = griffe.Function(attribute.name, parameters=original.parameters, returns=returns, lineno=attribute.lineno)
    text = original.docstring
    method.docstring = text and griffe.Docstring(text.value, parent=method, parser=text.parser)
    return method


def described(method: griffe.Function) -> None:
    """Give a method that is decorated with ``described_by(AsyncStream.reader, ...)`` the parameters and text of that one."""
    for decorator in method.decorators:
        call = decorator.value
        if isinstance(call, griffe.ExprCall) and str(call.function) == "described_by":
            owner, _, name = str(call.arguments[0]).rpartition(".")
            original = method.modules_collection[method.parent.resolve(owner)].all_members[name]
            method.parameters, text = original.parameters, original.docstring
            method.docstring = text and griffe.Docstring(text.value, parent=method, parser=text.parser)


class DerivedCalls(griffe.Extension):
    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Replace the attributes by methods, once the whole package is known."""
        for module in pkg["client.blocking"].modules.values():
            for kind in module.classes.values():
                if kind.is_alias:  # imported from another module
                    continue
                for method in kind.functions.values():
                    if not method.is_alias:
                        described(method)
                for name, attribute in list(kind.attributes.items()):
                    method = None if attribute.is_alias else derived(attribute)
                    if method is not None:
                        kind.set_member(name, method)
