"""Groups: their offsets moved or deleted, a member taken out, the group deleted."""

from __future__ import annotations

import json
import time

from magnetar.client import Client, ClientError, NotFound, TopicPartition
from magnetar.client.errors import check
from magnetar.client.group_offsets import (
    Move,
    Target,
    commit_moves,
    committed_offsets,
    delete_offsets,
    plan,
    shifted,
    to_earliest,
    to_latest,
    to_offset,
)
from magnetar.client.groups import (
    Group,
    NoSuchGroup,
    delete_groups,
    describe_groups,
    remove_member,
)
from magnetar.client.readable import count, known
from magnetar.console.changes import (
    Change,
    Field,
    Form,
    Given,
    Plan,
    listed,
    many,
    moment_of,
    required,
    whole,
)
from magnetar.console.templating import link, named

_TARGETS = [
    ("earliest", "the beginning"),
    ("latest", "the end"),
    ("offset", "an offset"),
    ("shift", "so many further, or back (-)"),
    ("time", "a time (UTC)"),
    ("ago", "so many minutes ago"),
]
_MINUTE_MS = 60_000
_ALL = ""
_REASON = "taken out by a person, through the console"


def _place(group_id: str) -> str:
    return link("/groups/one", id=group_id)


def _group_id(given: Given) -> str:
    """Return the group's id, which may be empty. ClientError: there is none."""
    if "id" not in given:
        raise ClientError("The group is missing.")
    return given["id"]


def _group(client: Client, given: Given) -> Group:
    (found,) = describe_groups(client, [_group_id(given)])
    return found


# --- offsets moved


def _reset_form(client: Client, given: Given) -> Form:
    group_id = _group_id(given)
    committed = committed_offsets(client, group_id)
    topics = [(name, name) for name in sorted({topic for topic, _ in committed})]
    return Form(
        "Move offsets",
        _place(group_id),
        named(group_id),
        [
            Field("id", "Group", "fixed", group_id, hint=named(group_id)),
            Field("topic", "Topic", "choice", choices=[(_ALL, "all that it has read"), *topics]),
            Field("other", "Another topic", hint="One that the group has not read yet."),
            Field("partition", "Partition", "number", hint="Empty: all of the topic's."),
            Field("to", "To", "choice", choices=_TARGETS),
            Field("value", "Offset, number, time or minutes", hint="17, -5, 2026-11-21T15:00"),
        ],
        "The next page shows each partition's offset as it is and as it would be. Nothing is moved"
        " before you confirm.",
        _members(client, group_id),
    )


def _reset(client: Client, given: Given) -> Plan:
    group_id = _group_id(given)
    if warning := _members(client, group_id):
        raise ClientError(warning)
    moves = _moves(client, group_id, given)
    if not moves:
        raise ClientError(f"{named(group_id)} has committed no offset: name a topic.")
    changed = [each for each in moves if each.planned != each.committed]
    if not changed:
        raise ClientError("Every offset is there already: nothing would move.")
    return Plan(
        title=f"Move the offsets of {named(group_id)}?",
        button=f"Move {many(len(changed), 'offset')}",
        deed=lambda asked, _: commit_moves(asked, group_id, changed),
        done=f"The offsets of {named(group_id)} are moved.",
        back=_place(group_id),
        effects=_reset_effects(changed),
        heads=("Partition", "Now", "Will be", "Difference"),
        rows=[_move_row(each) for each in changed],
        facts=[(each.topic, each.partition, each.committed) for each in changed],
        # What is shown is what is done, though the ends of partitions move on meanwhile.
        fields={"id": group_id, "exact": _exact(changed)},
    )


def _reset_effects(moves: list[Move]) -> list[str]:
    again = sum(max(each.committed - each.planned, 0) for each in moves if each.committed >= 0)
    left_out = sum(max(each.planned - each.committed, 0) for each in moves if each.committed >= 0)
    effects = []
    if again:
        effects.append(f"{many(again, 'offset')} will be read again.")
    if left_out:
        effects.append(f"{many(left_out, 'offset')} will be passed over, unread.")
    return [*effects, "Members that start later begin there."]


def _move_row(each: Move) -> tuple[str, ...]:
    by = each.planned - max(each.committed, 0)
    difference = "new" if each.committed < 0 else f"{'+' if by > 0 else '−'}{count(abs(by))}"
    place = f"{each.topic}-{each.partition}"
    return place, known(each.committed), count(each.planned), difference


def _members(client: Client, group_id: str) -> str:
    """Return why offsets cannot be moved; empty: nothing is in the way."""
    try:
        (group,) = describe_groups(client, [group_id])
    # Offsets may be committed for a group before it first starts.
    except NoSuchGroup:
        return ""
    if not group.members:
        return ""
    return (
        f"{named(group_id)} has {many(len(group.members), 'member')}, which would commit offsets of"
        " their own over these. Stop them first."
    )


def _moves(client: Client, group_id: str, given: Given) -> list[Move]:
    if "exact" in given:
        return _exact_moves(client, group_id, given["exact"])
    topic = given.get("other") or given.get("topic", _ALL)
    places: list[TopicPartition] | None = None
    if topic:
        places = sorted(client.topics([topic]))
    if given.get("partition"):
        index = whole(given["partition"], "Partition", 0)
        if places is None:
            raise ClientError("A partition is named, and no topic.")
        places = [place for place in places if place[1] == index]
        if not places:
            raise NotFound(f"{topic} has no partition {index}.")
    return plan(client, group_id, places, _target(given))


