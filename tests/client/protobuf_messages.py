"""Protobuf classes without generated files: ``shop/orders.proto``, which imports ``shop/money.proto``."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_TEXT, _LONG, _MESSAGE = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_MESSAGE,
)


def _field(message: Any, name: str, number: int, kind: int, type_name: str = "") -> None:
    field = message.field.add(name=name, number=number, type=kind, label=FieldDescriptorProto.LABEL_OPTIONAL)
    if type_name:
        field.type_name = type_name


def _files() -> list[FileDescriptorProto]:
    money = FileDescriptorProto(name="shop/money.proto", package="shop", syntax="proto3")
    _field(money.message_type.add(name="Money"), "cents", 1, _LONG)
    orders = FileDescriptorProto(name="shop/orders.proto", package="shop", syntax="proto3")
    orders.dependency.append(money.name)
    _field(orders.message_type.add(name="Customer"), "name", 1, _TEXT)
    order = orders.message_type.add(name="Order")
    _field(order.nested_type.add(name="Line"), "count", 1, _LONG)
    _field(order, "number", 1, _LONG)
    _field(order, "total", 2, _MESSAGE, ".shop.Money")
    return [money, orders]


_POOL = DescriptorPool()
for _file in _files():
    _POOL.Add(_file)

Customer = GetMessageClass(_POOL.FindMessageTypeByName("shop.Customer"))
Order = GetMessageClass(_POOL.FindMessageTypeByName("shop.Order"))
Line = GetMessageClass(_POOL.FindMessageTypeByName("shop.Order.Line"))
Money = GetMessageClass(_POOL.FindMessageTypeByName("shop.Money"))
