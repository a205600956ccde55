"""Topics made, deleted, given more partitions, and cut at their beginning."""

from __future__ import annotations

import json
from collections.abc import Mapping

from magnetar.client import Client, ClientError, TopicPartition
from magnetar.client.group_lags import known_leaders, standings
from magnetar.client.groups import list_groups
from magnetar.client.partitions import EARLIEST, LATEST, list_offsets
from magnetar.client.readable import count
from magnetar.client.topics import (
    Topic,
    add_partitions,
    create_topic,
    delete_topics,
    list_topics,
)
from magnetar.client.trimming import Trim, beyond_end, plan_trims, trim
from magnetar.console.changes import (
    Change,
    Field,
    Form,
    Given,
    Plan,
    Question,
    listed,
    many,
    moment_of,
    pairs,
    required,
    whole,
)
from magnetar.console.templating import link

_PARTITIONS_MAX = 100_000
_DEFAULT_HINT = "Empty: as the cluster's default says."


def _place(topic: str) -> str:
    return link("/topics/one", name=topic)


def _form_of(title: str, name: str, fields: list[Field]) -> Form:
    return Form(title, _place(name), name, [Field("name", "Topic", "fixed", name), *fields])


# --- a new one


def _create_form(client: Client, given: Given) -> Form:
    return Form(
        "New topic",
        "/topics",
        "Topics",
        [
            Field("name", "Name", hint="Letters, digits, . _ -", is_required=True),
            Field("partitions", "Partitions", "number", hint=_DEFAULT_HINT),
            Field("copies", "Replication factor", "number", hint=_DEFAULT_HINT),
            Field(
                "settings",
                "Settings",
                "lines",
                hint="NAME=VALUE, one a line: retention.ms=86400000",
            ),
        ],
    )


def _create(client: Client, given: Given) -> Plan:
    name = required(given, "name", "The name")
    partitions = _number(given, "partitions", "Partitions", _PARTITIONS_MAX)
    copies = _number(given, "copies", "Replication factor", 2**15 - 1)
    settings = pairs(given.get("settings", ""))

    def create(asked: Client, *, validate_only: bool = False) -> None:
        create_topic(
            asked,
            name,
            partitions=partitions,
            replication_factor=copies,
            configs=settings,
            validate_only=validate_only,
        )

    # The broker checks name, rights and settings, and makes nothing.
    create(client, validate_only=True)
    default = "as the cluster's default says"
    return Plan(
        title=f"Create topic {name}?",
        button="Create the topic",
        deed=lambda asked, _: create(asked),
        done=f"Topic {name} is there.",
        back="/topics",
        after=_place(name),
        heads=("", ""),
        rows=[
            ("Partitions", default if partitions < 0 else count(partitions)),
            ("Replication factor", default if copies < 0 else count(copies)),
            *settings.items(),
        ],
        facts=(partitions, copies, sorted(settings.items())),
    )


def _number(given: Given, name: str, what: str, highest: int) -> int:
    text = given.get(name, "")
    return whole(text, what, 1, highest) if text else -1


# --- deleted


def _delete(client: Client, given: Given) -> Plan:
    topic = _described(client, given)
    offsets = _offsets(client, topic)
    readers = _readers(client, topic.name)
    effects = [
        f"Its {many(len(topic.partitions), 'partition')} go, with {many(offsets, 'offset')}.",
        "Its settings go. Rules (ACLs) about it stay.",
        "Producers and consumers that use it get errors."
        " Where topics are created on demand, one of them may make it anew, empty.",
    ]
    if readers:
        effects.append(f"Groups have committed offsets in it: {listed(readers)}.")
    return Plan(
        title=f"Delete topic {topic.name}?",
        button="Delete the topic",
        deed=lambda asked, _: delete_topics(asked, [topic.name], if_exists=False),
        done=f"Topic {topic.name} is deleted.",
        back=_place(topic.name),
        after="/topics",
        effects=effects,
        is_final=True,
        question=Question("Type its name", wanted=topic.name),
        # A topic of this name that was made meanwhile has another id, and stays.
        facts=(topic.topic_id,),
    )


# --- more partitions


def _partitions_form(client: Client, given: Given) -> Form:
    topic = _described(client, given)
    now = len(topic.partitions)
    return _form_of(
        "Add partitions",
        topic.name,
        [
            Field(
                "count",
                "Partitions",
                "number",
                str(now + 1),
                f"Now {count(now)}.",
                is_required=True,
            )
        ],
    )


def _partitions(client: Client, given: Given) -> Plan:
    topic = _described(client, given)
    now = len(topic.partitions)
    wanted = whole(required(given, "count", "The number"), "Partitions", 1, _PARTITIONS_MAX)
    if wanted <= now:
        raise ClientError(
            f"{topic.name} has {many(now, 'partition')}: it can get more, and never fewer."
        )
    return Plan(
        title=f"Give {topic.name} {many(wanted, 'partition')}?",
        button="Add partitions",
        deed=lambda asked, _: add_partitions(asked, topic.name, wanted),
        done=f"Topic {topic.name} has {many(wanted, 'partition')}.",
        back=_place(topic.name),
        effects=[
            f"{many(wanted - now, 'partition')} more, empty: {count(now)} become {count(wanted)}.",
            "From now on a key may go to another partition than before, so the order of its"
            " records holds only among the new ones.",
            "Partitions cannot be taken away again.",
        ],
        is_final=True,
        facts=(topic.topic_id, now),
    )


