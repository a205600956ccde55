"""WriteTxnMarkers (API key 27): versions 1-2.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.4.0; not edited by hand.
"""

from __future__ import annotations

from wire.message import Message, Struct, in_versions, int8, int16, int32, int64


class WriteTxnMarkersRequest(Message, api_key=27, versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarker] = []


class WritableTxnMarker(Struct):
    producer_id: int64 = 0
    producer_epoch: int16 = 0
    transaction_result: bool = False
    topics: list[WritableTxnMarkerTopic] = []
    coordinator_epoch: int32 = 0
    transaction_version: int8 = in_versions("2+", ignorable=True)


class WritableTxnMarkerTopic(Struct):
    name: str = ""
    partition_indexes: list[int32] = []


class WriteTxnMarkersResponse(Message, api_key=27, versions="1-2", flexible="1+"):
    markers: list[WritableTxnMarkerResult] = []


class WritableTxnMarkerResult(Struct):
    producer_id: int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = []


class WritableTxnMarkerTopicResult(Struct):
    name: str = ""
    partitions: list[WritableTxnMarkerPartitionResult] = []


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int32 = 0
    error_code: int16 = 0
