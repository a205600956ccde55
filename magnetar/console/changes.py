"""Changes of the cluster: a form, a plan that is shown, a confirmation, the deed.

A change is a function from the fields of a form to a `Plan`. GET shows what the plan will do, next
to what is there now. POST makes the plan again, and performs it if it rests on the same facts as
the one that the visitor saw; else it shows the new one and does nothing. So two people at one time
never do what only one of them has read.

Everything is asked and done as the visitor's Kafka user: what that user may not do, the cluster
refuses. Nothing here decides about rights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magnetar.client import Client, ClientError, NotLetIn, Unreachable
from magnetar.client.readable import count, parse_time
from magnetar.console.screens import (
    Forbidden,
    Handler,
    Screen,
    Visit,
    status_of,
    uncertain,
    whole_number,
)

#: Rows of a preview; the others are counted.
ROWS_MAX = 300
#: What the console adds to a form.
_OWN_FIELDS = frozenset({"go", "token", "seen", "answer", "again"})


@dataclass(frozen=True)
class Field:
    """One field of a form. `kind`: text, number, lines, check, choice, or fixed, which shows its
    value, or the hint for an empty one, and sends it."""

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    hint: str = ""
    choices: Sequence[tuple[str, str]] = ()
    """Value and label of each."""
    is_required: bool = False


@dataclass(frozen=True)
class Form:
    """What a visitor fills in; `back` is the address of what it is about."""

    title: str
    back: str
    back_label: str
    fields: Sequence[Field]
    intro: str = ""
    warning: str = ""
    """Why it cannot be done now."""


@dataclass(frozen=True)
class Question:
    """What a visitor answers on the confirmation: a password, or a name typed once more."""

    label: str
    kind: str = "text"
    wanted: str = ""
    """The only answer that is accepted; empty: any that is not empty."""


#: The fields of a form, as they were filled in.
Given = Mapping[str, str]
Deed = Callable[[Client, str], object]


@dataclass(frozen=True)
class Plan:
    """What a change will do, and on which facts that rests."""

    title: str
    button: str
    deed: Deed
    """Does it; gets the answer to `question`. Raises ClientError."""
    done: str
    """A sentence for afterwards."""
    back: str
    after: str = ""
    """Where to look afterwards; empty: `back`."""
    effects: Sequence[str] = ()
    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    is_final: bool = False
    """Whether nothing brings back what it removes."""
    question: Question | None = None
    facts: Sequence[object] = ()
    """What must be the same when it is done; other figures may move on."""
    fields: Mapping[str, str] | None = None
    """What the confirmation sends in place of the form: an end that is now a number."""

    @property
    def seen(self) -> str:
        """Return what tells this plan from one that rests on other facts."""
        text = json.dumps([self.title, *self.facts], default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Change:
    """How a change is planned, and the form of one that needs more than a link."""

    plan: Callable[[Client, Given], Plan]
    form: Callable[[Client, Given], Form] | None = None


def shown(change: Change) -> Handler:
    """Return the handler of a GET: the form, or what the filled in form would do."""

    def handler(visit: Visit) -> Screen:
        if visit.settings.read_only:
            raise Forbidden("This console is read-only: it changes nothing.")
        given = _given(visit.query)
        if change.form is not None and visit.query.get("go") != "1":
            return _form(visit, change, given, "")
        try:
            return _confirm(visit, visit.access.ask(lambda client: change.plan(client, given)))
        except (Unreachable, NotLetIn):
            raise
        except ClientError as mistake:
            if change.form is None:
                values = {"message": visit.explained(mistake), "is_passing": False}
                values["heading"] = "That cannot be done"
                # What is not there is a page that is not there; else it conflicts with what is.
                status = 404 if status_of(mistake) == 404 else 409
                return Screen("failure.html", values, "Not possible", status=status)
            # A refusal is explained where it may be mended: beside what was filled in.
            return _form(visit, change, given, visit.explained(mistake))

    return handler


def done(change: Change) -> Handler:
    """Return the handler of a POST: the deed, if it is still the one that was shown."""

    def handler(visit: Visit) -> Screen:
        given = _given(visit.form)
        answer = visit.form.get("answer", "")
        is_other = False

        def deed(client: Client) -> Plan | None:
            nonlocal is_other
            plan = change.plan(client, given)
            if plan.seen != visit.form.get("seen"):
                is_other = True
                return plan
            mistake = _mistake(plan, answer, visit.form.get("again", ""))
            if mistake:
                raise _Unanswered(plan, mistake)
            with uncertain():
                plan.deed(client, answer)
            return plan

        try:
            plan = visit.access.act(deed)
        except _Unanswered as unanswered:
            return _confirm(visit, unanswered.plan, unanswered.mistake, status=400)
        assert plan is not None
        if is_other:
            news = "Something has changed since you looked. Nothing was done: this is the new plan."
            return _confirm(visit, plan, news, status=409)
        return Screen("change_done.html", {"plan": plan, **_table(plan)}, plan.done)

    return handler


class _Unanswered(ClientError):
    """The confirmation's question has no answer that is accepted."""

    def __init__(self, plan: Plan, mistake: str) -> None:
        super().__init__(mistake)
        self.plan = plan
        self.mistake = mistake


