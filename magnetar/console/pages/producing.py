"""Writing one record to a topic."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.client import Client, ClientError
from magnetar.client.batching import ProducerRecord
from magnetar.client.group_lags import known_leaders
from magnetar.client.producer import Producer
from magnetar.console.pages.topics import topic_of
from magnetar.console.screens import Elsewhere, NotFound, Screen, Visit
from magnetar.console.templating import link

_HEADERS_MAX = 100


def form(visit: Visit) -> Screen:
    """The form of a record."""
    name = topic_of(visit)
    leaders = visit.access.ask(lambda client: known_leaders(client, [name]))
    if not leaders:
        raise NotFound(f"There is no topic {name!r} that you may look at.")
    values = {
        "name": name,
        "tab": "produce",
        "partitions": sorted(index for _, index in leaders),
    }
    return Screen("produce.html", values, f"{name}: produce")


def send(visit: Visit) -> Elsewhere:
    """Write the record of the form, and show it."""
    name = visit.form.get("name", "")
    record = record_of(visit.form)
    partition = _partition_of(visit.form.get("partition", ""))

    def deed(client: Client) -> tuple[int, int]:
        producer = Producer(client, name, partition=partition)
        producer.open()
        producer.send([record])
        ((index, written),) = producer.written.items()
        return index, written.first_offset

    index, offset = visit.access.act(deed)
    return Elsewhere(link("/topics/message", name=name, partition=str(index), offset=str(offset)))


def record_of(form: Mapping[str, str]) -> ProducerRecord:
    """Return the record that a form describes. ClientError: a header is no NAME=VALUE."""
    headers = []
    for line in form.get("headers", "").splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ClientError(f"{line.strip()!r} is no header: write NAME=VALUE, one a line.")
        headers.append((name.strip(), value.strip().encode()))
    if len(headers) > _HEADERS_MAX:
        raise ClientError(f"a record of this form has at most {_HEADERS_MAX} headers.")
    # A field that was left empty says that the record has no key.
    key = _bytes(form.get("key", "")) or None
    data = None if form.get("no_value") else _bytes(form.get("value", ""))
    return ProducerRecord(key, data, None, headers)


def _bytes(text: str) -> bytes:
    # Browsers send a text area's lines with CRLF, whatever was typed.
    return text.replace("\r\n", "\n").encode()


def _partition_of(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ClientError(f"{text!r} is no partition.")
    return int(text)
