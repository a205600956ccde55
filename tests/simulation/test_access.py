"""The judge of secured histories: when a right counts, and what an answer gives away."""

from __future__ import annotations

from random import Random
from uuid import UUID

from coordinator.transactions.metadata import TopicPartition
from tests.simulation.access import Change, Right, beyond_rights, effects, told
from tests.simulation.clients.forbidden import Forbidden, Target, any_forbidden, reading
from tests.simulation.observations import Fetched, Observations, Seen
from wire.error_code import ErrorCode
from wire.messages import fetch, metadata

TOPIC_ID = UUID(int=7)
#: Asked for at 1, there from 2 at the latest; taken away between 5 and 6.
RIGHT = Right([Change(True, 1.0, 2.0), Change(False, 5.0, 6.0)])


def target(seed: int = 0) -> Target:
    return Target(Random(seed), "guarded", TOPIC_ID, "group", "tx0")


def answer(code: ErrorCode = ErrorCode.NONE, **said: object) -> fetch.FetchResponse:
    data = fetch.PartitionData(partition_index=0, error_code=code, high_watermark=-1, records=b"")
    for name, value in said.items():
        setattr(data, name, value)
    topic = fetch.FetchableTopicResponse(topic="guarded", partitions=[data])
    return fetch.FetchResponse(session_id=77, responses=[topic])


def asked() -> Forbidden:
    partition = fetch.FetchPartition(partition=0, fetch_offset=0)
    topic = fetch.FetchTopic(topic="guarded", partitions=[partition])
    request = fetch.FetchRequest(topics=[topic])
    return Forbidden(request, 12, ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def test_a_right_may_hold_from_when_it_was_asked_for_until_its_removal_was_answered() -> None:
    assert not RIGHT.may_have_held(0.0, 0.9)
    assert RIGHT.may_have_held(0.0, 1.0)
    assert RIGHT.may_have_held(6.0, 9.0)
    assert not RIGHT.may_have_held(6.1, 9.0)
    assert Right([Change(True, 1.0)]).may_have_held(50.0, 60.0)


def test_a_right_surely_holds_from_its_answer_until_its_removal_is_asked_for() -> None:
    assert RIGHT.surely_held(2.0, 4.9)
    assert not RIGHT.surely_held(1.5, 4.9)
    assert not RIGHT.surely_held(2.0, 5.0)
    assert not Right([Change(True, 1.0)]).surely_held(50.0, 60.0)


def test_a_bare_refusal_gives_nothing_away() -> None:
    assert beyond_rights(asked(), answer(ErrorCode.TOPIC_AUTHORIZATION_FAILED)) == ""


def test_data_beside_a_refusal_and_another_error_are_seen() -> None:
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert "high_watermark=12" in beyond_rights(asked(), answer(denied, high_watermark=12))
    assert "records" in beyond_rights(asked(), answer(denied, records=memoryview(b"batch")))
    other = answer(ErrorCode.OFFSET_OUT_OF_RANGE)
    assert beyond_rights(asked(), other).startswith("OFFSET_OUT_OF_RANGE in place of")
    assert beyond_rights(asked(), answer()).startswith("no error in place of")


def test_what_is_left_out_must_be_left_out_whole() -> None:
    everything = Forbidden(metadata.MetadataRequest(topics=None), 12, ErrorCode.NONE)
    topic = metadata.MetadataResponseTopic(name="guarded", topic_id=TOPIC_ID)
    assert beyond_rights(everything, metadata.MetadataResponse(cluster_id="known")) == ""
    named = metadata.MetadataResponse(topics=[topic])
    assert told(everything.request, named) == ["name='guarded'", f"topic_id={TOPIC_ID!r}"]
    assert told(everything.request, named, [("name", "guarded"), ("topic_id", TOPIC_ID)]) == []
    assert told(everything.request, named, [("name", "other"), ("topic_id", TOPIC_ID)])


def test_every_forbidden_request_can_be_sent() -> None:
    kinds = set()
    for seed in range(400):
        one = any_forbidden(target(seed)) if seed % 4 else reading(target(seed), 100)
        assert one.request.encode(one.version)
        assert one.response_class.api_key == one.request.api_key
        kinds.add(one.request.api_key)
    assert len(kinds) > 25


def test_what_was_refused_and_is_read_all_the_same_is_seen() -> None:
    seen = Observations(refused={"guest0/1"}, topics={"a", "intruder", "__consumer_offsets"})
    records = (Seen(0, "k", "guest0/1"), Seen(1, "k", "intruder"))
    partition = TopicPartition("a", 0)
    seen.fetched.append(Fetched("reader", False, partition, 0, 1, 0, 2, 2, 2, 0, records))
    assert effects(seen, {"a"}) == [
        "access: a record of an intruder was read",
        "access: guest0/1 was refused, and was read",
        "access: a topic was made: intruder",
    ]
