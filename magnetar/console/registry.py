"""Schemas by id, from a schema registry of Confluent's interface. Asked once for each id.

    GET /schemas/ids/ID[?format=serialized]                   schema, schemaType, references
    GET /subjects/SUBJECT/versions/VERSION[?format=serialized]  what a schema refers to

A Protobuf schema is asked for as a serialized FileDescriptorProto, so nothing has to compile it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

from magnetar.client import ClientError

_TIMEOUT_S = 2.0
_ANSWER_BYTES_MAX = 4 << 20
_KNOWN_MAX = 1000
#: A schema that could not be had is asked for again after this time.
_AGAIN_S = 10.0
_REFERENCES_MAX = 100
PROTOBUF = "PROTOBUF"
_SERIALIZED = "?format=serialized"
_ACCEPT = "application/vnd.schemaregistry.v1+json"


class NoSchema(ClientError):
    """The registry does not answer, or has no such schema."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema and all that it refers to, what is referred to first; names by their references."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    """The schema. For PROTOBUF: a FileDescriptorProto in base64."""
    references: Mapping[str, str]


def fetch_json(url: str) -> Any:
    """Return what an address answers. NoSchema: nothing of use."""
    try:
        # The scheme is HTTP: `Registry` refuses any other.
        request = Request(url, headers={"Accept": _ACCEPT})  # noqa: S310  # as said
        with urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310  # as said
            return json.loads(response.read(_ANSWER_BYTES_MAX))
    except HTTPError as error:
        raise NoSchema(f"the schema registry answers {error.code}") from None
    except (OSError, ValueError) as error:
        raise NoSchema(f"the schema registry does not answer: {error}") from None


class Registry:
    """A schema registry at an address. Safe to use from many threads."""

    def __init__(self, url: str, fetch: Callable[[str], Any] = fetch_json) -> None:
        """ClientError: the address is none of HTTP."""
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ClientError(
                f"{url!r} is no address of a schema registry, which begins with http."
            )
        self._url = url.rstrip("/")
        self._fetch = fetch
        self._lock = threading.Lock()
        self._known: dict[int, RegisteredSchema] = {}
        self._missing: dict[int, tuple[float, str]] = {}

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of an id. NoSchema: there is none to be had."""
        with self._lock:
            known = self._known.get(schema_id)
            since, reason = self._missing.get(schema_id, (0.0, ""))
        if known is not None:
            return known
        if reason and time.monotonic() - since < _AGAIN_S:
            raise NoSchema(reason)
        try:
            found = self._ask(schema_id)
        except NoSchema as failure:
            with self._lock:
                self._missing[schema_id] = time.monotonic(), str(failure)
                if len(self._missing) > _KNOWN_MAX:
                    self._missing.clear()
            raise
        with self._lock:
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[schema_id] = found
        return found

    def _ask(self, schema_id: int) -> RegisteredSchema:
        path = f"/schemas/ids/{schema_id}"
        answer = self._get(path)
        kind = str(answer.get("schemaType", "AVRO"))
        form = _SERIALIZED if kind == PROTOBUF else ""
        if form:
            answer = self._get(path + form)
        references: dict[str, str] = {}
        self._collect(answer, form, references)
        return RegisteredSchema(kind, str(answer.get("schema", "")), references)

    def _collect(self, answer: Mapping[str, Any], form: str, found: dict[str, str]) -> None:
        for each in answer.get("references") or ():
            name = str(each.get("name", ""))
            if name in found or len(found) >= _REFERENCES_MAX:
                continue
            subject = quote(str(each.get("subject", "")), safe="")
            inner = self._get(f"/subjects/{subject}/versions/{int(each.get('version', 1))}{form}")
            self._collect(inner, form, found)
            found[name] = str(inner.get("schema", ""))

    def _get(self, path: str) -> Mapping[str, Any]:
        answer = self._fetch(self._url + path)
        if not isinstance(answer, dict):
            raise NoSchema("the schema registry answers something else than a schema")
        return answer