def _mistake(plan: Plan, answer: str, again: str) -> str:
    asked = plan.question
    if asked is None:
        return ""
    if asked.wanted and answer != asked.wanted:
        return f"Nothing was done: type {asked.wanted} to confirm."
    if asked.kind == "password" and answer != again:
        return "Nothing was done: the two passwords differ."
    return "" if answer else "Nothing was done: the answer is empty."


def _form(visit: Visit, change: Change, given: Given, message: str) -> Screen:
    make = change.form
    assert make is not None
    form = visit.access.ask(lambda client: make(client, given))
    values = {"form": form, "given": given, "message": message or form.warning}
    return Screen("change_form.html", values, form.title, status=400 if message else 200)


def _confirm(visit: Visit, plan: Plan, message: str = "", status: int = 200) -> Screen:
    given = _given(visit.form or visit.query) if plan.fields is None else plan.fields
    values = {"plan": plan, "given": given, "message": message, **_table(plan)}
    return Screen("change_confirm.html", values, plan.title, status=status)


def _table(plan: Plan) -> dict[str, Any]:
    return {"rows": plan.rows[:ROWS_MAX], "row_count": len(plan.rows)}


def _given(fields: Mapping[str, str]) -> dict[str, str]:
    """Return a form's own fields, without blanks around them."""
    return {name: text.strip() for name, text in fields.items() if name not in _OWN_FIELDS}


# --- what plans are made with


def required(given: Given, name: str, what: str) -> str:
    """Return a field. ClientError: it is empty."""
    text = given.get(name, "")
    if not text:
        raise ClientError(f"{what} is missing.")
    return text


def whole(text: str, what: str, lowest: int, highest: int = 2**62) -> int:
    """Return a whole number within bounds. ClientError: it is none."""
    number = whole_number(text.strip().replace(" ", "").replace("_", ""))
    if number is None:
        raise ClientError(f"{what}: {text!r} is no whole number.")
    if not lowest <= number <= highest:
        raise ClientError(
            f"{what}: {count(number)} is not within {count(lowest)} and {count(highest)}."
            if highest < 2**62
            else f"{what}: {count(number)} is below {count(lowest)}."
        )
    return number


def moment_of(text: str, what: str) -> int:
    """Return ms since 1970 of a time as people type it. ClientError: it is none."""
    try:
        return parse_time(text)
    # OverflowError: the year is out of Python's range.
    except (ValueError, OverflowError):
        raise ClientError(
            f"{what}: {text!r} is no time: write 2026-11-21T15:00, which is UTC."
        ) from None


def pairs(text: str) -> dict[str, str]:
    """Return NAME=VALUE of each line. ClientError: a line is none, or names one twice."""
    found: dict[str, str] = {}
    for name, value in each_pair(text, "setting"):
        if name in found:
            raise ClientError(f"{name} is there twice.")
        found[name] = value
    return found


def each_pair(text: str, what: str) -> Iterator[tuple[str, str]]:
    """Yield NAME and VALUE of each line. ClientError: a line is no `what` of that form."""
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ClientError(f"{line!r} is no {what}: write NAME=VALUE, one a line.")
        yield name.strip(), value.strip()


def many(number: int, one: str) -> str:
    """Return a number with its noun: `1 topic`, `1 204 topics`."""
    return f"{count(number)} {one if number == 1 else one + 's'}"


def listed(names: Iterable[str]) -> str:
    """Return the first five names as a list in a sentence, and how many more there are."""
    every = list(names)
    text = ", ".join(every[:5])
    return text if len(every) <= 5 else f"{text} and {count(len(every) - 5)} more"
