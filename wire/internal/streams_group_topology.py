"""StreamsGroupTopology (record type 23): versions 0.

Written by tools/generate_messages.py from the schemas of Apache Kafka 4.3.1; not edited by hand.
"""

from __future__ import annotations

from wire.message import RecordKey, RecordValue, Struct, int16, int32


class StreamsGroupTopologyKey(RecordKey, record_type=23, versions="0"):
    group_id: str = ""


class StreamsGroupTopologyValue(RecordValue, record_type=23, versions="0", flexible="0+"):
    epoch: int32 = 0
    subtopologies: list[Subtopology] = []


class Subtopology(Struct):
    subtopology_id: str = ""
    source_topics: list[str] = []
    source_topic_regex: list[str] = []
    state_changelog_topics: list[TopicInfo] = []
    repartition_sink_topics: list[str] = []
    repartition_source_topics: list[TopicInfo] = []
    copartition_groups: list[CopartitionGroup] = []


class TopicInfo(Struct):
    name: str = ""
    partitions: int32 = 0
    replication_factor: int16 = 0
    topic_configs: list[TopicConfig] = []


class CopartitionGroup(Struct):
    source_topics: list[int16] = []
    source_topic_regex: list[int16] = []
    repartition_source_topics: list[int16] = []


class TopicConfig(Struct):
    key: str = ""
    value: str = ""
