"""Load without Python in the loop: librdkafka, which the confluent-kafka wheel carries, through
ctypes.

Producing hands over arrays of messages; consuming hands over a C function of librdkafka's own as
the callback, so that no record becomes a Python object. Only counts and times come back.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

_PRODUCER, _CONSUMER = 0, 1
_COPY = 0x2
_QUEUE_FULL = -184
_ANY_PARTITION = -1
_FLUSH_TIMEOUT_MS = 120_000


class _Message(ctypes.Structure):
    """rd_kafka_message_t."""

    _fields_ = [
        ("err", ctypes.c_int),
        ("rkt", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("len", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_len", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("_private", ctypes.c_void_p),
    ]


class LoadFailed(Exception):
    """librdkafka refused a call, or records were left over."""


def _load() -> ctypes.CDLL:
    found = find_spec("confluent_kafka")
    if found is None or found.origin is None:
        raise LoadFailed("confluent-kafka is not installed")
    libraries = Path(found.origin).parents[1] / "confluent_kafka.libs"
    paths = sorted(libraries.glob("librdkafka-*.so*"))
    if not paths:
        raise LoadFailed(f"no librdkafka in {libraries}")
    library = ctypes.CDLL(str(paths[0]))
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    signatures: dict[str, tuple[object, list[object]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_topic_new": (pointer, [pointer, text, pointer]),
        "rd_kafka_topic_destroy": (None, [pointer]),
        "rd_kafka_produce_batch": (
            number,
            [pointer, ctypes.c_int32, number, ctypes.POINTER(_Message), number],
        ),
        "rd_kafka_flush": (number, [pointer, number]),
        "rd_kafka_outq_len": (number, [pointer]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_topic_partition_list_new": (pointer, [number]),
        "rd_kafka_topic_partition_list_add": (pointer, [pointer, text, ctypes.c_int32]),
        "rd_kafka_topic_partition_list_set_offset": (
            number,
            [pointer, text, ctypes.c_int32, ctypes.c_int64],
        ),
        "rd_kafka_topic_partition_list_destroy": (None, [pointer]),
        "rd_kafka_assign": (number, [pointer, pointer]),
        "rd_kafka_poll_set_consumer": (number, [pointer]),
        "rd_kafka_queue_get_consumer": (pointer, [pointer]),
        "rd_kafka_queue_destroy": (None, [pointer]),
        "rd_kafka_consume_callback_queue": (number, [pointer, number, pointer, pointer]),
        "rd_kafka_consumer_close": (number, [pointer]),
        "rd_kafka_init_transactions": (pointer, [pointer, number]),
        "rd_kafka_begin_transaction": (pointer, [pointer]),
        "rd_kafka_commit_transaction": (pointer, [pointer, number]),
        "rd_kafka_abort_transaction": (pointer, [pointer, number]),
        "rd_kafka_error_string": (text, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


def _client(library: ctypes.CDLL, kind: int, settings: dict[str, str]) -> ctypes.c_void_p:
    problem = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    for name, value in settings.items():
        if library.rd_kafka_conf_set(conf, name.encode(), value.encode(), problem, 512):
            raise LoadFailed(problem.value.decode())
    client: ctypes.c_void_p = library.rd_kafka_new(kind, conf, problem, 512)
    if not client:
        raise LoadFailed(problem.value.decode())
    return client


def produce(
    bootstrap: str,
    topic: str,
    count: int,
    size_bytes: int,
    partitions: int,
    on_start: Callable[[], object] = lambda: None,
    **settings: str,
) -> float:
    """Write `count` records round robin, acks=all and idempotent; return the seconds it took.

    From the first record handed over to the last acknowledgement; connecting is not counted, nor
    are the first records to each partition. `on_start` is called when the count begins.
    """
    library = _load()
    defaults = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": "true",
        "linger.ms": "5",
        "queue.buffering.max.messages": "200000",
        "queue.buffering.max.kbytes": "262144",
    }
    named = {name.replace("_", "."): value for name, value in settings.items()}
    client = _client(library, _PRODUCER, {**defaults, **named})
    handle = library.rd_kafka_topic_new(client, topic.encode(), None)
    step = max(1, min(5000, 5_000_000 // size_bytes))
    payload = ctypes.create_string_buffer(
        bytes(i * 31 % 251 for i in range(size_bytes)), size_bytes
    )
    messages = (_Message * step)()
    _hand_over(library, handle, messages, payload, partitions)
    if library.rd_kafka_flush(client, _FLUSH_TIMEOUT_MS):
        raise LoadFailed("the first records were not acknowledged")
    on_start()
    started_at = time.perf_counter()
    left = count
    while left > 0:
        batch = messages if left >= step else (_Message * left)()
        _hand_over(library, handle, batch, payload, partitions)
        left -= len(batch)
    if library.rd_kafka_flush(client, _FLUSH_TIMEOUT_MS) or library.rd_kafka_outq_len(client):
        raise LoadFailed("records were left over")
    took_s = time.perf_counter() - started_at
    library.rd_kafka_topic_destroy(handle)
    library.rd_kafka_destroy(client)
    return took_s


def produce_in_transactions(
    bootstrap: str,
    topic: str,
    transactions: int,
    records_each: int,
    size_bytes: int,
    partitions: int,
) -> int:
    """Write `transactions` one after the other, one in ten of them aborted when all of it is in
    the log; return how many records are committed.
    """
    library = _load()
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"{topic}-writer",
        "linger.ms": "5",
        "queue.buffering.max.messages": "200000",
    }
    client = _client(library, _PRODUCER, settings)
    handle = library.rd_kafka_topic_new(client, topic.encode(), None)
    payload = ctypes.create_string_buffer(
        bytes(i * 31 % 251 for i in range(size_bytes)), size_bytes
    )
    messages = (_Message * records_each)()
    _accept(library, library.rd_kafka_init_transactions(client, _FLUSH_TIMEOUT_MS))
    committed = 0
    for number in range(transactions):
        _accept(library, library.rd_kafka_begin_transaction(client))
        _hand_over(library, handle, messages, payload, partitions)
        if number % 10 == 5:
            library.rd_kafka_flush(client, _FLUSH_TIMEOUT_MS)
            _accept(library, library.rd_kafka_abort_transaction(client, _FLUSH_TIMEOUT_MS))
        else:
            _accept(library, library.rd_kafka_commit_transaction(client, _FLUSH_TIMEOUT_MS))
            committed += records_each
    library.rd_kafka_topic_destroy(handle)
    library.rd_kafka_destroy(client)
    return committed


def _accept(library: ctypes.CDLL, error: int | None) -> None:
    if error is not None:
        raise LoadFailed(library.rd_kafka_error_string(error).decode())


def _hand_over(
    library: ctypes.CDLL,
    handle: ctypes.c_void_p,
    messages: ctypes.Array[_Message],
    payload: ctypes.Array[ctypes.c_char],
    partitions: int,
) -> None:
    """Queue as many records as `messages` has, all alike, waiting while the queue is full.

    Not with librdkafka's own blocking flag: a batch that blocks holds the topic's lock, for which
    the thread waits that would make room.
    """
    address = ctypes.addressof(payload)
    size_bytes = len(payload)
    deadline = time.monotonic() + _FLUSH_TIMEOUT_MS / 1000
    for partition in range(partitions):
        left = (
            len(messages) * (partition + 1) // partitions - len(messages) * partition // partitions
        )
        while left:
            for message in messages[:left]:
                message.payload, message.len, message.err = address, size_bytes, 0
            taken = library.rd_kafka_produce_batch(handle, partition, _COPY, messages, left)
            left -= taken
            if left:
                refusals = {message.err for message in messages[: left + taken]} - {0}
                if refusals != {_QUEUE_FULL} or time.monotonic() > deadline:
                    raise LoadFailed(f"{left} records refused, errors {refusals}")
                time.sleep(0.001)


def consume(bootstrap: str, topic: str, count: int, partitions: int, **settings: str) -> float:
    """Read `count` records from the beginning; return the seconds from the assignment on."""
    library = _load()
    defaults = {
        "bootstrap.servers": bootstrap,
        "group.id": "bench",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "queued.max.messages.kbytes": "262144",
    }
    named = {name.replace("_", "."): value for name, value in settings.items()}
    client = _client(library, _CONSUMER, {**defaults, **named})
    library.rd_kafka_poll_set_consumer(client)
    assignment = library.rd_kafka_topic_partition_list_new(partitions)
    for partition in range(partitions):
        library.rd_kafka_topic_partition_list_add(assignment, topic.encode(), partition)
        library.rd_kafka_topic_partition_list_set_offset(assignment, topic.encode(), partition, 0)
    queue = library.rd_kafka_queue_get_consumer(client)
    harmless = ctypes.cast(library.rd_kafka_message_status, ctypes.c_void_p)
    started_at = time.perf_counter()
    library.rd_kafka_assign(client, assignment)
    read = 0
    while read < count:
        read += max(0, library.rd_kafka_consume_callback_queue(queue, 1000, harmless, None))
        if time.perf_counter() - started_at > _FLUSH_TIMEOUT_MS / 1000:
            raise LoadFailed(f"{read} of {count} records read")
    took_s = time.perf_counter() - started_at
    library.rd_kafka_topic_partition_list_destroy(assignment)
    library.rd_kafka_queue_destroy(queue)
    library.rd_kafka_consumer_close(client)
    library.rd_kafka_destroy(client)
    return took_s
