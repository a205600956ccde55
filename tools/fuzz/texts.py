"""What an operator writes: server.properties, JAAS entries, principal mapping rules.

An input is the number of the kind (one byte), then the text in UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

from magnetar.config.broker import BrokerConfig
from magnetar.config.inert import inert_settings
from magnetar.config.jaas import parse_jaas
from magnetar.config.listeners import parse_listeners
from magnetar.config.load import ConfigError, Given, load
from magnetar.config.properties import PropertiesError, parse_properties
from magnetar.config.security import SecurityProtocol, listener_security
from magnetar.security.names import NameRefused, mapped, parse_rules
from tools.fuzz.mutations import mutated
from tools.fuzz.target import Target, judge

_CHARACTERS = "ab =:#!\\\t\f\r\n\"';$/.,*()[]^+?0é\N{GRINNING FACE}uLU"
_VALUES = (
    "true",
    "-1",
    "0",
    "9" * 20,
    "9" * 5000,
    "1e400",
    "nan",
    "PLAINTEXT://:0",
    "SASL_SSL://[::1]:9,SSL://h:1",
    "X://127.0.0.1:70000",
    "a,b,,c",
    "\\u0041\\ud83d\\ude00",
    "\\ud800",
)
_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_RULES = ("DEFAULT", "RULE:^CN=(.*?),.*$/$1/", "RULE:(a)/$1$2/L", "RULE:.*/x\\/$0/U", "RULE:(/$1/")
_NAMES = ("CN=ada,OU=eng", "", "a", "CN=" + "x" * 3000, "CN=\\,\\=,O=#é")


def _noise(random: Random) -> str:
    return "".join(random.choices(_CHARACTERS, k=random.randrange(30)))


def _properties(random: Random) -> str:
    names = sorted({*BrokerConfig.settings, *inert_settings()})
    names += ["listener.name.ssl.ssl.keystore.type", "listener.name.x.plain.sasl.jaas.config"]
    lines = []
    for _ in range(random.randrange(1, 6)):
        value = random.choice((*_VALUES, _noise(random)))
        lines.append(f"{random.choice(names)}{random.choice(('=', ' = ', ':', ' '))}{value}")
    return random.choice(("\n", "\r\n", "\\\n")).join(lines)


def _judge_properties(text: str) -> None:
    try:
        given = [Given(name, value, f"line {n}") for n, name, value in parse_properties(text)]
    except PropertiesError:
        return
    for each in given:
        # What was read must be writable: to a log line, to the catalog, to a client.
        each.name.encode()
        each.value.encode()
    _judge_written_again(given)
    try:
        config = load(given).config
        parse_listeners(config)
    except ConfigError:
        return
    for protocol in SecurityProtocol:
        listener_security(config, protocol, "PLAIN")
    for name, setting in BrokerConfig.settings.items():
        setting.render(config[name])


def _judge_written_again(given: list[Given]) -> None:
    """Write names and values as Java's Properties.store does, and read them again."""
    lines = (f"{_escaped(each.name)}={_escaped(each.value)}" for each in given)
    again = [(name, value) for _, name, value in parse_properties("\n".join(lines))]
    judge(again == [(each.name, each.value) for each in given], "what is written again is the same")


def _escaped(text: str) -> str:
    special = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    pieces = []
    for character in text:
        if character in special:
            pieces.append(special[character])
        elif character in " =:#!\\":
            pieces.append(f"\\{character}")
        elif ord(character) > 126:
            units = character.encode("utf-16-be").hex()
            pieces += [f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)]
        else:
            pieces.append(character)
    return "".join(pieces)


def _jaas(random: Random) -> str:
    options = [
        f'{random.choice(("user_ada", "user_", "x.y", _noise(random)))}="{_noise(random)}"'
        for _ in range(random.randrange(4))
    ]
    return f"{_MODULE} {' '.join(options)};"


def _judge_jaas(text: str) -> None:
    with suppress(ValueError):
        options = parse_jaas(text)
        written = " ".join(
            f'{name}="{value}"'.replace("\\", "\\\\")
            if '"' not in value
            else '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"'))
            for name, value in options.items()
        )
        judge(parse_jaas(f"{_MODULE} {written};") == options, "options are read as written")


def _rules(random: Random) -> str:
    rules = [random.choice((*_RULES, f"RULE:{_noise(random)}/{_noise(random)}/")) for _ in range(2)]
    return ",".join(rules[: random.randrange(1, 3)])


def _judge_rules(text: str) -> None:
    try:
        rules = parse_rules(text)
    except ValueError:
        return
    # What was taken at the start must serve every certificate.
    for name in _NAMES:
        with suppress(NameRefused):
            judge(isinstance(mapped(name, rules), str), "a rule makes a text of a name")


_Kind = tuple[Callable[[Random], str], Callable[[str], None]]
_KINDS: tuple[_Kind, ...] = (
    (_properties, _judge_properties),
    (_jaas, _judge_jaas),
    (_rules, _judge_rules),
)


def _generate(random: Random) -> bytes:
    number = random.randrange(len(_KINDS))
    data = _KINDS[number][0](random).encode()
    if random.random() < 0.5:
        data = mutated(random, data)
    return bytes((number,)) + data


def _run(given: bytes) -> None:
    if given:
        # A file that is not UTF-8 is refused as such before.
        _KINDS[given[0] % len(_KINDS)][1](given[1:].decode(errors="ignore"))


TARGET = Target("texts", _generate, _run)
