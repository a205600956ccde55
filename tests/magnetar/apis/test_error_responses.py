"""One error for a whole request: what each API answers in each version, as tests/.../refusals.txt
has it. `python -m tests.magnetar.apis.test_error_responses` writes that page: read its diff."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from magnetar.apis.registry import Api, load_apis
from wire import types
from wire.error_code import ErrorCode
from wire.errors import KafkaError, WireError
from wire.message import Message, Struct
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import ProduceRequest
from wire.schema import fields_of

PAGE = Path(__file__).with_name("refusals.txt")
CODE = ErrorCode.THROTTLING_QUOTA_EXCEEDED
REFUSAL = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "why")
#: How a request is filled: everything there is, two of each; null for what may be; defaults.
KINDS = ("filled", "nulls", "null lists", "empty")


def request_of(api: Api, version: int, kind: str) -> Message:
    """Return a request as it comes off the wire, no two values of a field alike."""
    numbers: dict[str, Iterator[int]] = defaultdict(partial(count, 1))

    def value(wire_type: types.WireType, name: str) -> Any:
        match wire_type:
            case types.Scalar(code="?"):
                return True
            case types.Scalar():
                return next(numbers[name])
            case types.Uuid():
                return UUID(int=next(numbers[name]))
            case types.String():
                return f"{name}-{next(numbers[name])}"
            case types.Array():
                return [value(wire_type.element, name) for _ in range(2)]
            case types.Nested():
                return filled(wire_type.struct)
        return b""

    def filled(struct: Any) -> Any:
        return struct(
            **{
                field.name: (
                    None
                    if kind == ("null lists" if isinstance(field.type, types.Array) else "nulls")
                    and version in field.nullable
                    else value(field.type, field.name)
                )
                for field in fields_of(struct)
                if version in field.versions and field.tag is None
            }
        )

    request = api.request_class() if kind == "empty" else filled(api.request_class)
    if isinstance(request, ProduceRequest) and kind == "empty":
        request.acks = -1  # otherwise there is no answer
    return api.request_class.decode(request.encode(version), version)


def refused(api: Api, version: int, kind: str, error: KafkaError) -> str:
    """Return what a client reads: the fields that are not as the schema has them by default."""
    response = api.refuse(request_of(api, version, kind), version, error)
    assert response is not None
    try:
        return shown(api.response_class.decode(response.encode(version), version))
    except WireError as failure:
        return f"cannot be sent: {failure}"


def shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if not isinstance(value, Struct):
        return bytes(value).hex() if isinstance(value, memoryview) else repr(value)
    default = type(value)()
    told = [
        f"{name}={shown(getattr(value, name))}"
        for name in type(value)._declared
        if getattr(value, name) != getattr(default, name)
    ]
    return f"{type(value).__name__}({', '.join(told)})"


def page_of(api: Api) -> str:
    """Return what the page has of one API."""

    def of_version(version: int) -> str:
        kinds: dict[str, list[str]] = defaultdict(list)
        for kind in KINDS:
            kinds[refused(api, version, kind, KafkaError(CODE, "why"))].append(kind)
            kinds[refused(api, version, kind, KafkaError(CODE))].append(f"{kind} without detail")
        return "".join(f"  {', '.join(alike)}: {answer}\n" for answer, alike in kinds.items())

    text = ""
    versions = range(api.min_version, api.max_version + 1)
    for told, alike in groupby(versions, of_version):
        text += f"{api.name} {', '.join(map(str, alike))}\n{told}"
    return text


@pytest.mark.parametrize("api", load_apis().values(), ids=lambda api: api.name)
def test_a_refused_request_is_answered_as_the_page_says(api: Api) -> None:
    assert page_of(api) in PAGE.read_text()


def test_the_page_has_nothing_else() -> None:
    assert PAGE.read_text() == "\n".join(page_of(api) for _, api in sorted(load_apis().items()))


@pytest.mark.parametrize("api", load_apis().values(), ids=lambda api: api.name)
def test_every_code_is_answered_alike(api: Api) -> None:
    expected = refused(api, api.max_version, "filled", KafkaError(CODE, "why"))
    for code in ErrorCode:
        if code is not ErrorCode.NONE:
            answered = refused(api, api.max_version, "filled", KafkaError(code, "why"))
            assert answered == expected.replace(f"={CODE}", f"={code}")


@pytest.mark.parametrize("api", load_apis().values(), ids=lambda api: api.name)
def test_every_request_can_be_refused_in_every_version(api: Api) -> None:
    request = api.request_class()
    if isinstance(request, ProduceRequest):
        request.acks = -1  # otherwise there is no answer
    for version in range(api.min_version, api.max_version + 1):
        refused = api.refuse(request, version, REFUSAL)
        assert refused is not None
        api.response_class.decode(refused.encode(version), version)


def test_a_refused_produce_of_no_acks_is_not_answered() -> None:
    assert load_apis()[0].refuse(ProduceRequest(acks=0), 11, REFUSAL) is None


@pytest.mark.parametrize("version", [4, 5, 6])
def test_no_records_of_a_refused_fetch_are_null(version: int) -> None:
    asked = FetchTopic(topic="orders", partitions=[FetchPartition(partition=0)])
    refused = load_apis()[1].refuse(FetchRequest(topics=[asked]), version, REFUSAL)
    assert refused is not None
    answer = FetchResponse.decode(refused.encode(version), version)
    (partition,) = answer.responses[0].partitions
    assert (partition.error_code, partition.records) == (REFUSAL.code, b"")


if __name__ == "__main__":
    PAGE.write_text("\n".join(page_of(api) for _, api in sorted(load_apis().items())))
