"""One error for a whole request, in the shape of its response.

Kafka's rule (`getErrorResponse` of each request): a response with an error code at its top carries
the error there. Any other response mirrors its request: it names the same topics, partitions,
groups, ... and gives the error to each of them. Both shapes are read off the declarations of the
messages, in the version of the request. A handler whose API has another rule declares it with
`@handles(..., refuse=...)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from magnetar.apis.transaction_versions import code_for_version
from wire.error_code import ErrorCode
from wire.errors import KafkaError
from wire.message import Message, Struct
from wire.schema import Field, fields_of
from wire.types import Array, Nested, WireType

#: (request, version, error) -> the response that refuses the request; None where none is sent.
Refuse = Callable[[Any, int, KafkaError], Message | None]

#: Fields that name a thing. Their values are copied; whatever else the request says is not.
_NAMES = frozenset(
    {
        *("group_id", "key", "transactional_id", "producer_id"),
        *("name", "topic", "topic_id", "topic_name"),
        *("index", "partition", "partition_id", "partition_index"),
        *("resource_name", "resource_type"),
    }
)


def mirror(
    response_class: type[Message],
    *,
    fenced_since: int = 0,
    at_each: bool = False,
    **values: object,
) -> Refuse:
    """Return a function that refuses requests with a `response_class`.

    `fenced_since`: the first version whose clients know PRODUCER_FENCED; older ones are told
    INVALID_PRODUCER_EPOCH (KIP-588). `at_each`: each thing that the request names has the error
    too, besides the top. `values`: fields to set beside the error code, because Kafka sends
    something else than the schema's default.
    """

    def refuse(request: Message, version: int, error: KafkaError) -> Message:
        code = code_for_version(error.code, version, fenced_since=fenced_since)
        reading = _Mirror(version, code, {"error_message": error.detail or None, **values})
        fields = reading.error(response_class)
        if fields is None or at_each:
            fields = {**(fields or {}), **reading.things(response_class, request)}
        return response_class(**fields)

    return refuse


class _Mirror(NamedTuple):
    """One error in one version of a response; the methods return fields of its structs."""

    version: int
    code: ErrorCode
    values: dict[str, Any]

    def error(self, struct: Any) -> dict[str, Any] | None:
        """Return the fields that say the error; None where the struct has no error code."""
        fields = self._present(struct)
        # By its end: AddPartitionsToTxn calls the field partition_error_code.
        error_code = next((name for name in fields if name.endswith("error_code")), None)
        if error_code is None:
            return None
        # Fields that this version lacks are left out: the encoder would refuse them.
        beside = {name: value for name, value in self.values.items() if name in fields}
        return {**beside, error_code: self.code}

    def things(self, struct: Any, asked: Any) -> dict[str, Any]:
        """Return the list field of refused things, one for each that `asked` names.

        `asked` is the request, or one of its structs. No field if `struct` has no such list.
        """
        for name, field in self._present(struct).items():
            element = field.element_struct
            if element is None or not self._says_errors(element):
                continue
            # A request may have other lists, but the things it is about are in the first one.
            things, things_type = next(
                (getattr(asked, one.name) or (), one.type.element)
                for one in self._present(type(asked)).values()
                if isinstance(one.type, Array)
            )
            return {name: [self._thing(element, thing, things_type) for thing in things]}
        return {}

    def _thing(self, struct: Any, thing: object, thing_type: WireType) -> Struct:
        fields = self.error(struct)
        if fields is None:
            fields = self.things(struct, thing)
        refused: Struct = struct(**self._names(struct, thing, thing_type), **fields)
        return refused

    def _names(self, struct: Any, thing: object, thing_type: WireType) -> dict[str, Any]:
        names = {}
        for name, field in self._present(struct).items():
            if name not in _NAMES:
                continue
            value, value_type = thing, thing_type
            if isinstance(thing_type, Nested):
                # A request may call the field otherwise than its response, and then has it first:
                # PartitionData.partition_index is FetchPartition.partition.
                fields = self._present(thing_type.struct)
                source = fields.get(name) or next(iter(fields.values()))
                value, value_type = getattr(thing, source.name), source.type
            # A field of another type is another thing's name. Scalars and strings are single
            # objects, so `is` compares types.
            if value_type is field.type and (value is not None or self.version in field.nullable):
                names[name] = value
        return names

    def _says_errors(self, struct: Any) -> bool:
        """Return whether the struct, or one in its lists, has an error code."""
        return self.error(struct) is not None or any(
            one.element_struct is not None and self._says_errors(one.element_struct)
            for one in self._present(struct).values()
        )

    def _present(self, struct: Any) -> dict[str, Field]:
        return _present(struct, self.version)


@cache
def _present(struct: Any, version: int) -> dict[str, Field]:
    """Return the fields of a message's struct in one version. Bounded by the declarations."""
    return {one.name: one for one in fields_of(struct) if version in one.versions}
