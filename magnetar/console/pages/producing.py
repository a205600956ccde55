"""Writing one record to a topic."""

from __future__ import annotations

import time
from collections.abc import Mapping

from magnetar.client import Client, ClientError, NotFound, NotLetIn, Refused, Unreachable
from magnetar.client.batching import ProducerRecord
from magnetar.client.group_lags import known_leaders
from magnetar.client.partitions import LATEST, READ_COMMITTED, list_offsets
from magnetar.client.producer import Producer
from magnetar.console.changes import each_pair
from magnetar.console.pages.topics import topic_of
from magnetar.console.screens import (
    Elsewhere,
    OutcomeUnknown,
    Screen,
    Visit,
    uncertain,
)
from magnetar.console.templating import link

_HEADERS_MAX = 100
#: Apache Kafka ends a transaction before its markers are there. The page shows them, if they come.
_OUTCOME_WAIT_S = 3.0
_OUTCOME_LOOK_S = 0.02
_FIELDS = (
    *("partition", "as", "key", "value", "no_value", "headers"),
    *("transactional_id", "outcome"),
)


def form(visit: Visit) -> Screen:
    """The form of a record."""
    return _form(visit, topic_of(visit), {}, "")


def send(visit: Visit) -> Elsewhere | Screen:
    """Write the record of the form, and show it; what cannot be written, as it was typed."""
    name = visit.form.get("name", "")
    try:
        record = record_of(visit.form)
        partition = _partition_of(visit.form.get("partition", ""))
        index, offset = visit.access.act(
            lambda client: _written(client, name, partition, record, visit.form)
        )
    except (Unreachable, NotLetIn, OutcomeUnknown):
        raise
    except ClientError as mistake:
        return _form(visit, name, visit.form, visit.explained(mistake))
    return Elsewhere(link("/topics/message", name=name, partition=str(index), offset=str(offset)))


def _form(visit: Visit, name: str, given: Mapping[str, str], message: str) -> Screen:
    leaders = visit.access.ask(lambda client: known_leaders(client, [name]))
    if not leaders:
        raise NotFound(f"There is no topic {name!r} that you may look at.")
    values = {
        "name": name,
        "tab": "produce",
        "partitions": sorted(str(index) for _, index in leaders),
        "given": {field: given.get(field, "") for field in _FIELDS},
        "message": message,
    }
    return Screen("produce.html", values, f"{name}: produce", status=400 if message else 200)


def _written(
    client: Client,
    name: str,
    partition: int | None,
    record: ProducerRecord,
    given: Mapping[str, str],
) -> tuple[int, int]:
    """Write the record, in a transaction if one is named; return its partition and offset."""
    transactional_id = given.get("transactional_id", "").strip() or None
    producer = Producer(client, name, partition=partition, transactional_id=transactional_id)
    producer.open()
    with uncertain():
        try:
            producer.send([record])
        except Refused:
            # Otherwise only its timeout would end it, and readers would wait until then.
            producer.abort()
            raise
        if given.get("outcome") == "abort":
            producer.abort()
        else:
            producer.commit()
    ((index, written),) = producer.written.items()
    if transactional_id is not None:
        _await_outcome(client, name, index, written.first_offset)
    return index, written.first_offset


def _await_outcome(client: Client, name: str, index: int, offset: int) -> None:
    """Return once readers know whether the record was committed, or after a while."""
    leaders = known_leaders(client, [name])
    end_s = time.monotonic() + _OUTCOME_WAIT_S
    while time.monotonic() < end_s:
        stable = list_offsets(client, leaders, [(name, index)], LATEST, READ_COMMITTED)
        if stable[name, index] > offset:
            return
        time.sleep(_OUTCOME_LOOK_S)


def record_of(form: Mapping[str, str]) -> ProducerRecord:
    """Return the record that a form describes. ClientError: a header is no NAME=VALUE."""
    headers = [
        (name, value.encode()) for name, value in each_pair(form.get("headers", ""), "header")
    ]
    if len(headers) > _HEADERS_MAX:
        raise ClientError(f"a record of this form has at most {_HEADERS_MAX} headers.")
    # A field that was left empty says that the record has no key.
    is_hex = form.get("as") == "hex"
    key = _bytes(form.get("key", ""), is_hex) or None
    data = None if form.get("no_value") else _bytes(form.get("value", ""), is_hex)
    return ProducerRecord(key, data, None, headers)


def _bytes(text: str, is_hex: bool) -> bytes:
    if is_hex:
        try:
            return bytes.fromhex(text)
        except ValueError:
            raise ClientError(
                "key and value are no hexadecimal numbers of two digits each, such as `00 ff 1a`."
            ) from None
    # Browsers send a text area's lines with CRLF, whatever was typed.
    return text.replace("\r\n", "\n").encode()


def _partition_of(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ClientError(f"{text!r} is no partition.")
    return int(text)
