"""What compaction owes: of the part of a log that is compacted, one record of each key is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from magnetar.broker import Broker
from magnetar.storage.topic_names import INTERNAL
from tests.logstore.reading import records_from
from wire.records import Record


def uncompacted(broker: Broker) -> Iterator[str]:
    """Yield a witness for each key that has several records before the first dirty offset."""
    for topic in broker.topics.all():
        for log in topic.local:
            if topic.name in INTERNAL or not log.config.is_compacted:
                continue
            counts = Counter(
                bytes(record.key)
                for _, record in records_from(log.reader, log.log_start_offset)
                if isinstance(record, Record)
                and record.key is not None
                and record.offset < log.first_dirty_offset
            )
            for key, count in counts.items():
                if count > 1:
                    yield (
                        f"uncompacted: {topic.name}-{log.partition} has {count} records of"
                        f" {key.decode()} before {log.first_dirty_offset}"
                    )