def _target(given: Given) -> Target:
    to = given.get("to", "")
    if to == "earliest":
        return to_earliest
    if to == "latest":
        return to_latest
    if to not in dict(_TARGETS):
        raise ClientError(f"There is no place {to!r}.")
    label = {"shift": "The number", "time": "The time", "ago": "The minutes"}.get(to, "The offset")
    text = required(given, "value", label)
    if to == "time":
        # A time leads to the first record that is not older.
        return moment_of(text, label)
    value = whole(text, label, -(2**62) if to == "shift" else 0)
    if to == "shift":
        return shifted(value)
    if to == "offset":
        return to_offset(value)
    return round(time.time() * 1000) - value * _MINUTE_MS


def _exact(moves: list[Move]) -> str:
    return json.dumps([[each.topic, each.partition, each.planned] for each in moves])


def _exact_moves(client: Client, group_id: str, text: str) -> list[Move]:
    committed = committed_offsets(client, group_id)
    try:
        wanted = [(str(topic), int(index), int(to)) for topic, index, to in json.loads(text)]
    except (ValueError, TypeError):
        raise ClientError("The form is damaged: load the page again.") from None
    return [
        Move(topic, index, committed.get((topic, index), -1), offset)
        for topic, index, offset in wanted
        if offset >= 0
    ]


# --- offsets deleted


def _delete_offsets(client: Client, given: Given) -> Plan:
    group_id = _group_id(given)
    topic = required(given, "topic", "The topic")
    committed = committed_offsets(client, group_id)
    places = sorted(place for place in committed if place[0] == topic)
    if not places:
        raise NotFound(f"{named(group_id)} has no offsets in {topic} (any more).")

    def delete(asked: Client, _: str) -> None:
        for place, code in delete_offsets(asked, group_id, places).items():
            check(code, f"{place[0]}-{place[1]}")

    return Plan(
        title=f"Delete the offsets of {named(group_id)} in {topic}?",
        button=f"Delete {many(len(places), 'offset')}",
        deed=delete,
        done=f"{named(group_id)} has no offsets in {topic} any more.",
        back=_place(group_id),
        effects=[
            "A member that reads the topic later begins where its auto.offset.reset says.",
            "The cluster refuses it while a member reads the topic.",
        ],
        heads=("Partition", "Now"),
        rows=[(f"{topic}-{index}", count(committed[topic, index])) for _, index in places],
        is_final=True,
        facts=[(*place, committed[place]) for place in places],
    )


# --- the group deleted


def _delete(client: Client, given: Given) -> Plan:
    group = _group(client, given)
    group_id = group.group_id
    if group.members:
        raise ClientError(
            f"{named(group_id)} has {many(len(group.members), 'member')}. Stop them first: the"
            " cluster deletes no group that has members."
        )
    committed = committed_offsets(client, group_id)

    def delete(asked: Client, _: str) -> None:
        for name, code in delete_groups(asked, [group_id]).items():
            check(code, f"group {name!r}")

    topics = sorted({topic for topic, _ in committed})
    effects = [f"Its offsets in {many(len(committed), 'partition')} go: {listed(topics)}."]
    if not committed:
        effects = ["It has committed no offsets."]
    return Plan(
        title=f"Delete group {named(group_id)}?",
        button="Delete the group",
        deed=delete,
        done=f"Group {named(group_id)} is deleted.",
        back=_place(group_id),
        after="/groups",
        effects=[*effects, "A member that starts later begins where its auto.offset.reset says."],
        is_final=True,
        facts=sorted([*place, offset] for place, offset in committed.items()),
    )


# --- a member taken out


def _remove_member(client: Client, given: Given) -> Plan:
    group = _group(client, given)
    member_id = required(given, "member", "The member")
    member = next((each for each in group.members if each.member_id == member_id), None)
    if member is None:
        raise NotFound(f"{named(group.group_id)} has no member {member_id} (any more).")
    if group.kind != "classic":
        raise ClientError(
            f"{named(group.group_id)} is a {group.kind} group: by its protocol only a member's"
            " own client can take it out. Stop that client."
        )
    effects = [
        "The group shares its partitions out among the other members.",
        "If its client is alive, it joins again at its next heartbeat: stop the client to keep it"
        " out.",
    ]
    if member.instance_id is not None:
        effects.append(f"It is static, as {member.instance_id}: that name is free then.")
    return Plan(
        title="Take this member out?",
        button="Take it out",
        deed=lambda asked, _: remove_member(asked, group.group_id, member, _REASON),
        done="The member is out.",
        back=_place(group.group_id),
        effects=effects,
        heads=("", ""),
        rows=[
            ("Member", member.member_id),
            ("Client", member.client_id),
            ("Host", member.host),
            ("Partitions", "-" if member.partitions is None else count(len(member.partitions))),
        ],
    )


RESET = Change(_reset, _reset_form)
DELETE = Change(_delete)
DELETE_OFFSETS = Change(_delete_offsets)
REMOVE_MEMBER = Change(_remove_member)