# --- the first records deleted


def _trim_form(client: Client, given: Given) -> Form:
    topic = _described(client, given)
    partitions = [(str(each.partition), str(each.partition)) for each in topic.partitions]
    return _form_of(
        "Delete the first records",
        topic.name,
        [
            Field("partition", "Partition", "choice", choices=[("", "all"), *partitions]),
            Field(
                "before",
                "Delete what lies before",
                "choice",
                choices=[
                    ("offset", "an offset"),
                    ("time", "a time (UTC)"),
                    ("end", "the end: everything that is there now"),
                ],
            ),
            Field(
                "value",
                "Offset or time",
                hint="Of the first record that stays: 17, or 2026-11-21T15:00",
            ),
        ],
    )


def _trim(client: Client, given: Given) -> Plan:
    topic = _described(client, given)
    leaders = known_leaders(client, [topic.name])
    wanted = _cut(client, leaders, topic.name, given)
    planned = plan_trims(client, leaders, wanted)
    if (short := beyond_end(planned, wanted)) is not None:
        raise ClientError(
            f"{short.topic}-{short.partition} ends at {count(short.new_start)}, before offset"
            f" {count(wanted[short.place])}: no record is deleted. Choose one partition, or the end"
            " to delete all that is there."
        )
    trims = [each for each in planned if each.new_start > each.start]
    if not trims:
        raise ClientError("Nothing lies before that: no record would be deleted.")
    doomed = sum(each.new_start - each.start for each in trims)
    return Plan(
        title=f"Delete {many(doomed, 'offset')} of {topic.name}?",
        button="Delete the records",
        deed=lambda asked, _: trim(asked, leaders, trims),
        done=f"{topic.name} begins later now.",
        back=_place(topic.name),
        effects=[
            "Records before the new beginning are deleted.",
            "A group that has not read them continues at the new beginning, or where its clients'"
            " auto.offset.reset says.",
        ],
        heads=("Partition", "Begins at", "Will begin at", "Offsets deleted"),
        rows=[_trim_row(each) for each in trims],
        is_final=True,
        facts=(topic.topic_id,),
        # What is shown is what is done: "the end" does not move on until the confirmation comes.
        fields={
            "name": topic.name,
            "exact": json.dumps({str(each.partition): each.new_start for each in trims}),
        },
    )


def _trim_row(each: Trim) -> tuple[str, ...]:
    return (
        f"{each.topic}-{each.partition}",
        count(each.start),
        count(each.new_start),
        count(each.new_start - each.start),
    )


def _cut(
    client: Client, leaders: Mapping[TopicPartition, int], topic: str, given: Given
) -> dict[TopicPartition, int]:
    """Return the first offset that stays, by partition."""
    if "exact" in given:
        return exact_offsets(given["exact"], leaders, topic)
    places = sorted(leaders)
    if given.get("partition"):
        place = topic, whole(given["partition"], "Partition", 0)
        if place not in leaders:
            raise ClientError(f"{topic} has no partition {place[1]} with a leader.")
        places = [place]
    before = given.get("before", "offset")
    if before == "end":
        return list_offsets(client, leaders, places, LATEST)
    text = required(given, "value", "The offset or time")
    if before == "offset":
        return dict.fromkeys(places, whole(text, "The offset", 0))
    found = list_offsets(client, leaders, places, moment_of(text, "The time"))
    ends = list_offsets(client, leaders, places, LATEST)
    return {place: ends[place] if found[place] < 0 else found[place] for place in places}


def exact_offsets(
    text: str, leaders: Mapping[TopicPartition, int], topic: str
) -> dict[TopicPartition, int]:
    """Return the offsets that a confirmation page sends. Raises ClientError for any other text."""
    try:
        found = {(topic, int(index)): int(offset) for index, offset in json.loads(text).items()}
    except (ValueError, AttributeError, TypeError):
        raise ClientError("The form is damaged: load the page again.") from None
    if not found.keys() <= leaders.keys():
        raise ClientError(f"A partition of {topic} has no leader now: try again.")
    return found


def _described(client: Client, given: Given) -> Topic:
    (topic,) = list_topics(client, [required(given, "name", "The topic")])
    return topic


def _offsets(client: Client, topic: Topic) -> int:
    leaders = known_leaders(client, [topic.name])
    if not leaders:
        return 0
    starts = list_offsets(client, leaders, leaders, EARLIEST)
    ends = list_offsets(client, leaders, leaders, LATEST)
    return sum(ends[place] - starts[place] for place in leaders)


def _readers(client: Client, topic: str) -> list[str]:
    found = standings(client, [each.group_id for each in list_groups(client)])
    return sorted(
        group_id for group_id, where in found.items() if any(each.topic == topic for each in where)
    )


CREATE = Change(_create, _create_form)
DELETE = Change(_delete)
PARTITIONS = Change(_partitions, _partitions_form)
TRIM = Change(_trim, _trim_form)
