"""The parts of a configuration table: named, typed, checked, documented settings.

A table is a class whose attributes are settings: `message_max_bytes = integer(...)` declares
`message.max.bytes`. An instance of the class holds one value per setting, as plain attributes.
Kafka's rules for the text of a value are followed (its `ConfigDef`): numbers and booleans are
trimmed, booleans are `true` or `false` in any case, lists are split at commas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from math import isfinite
from typing import Any, ClassVar, Generic, TypeVar, cast, overload

from wire.types import INT32_MAX, INT64_MAX

T = TypeVar("T")
Table = TypeVar("Table", bound="Config")

_PARTITION_AND_BROKER = re.compile(r"[0-9]+:[0-9]+")


class ConfigType(IntEnum):
    """The type of a value, with the ids that DescribeConfigs answers (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class InvalidValue(ValueError):
    """A text that is no value of its setting: `reason` continues a sentence after `name=value`."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


class Setting(Generic[T]):
    """One declared setting; as a class attribute it is itself, on an instance its value.

    `name` comes from the attribute: `log_segment_bytes` declares `log.segment.bytes`.
    `synonyms` are names of the broker's table that give the default of a topic's setting, or older
    names of the same thing, most specific first. `acts` is False where the value is stored and
    shown but nothing is done with it.
    """

    __slots__ = (
        "acts",
        "default",
        "doc",
        "name",
        "parse",
        "since",
        "synonyms",
        "type",
    )

    def __init__(
        self,
        type: ConfigType,
        parse: Callable[[str], T],
        default: T,
        *,
        doc: str,
        since: str,
        synonyms: Sequence[str] = (),
        acts: bool = True,
    ) -> None:
        self.name = ""
        self.type = type
        self.parse = parse
        self.default = default
        self.doc = doc
        self.since = since
        self.synonyms = tuple(synonyms)
        self.acts = acts

    def __set_name__(self, owner: type[Config], attribute: str) -> None:
        self.name = attribute.replace("_", ".")

    @overload
    def __get__(self, instance: None, owner: type[object]) -> Setting[T]: ...
    @overload
    def __get__(self, instance: object, owner: type[object]) -> T: ...
    def __get__(self, instance: object | None, owner: type[object]) -> Setting[T] | T:
        if instance is None:
            return self
        # Kept there, so that it is asked once: an attribute of the instance wins over this.
        instance.__dict__[attribute_of(self.name)] = self.default
        return self.default

    def render(self, value: object) -> str | None:
        """Return `value` as Kafka's tools print it; None where nothing is set."""
        if value is None:
            return None
        # Before the numbers: a bool is an int in Python, and `True` is no text of Kafka's.
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list | tuple):
            return ",".join(map(str, value))
        return _java_double(value) if isinstance(value, float) else str(value)


def parse_named(setting: Setting[T], name: str, text: str) -> T:
    """Return the value of a text. Raises InvalidValue, whose reason is a whole sentence."""
    try:
        return setting.parse(text)
    except InvalidValue as invalid:
        raise InvalidValue(f"{name}={text} {invalid.reason}") from None


class Config:
    """The values of one table. `explicit` are the names that were given, not defaulted."""

    settings: ClassVar[Mapping[str, Setting[Any]]] = {}

    def __init_subclass__(cls, *, stored: Mapping[str, Setting[Any]] | None = None) -> None:
        """`stored` are settings without effect, by name, beside those that are attributes."""
        for name, setting in (stored or {}).items():
            setting.name = name
            # `__set_name__` runs for attributes of the class body only, so the name is given by
            # hand.
            setattr(cls, attribute_of(name), setting)
        cls.settings = {
            value.name: value for value in vars(cls).values() if isinstance(value, Setting)
        }

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self.explicit: frozenset[str] = frozenset(values or ())
        for name, value in (values or {}).items():
            self.__dict__[attribute_of(name)] = value

    def view(self, table: type[Table]) -> Table:
        """Return what was given of the settings of `table`, which are this table's too."""
        return table({name: self[name] for name in table.settings.keys() & self.explicit})

    def says_as(self, other: Config) -> bool:
        """Whether both tables were given the same values."""
        return vars(self) == vars(other)

    def __getitem__(self, name: str) -> object:
        return cast(object, getattr(self, attribute_of(name)))


def _java_double(value: float) -> str:
    """Return a finite number as Java's Double.toString has it."""
    # Java's bounds: outside of them it switches to the scientific form, which Python does
    # elsewhere.
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    # A millisecond that a start need not pay.
    from decimal import Decimal

    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), "settings are finite"
    first, *rest = map(str, digits)
    fraction = "".join(rest) or "0"
    return f"{'-' * sign}{first}.{fraction}E{exponent + len(rest)}"


def attribute_of(name: str) -> str:
    """Return the attribute under which a table declares `name`."""
    return name.replace(".", "_")


def _bounded(
    minimum: float | None, maximum: float | None, default: object, rule: str
) -> Callable[[float], None]:
    source = f" ({rule})" if rule else ""
    fallback = f", or leave it out for the default of {default}" if default is not None else ""

    def check(value: float) -> None:
        if minimum is not None and value < minimum:
            raise InvalidValue(f"is below its minimum of {minimum}{source}", f"Raise it{fallback}.")
        if maximum is not None and value > maximum:
            raise InvalidValue(f"is above its maximum of {maximum}{source}", f"Lower it{fallback}.")

    return check


def parse_integer(text: str) -> int:
    """Return the whole number that `text` is, in Java's syntax."""
    stripped = text.strip()
    # Python's int takes `1_000` and digits of other scripts, which Java refuses.
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidValue("is not a whole number")
    try:
        return int(stripped)
    except ValueError:
        # Python reads no more than 4300 digits.
        raise InvalidValue("has too many digits") from None


def integer(
    default: int,
    *,
    minimum: int | None = None,
    maximum: int = INT32_MAX,
    rule: str = "",
    type: ConfigType = ConfigType.INT,
    doc: str,
    since: str,
    synonyms: Sequence[str] = (),
    acts: bool = True,
) -> Setting[int]:
    """Declare a whole number; both bounds inclusive, `rule` is where they come from."""
    # Two's complement has one more negative number than positive ones.
    check = _bounded(-maximum - 1 if minimum is None else minimum, maximum, default, rule)

    def parse(text: str) -> int:
        value = parse_integer(text)
        check(value)
        return value

    return Setting(type, parse, default, doc=doc, since=since, synonyms=synonyms, acts=acts)


def long(
    default: int,
    *,
    minimum: int | None = None,
    doc: str,
    since: str,
    synonyms: Sequence[str] = (),
    acts: bool = True,
) -> Setting[int]:
    """Declare a whole number of 64 bits."""
    return integer(
        default,
        minimum=minimum,
        maximum=INT64_MAX,
        type=ConfigType.LONG,
        doc=doc,
        since=since,
        synonyms=synonyms,
        acts=acts,
    )


def optional_integer(
    *,
    minimum: int | None = None,
    maximum: int = INT64_MAX,
    excluding: int | None = None,
    type: ConfigType = ConfigType.LONG,
    doc: str,
    since: str,
) -> Setting[int | None]:
    """Declare a number that is unset by default, so that another setting applies."""
    check = _bounded(minimum, maximum, None, "")

    def parse(text: str) -> int | None:
        value = parse_integer(text)
        check(value)
        if value == excluding:
            raise InvalidValue("is not allowed")
        return value

    return Setting(type, parse, None, doc=doc, since=since)


def double(
    default: float,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    doc: str,
    since: str,
    synonyms: Sequence[str] = (),
) -> Setting[float]:
    """Declare a number with a fraction."""
    check = _bounded(minimum, maximum, default, "")

    def parse(text: str) -> float:
        try:
            value = float(text.strip())
        except ValueError:
            raise InvalidValue("is not a number") from None
        # Python reads `nan` and `inf`, and no bound refuses `nan`: comparisons with it are false.
        if not isfinite(value):
            raise InvalidValue("is not a finite number")
        check(value)
        return value

    return Setting(ConfigType.DOUBLE, parse, default, doc=doc, since=since, synonyms=synonyms)


def boolean(
    default: bool, *, doc: str, since: str, synonyms: Sequence[str] = (), acts: bool = True
) -> Setting[bool]:
    """Declare a switch."""

    def parse(text: str) -> bool:
        lowered = text.strip().lower()
        if lowered not in ("true", "false"):
            raise InvalidValue("is neither true nor false")
        return lowered == "true"

    return Setting(
        ConfigType.BOOLEAN, parse, default, doc=doc, since=since, synonyms=synonyms, acts=acts
    )


def string(
    default: str,
    *,
    one_of: Sequence[str] = (),
    doc: str,
    since: str,
    synonyms: Sequence[str] = (),
    acts: bool = True,
) -> Setting[str]:
    """Declare a text, where `one_of` is given one of these words."""

    def parse(text: str) -> str:
        value = text.strip()
        if one_of and value not in one_of:
            raise InvalidValue(f"is not one of {', '.join(one_of)}")
        return value

    return Setting(
        ConfigType.STRING, parse, default, doc=doc, since=since, synonyms=synonyms, acts=acts
    )


def optional_string(*, doc: str, since: str) -> Setting[str | None]:
    """Declare a text that is unset by default."""

    def parse(text: str) -> str | None:
        return text.strip()

    return Setting(ConfigType.STRING, parse, None, doc=doc, since=since)


def words(
    default: Sequence[str],
    *,
    one_of: Sequence[str] = (),
    doc: str,
    since: str,
    synonyms: Sequence[str] = (),
    acts: bool = True,
) -> Setting[list[str]]:
    """Declare a comma-separated list, where `one_of` is given of these words only."""

    def parse(text: str) -> list[str]:
        # Splitting an empty text gives one empty word, but an empty list is legal.
        values = [word.strip() for word in text.split(",")] if text.strip() else []
        for value in values:
            if not value:
                raise InvalidValue("has a value that is empty")
            if one_of and value not in one_of:
                raise InvalidValue(f"names {value}, which is not one of {', '.join(one_of)}")
        return values

    return Setting(
        ConfigType.LIST, parse, list(default), doc=doc, since=since, synonyms=synonyms, acts=acts
    )


def split_words(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list, trimmed, without empty ones."""
    return tuple(word for part in text.split(",") if (word := part.strip()))


def empty_words(*, doc: str, since: str) -> Setting[tuple[str, ...]]:
    """Declare a comma-separated list that is empty by default.

    A tuple, because Kafka shows such a list as an empty text, and other empty lists as unset.
    """
    return Setting(ConfigType.LIST, split_words, (), doc=doc, since=since)


def throttled_replicas(*, doc: str) -> Setting[list[str]]:
    """Declare a list of partition:broker, or the word `*` for all."""

    def parse(text: str) -> list[str]:
        values = [*split_words(text)]
        if values != ["*"] and not all(_PARTITION_AND_BROKER.fullmatch(each) for each in values):
            raise InvalidValue("is neither * nor a list of partition:broker")
        return values

    return Setting(ConfigType.LIST, parse, [], doc=doc, since="0.10.1", acts=False)
