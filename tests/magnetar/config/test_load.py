"""Settings: Kafka's syntax and names, later sources win, mistakes are named with their place."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import magnetar
from magnetar.config.broker import BrokerConfig
from magnetar.config.described import TopicSettings, describe_broker_setting
from magnetar.config.document import document
from magnetar.config.dynamic import setting_names
from magnetar.config.group import GroupConfig, parse_group_configs
from magnetar.config.inert import OBSOLETE, inert_settings
from magnetar.config.listeners import (
    parse_address,
    parse_listeners,
    protocol_of_peers,
    unguarded,
)
from magnetar.config.load import ConfigError, Given, load, read_assignments, read_properties
from magnetar.config.properties import PropertiesError, parse_properties
from magnetar.config.setting import InvalidValue, Setting, attribute_of
from magnetar.config.topic import (
    TopicConfig,
    broker_default,
    broker_defaults,
    parse_topic_configs,
    resolve,
)
from wire.types import INT64_MAX


def broker_config(**settings: str) -> BrokerConfig:
    return load([Given(name.replace("_", "."), text, "test") for name, text in settings.items()])[0]


def test_properties_are_read_as_java_reads_them() -> None:
    text = (
        "# a comment\n"
        "! another\n"
        "\n"
        "plain=value\n"
        "  spaced  =  value with spaces \n"
        "colon:value\n"
        "white value of white\n"
        "continued=one,\\\n"
        "    two\n"
        "escaped\\=key=a\\tb\\u0041\\q\n"
        "path=C:\\\\data\n"
        "empty=\n"
        "alone\n"
        "last=\\"
    )
    assert list(parse_properties(text)) == [
        (4, "plain", "value"),
        (5, "spaced", "value with spaces "),
        (6, "colon", "value"),
        (7, "white", "value of white"),
        (8, "continued", "one,two"),
        (10, "escaped=key", "a\tbAq"),
        (11, "path", "C:\\data"),
        (12, "empty", ""),
        (13, "alone", ""),
        (14, "last", ""),
    ]


@pytest.mark.parametrize("escape", ["\\u12", "\\uzzzz", "\\u+123", "\\u 12a", "\\u1_23"])
def test_a_malformed_escape_is_refused_with_its_line(escape: str) -> None:
    with pytest.raises(PropertiesError, match="line 2"):
        list(parse_properties(f"a=1\nb={escape}\n"))


def test_a_character_that_java_writes_as_two_escapes_is_one() -> None:
    text = r"a=\ud83d\ude00" + "\n" + r"\uD83D\uDE00=b"
    assert list(parse_properties(text)) == [
        (1, "a", "\N{GRINNING FACE}"),
        (2, "\N{GRINNING FACE}", "b"),
    ]


@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\ude00\ud83d"])
def test_half_of_a_character_is_refused_with_its_line(half: str) -> None:
    with pytest.raises(PropertiesError, match="line 2: half"):
        list(parse_properties(f"a=1\nb={half}\n"))


def test_a_number_of_thousands_of_digits_is_refused_as_any_other_value_is() -> None:
    with pytest.raises(ConfigError, match="has too many digits"):
        load([Given("log.segment.bytes", "9" * 5_000, "here")])


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(PropertiesError):
        list(parse_properties(text))


def test_a_bad_value_is_refused_with_place_rule_and_way_out(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("\n" * 30 + "log.segment.bytes=12\n")
    with pytest.raises(ConfigError) as refused:
        load(read_properties(file))
    assert str(refused.value) == (
        "server.properties line 31: log.segment.bytes=12 is below its minimum of 1048576"
        " (KIP-1030). Raise it, or leave it out for the default of 1073741824."
    )


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("num.partitions", "many", "is not a whole number"),
        ("num.partitions", "4294967296", "is above its maximum of 2147483647"),
        ("auto.create.topics.enable", "yes", "is neither true nor false"),
        ("durability", "hope", "is not one of fsync, page-cache, memory"),
        ("log.cleaner.min.cleanable.ratio", "2", "is above its maximum of 1"),
        ("log.cleanup.policy", "delete,burn", "names burn"),
    ],
)
def test_values_are_checked(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"--set: {name}={value} {reason}")):
        load(read_assignments([f"{name}={value}"]))


def test_an_unknown_name_is_a_warning_with_the_closest_known_one() -> None:
    loaded = load(read_assignments(["log.segment.byte=1048576"]))
    assert loaded.warnings == [
        "--set: log.segment.byte is not a setting magnetar knows; it is ignored."
        " Did you mean log.segment.bytes?"
    ]


def test_settings_of_kafka_that_mean_nothing_here_say_why() -> None:
    loaded = load(read_assignments(["num.network.threads=3"]))
    assert loaded.warnings == [
        "--set: num.network.threads has no effect: one event loop serves everything, and waits"
        " for the disk in few threads."
    ]
    inert = inert_settings().keys()
    assert not inert & BrokerConfig.settings.keys()
    assert not inert & OBSOLETE.keys()


def test_the_last_source_wins() -> None:
    config = load(read_assignments(["num.partitions=3", "num.partitions=5"])).config
    assert config.num_partitions == 5
    assert config.explicit == {"num.partitions"}


def test_older_names_are_carried_over() -> None:
    config = broker_config(broker_id="7", log_dir="/tmp/a")
    assert (config.node_id, config.log_dirs) == (7, ["/tmp/a"])


def test_two_data_directories_are_refused() -> None:
    with pytest.raises(ConfigError, match="names 2 directories"):
        broker_config(log_dirs="/a,/b")


def test_every_setting_is_documented_and_its_default_is_valid() -> None:
    tables: list[dict[str, Setting[object]]] = [
        dict(BrokerConfig.settings),
        dict(TopicConfig.settings),
    ]
    for table in tables:
        for name, setting in table.items():
            assert setting.doc.endswith("."), name
            assert setting.since, name
            text = setting.render(setting.default)
            if text is not None:
                assert setting.parse(text) == setting.default, name


def test_the_documentation_is_that_of_the_tables() -> None:
    page = Path(__file__).parents[3] / "docs" / "configuration.md"
    assert page.read_text() == document(), "run python -m magnetar.config.document"


def test_what_is_said_to_act_is_read_somewhere() -> None:
    package = Path(magnetar.__file__).parent
    tables = {package / "config" / "broker.py", package / "config" / "inert.py"}
    text = "".join(path.read_text() for path in {*package.rglob("*.py")} - tables)
    words = set(re.findall(r"\w+", text))
    tables_above = [*TopicConfig.settings.values(), *GroupConfig.settings.values()]
    behind_others = {name for setting in tables_above for name in setting.synonyms}
    # `group.py` makes these names out of those that groups have.
    bounds = {
        name
        for name in BrokerConfig.settings
        if (own := re.sub(r"^group\.consumer\.(min|max)\.", "consumer.", name)) != name
        and own in GroupConfig.settings
    }
    acting = {name for name, setting in BrokerConfig.settings.items() if setting.acts}
    unread = {name for name in acting if attribute_of(name) not in words}
    assert unread <= behind_others | bounds


def test_topics_take_their_defaults_from_the_broker() -> None:
    broker = broker_config(log_retention_hours="2", message_max_bytes="5000")
    config = resolve({"segment.bytes": 1048576}, broker_defaults(broker))
    assert config.retention_ms == 2 * 3600 * 1000
    assert config.max_message_bytes == 5000
    assert config.segment_bytes == 1048576
    assert config.segment_ms == 168 * 3600 * 1000
    finer = broker_config(log_retention_hours="2", log_retention_minutes="1")
    assert resolve({}, broker_defaults(finer)).retention_ms == 60_000
    never = broker_config(log_retention_hours="-1")
    assert resolve({}, broker_defaults(never)).retention_ms == -1
    jittery = broker_config(log_roll_jitter_hours="2")
    assert resolve({}, broker_defaults(jittery))["segment.jitter.ms"] == 2 * 3600 * 1000


def test_a_setting_tells_where_it_comes_from() -> None:
    broker = broker_config(message_max_bytes="5000")
    settings = TopicSettings(broker)
    own = settings.describe("max.message.bytes", {"max.message.bytes": "77"})
    assert own == (
        "77",
        1,
        [
            ("max.message.bytes", "77", 1),
            ("message.max.bytes", "5000", 4),
            ("message.max.bytes", "1048588", 5),
        ],
    )
    assert settings.describe("max.message.bytes", {})[:2] == ("5000", 4)
    assert settings.describe("segment.ms", {}) == ("604800000", 5, [])
    assert describe_broker_setting("message.max.bytes", broker)[:2] == ("5000", 4)


def test_the_settings_of_a_listener_are_shown_with_those_of_the_broker_behind_them() -> None:
    jaas, limit = "listener.name.tls.plain.sasl.jaas.config", "listener.name.tls.max.connections"
    broker = load([Given(jaas, "secret", "a file"), Given(limit, "77", "a file")]).config
    assert {jaas, limit} <= set(setting_names(broker))
    assert describe_broker_setting(jaas, broker) == (None, 4, [(jaas, None, 4)])
    default = ("max.connections", "2147483647", 5)
    assert describe_broker_setting(limit, broker) == ("77", 4, [(limit, "77", 4), default])


def test_the_settings_of_a_mechanism_are_shown_with_those_of_the_broker_behind_them() -> None:
    name, base = "listener.name.tls.plain.connections.max.reauth.ms", "connections.max.reauth.ms"
    broker = load([Given(name, "50000", "a file"), Given(base, "60000", "a file")]).config
    behind = [(base, "60000", 4), (base, "0", 5)]
    assert describe_broker_setting(name, broker) == ("50000", 4, [(name, "50000", 4), *behind])


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"x": "1"}, "Unknown topic config name: x"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "soon"}, "retention.ms=soon is not a whole number"),
    ],
)
def test_topic_settings_are_checked(configs: dict[str, str | None], reason: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{re.escape(reason)}$"):
        parse_topic_configs(configs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:9092", ("127.0.0.1", 9092)),
        (":0", ("", 0)),
        ("[::1]:9092", ("::1", 9092)),
        ("host.example:1", ("host.example", 1)),
        ("my_host.example.:1", ("my_host.example.", 1)),
        ("grüße.example:1", ("grüße.example", 1)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, "test") == expected


@pytest.mark.parametrize(
    "text",
    [
        "host",
        "host:",
        "host:x",
        "host:70000",
        "::1:9092",
        "a..b:1",
        ".a:1",
        f"{'a' * 70}:1",
        "ä..b:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text, "test")


def test_listeners_are_joined_with_their_advertised_addresses() -> None:
    config = broker_config(
        listeners="IN://0.0.0.0:9092,OUT://10.0.0.1:0,CONTROLLER://:9093",
        advertised_listeners="IN://broker.example:19092",
        listener_security_protocol_map="IN:PLAINTEXT,OUT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        controller_listener_names="CONTROLLER",
    )
    inside, outside = parse_listeners(config)
    assert (inside.advertised_host, inside.advertised_port) == ("broker.example", 19092)
    assert outside.bound_to(4444).advertised_port == 4444
    assert outside.advertised_host == "10.0.0.1"


def test_names_of_listeners_are_compared_in_capitals() -> None:
    config = broker_config(
        listeners="clients://127.0.0.1:9092,control://127.0.0.1:9093",
        listener_security_protocol_map="Clients:PLAINTEXT",
        controller_listener_names="control",
    )
    assert [listener.name for listener in parse_listeners(config)] == ["CLIENTS"]


def test_a_form_feed_does_not_end_a_line_of_properties() -> None:
    assert list(parse_properties("a=1\f2\r\nb=3\rc=4")) == [
        (1, "a", "1\f2"),
        (2, "b", "3"),
        (3, "c", "4"),
    ]


@pytest.mark.parametrize(
    ("name", "text", "default"),
    [("log.cleanup.policy", "shred", "delete"), ("delete.topic.enable", "maybe", "true")],
)
def test_a_mistake_is_told_with_the_default_as_one_would_write_it(
    name: str, text: str, default: str
) -> None:
    with pytest.raises(ConfigError, match=f"Leave it out for the default, {default}"):
        load([Given(name, text, "test")])


def test_a_group_setting_out_of_bounds_is_told_with_the_bound_that_there_is() -> None:
    with pytest.raises(InvalidValue, match=r"above group\.streams\.max\.standby\.replicas=2"):
        parse_group_configs({"streams.num.standby.replicas": "3"}, BrokerConfig())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("errors.deadletterqueue.copy.record.enable", "maybe"),
        ("errors.deadletterqueue.topic.name", "__letters"),
        ("streams.assignor.name", "nope"),
        ("streams.assignor.name", ""),
        ("streams.rack.aware.assignment.tags", "a,,b"),
        ("streams.rack.aware.assignment.tags", "a,a"),
    ],
)
def test_what_kafka_4_4_refuses_of_the_settings_of_groups_that_are_not_served(
    name: str, text: str
) -> None:
    with pytest.raises(InvalidValue):
        parse_group_configs({name: text}, BrokerConfig())


def test_what_kafka_4_4_takes_of_them() -> None:
    given = {
        "errors.deadletterqueue.copy.record.enable": "true",
        "errors.deadletterqueue.topic.name": "",
        "streams.assignor.name": "sticky",
        "streams.rack.aware.assignment.tags": "a,b",
    }
    parsed = parse_group_configs(given, BrokerConfig())
    assert list(parsed.values()) == [True, "", "sticky", ["a", "b"]]


def test_topics_may_be_created_with_the_settings_of_kafka_4_4() -> None:
    parse_topic_configs(
        {
            "errors.deadletterqueue.group.enable": "true",
            "remote.copy.lag.ms": "50",
            "remote.copy.lag.bytes": "-1",
        }
    )
    with pytest.raises(InvalidValue):
        parse_topic_configs({"remote.copy.lag.ms": "-2"})


@pytest.mark.parametrize(
    "listeners", ["TLS://127.0.0.1:9092", "127.0.0.1:9092", "A://h:1,A://h:2", ""]
)
def test_listeners_that_cannot_be_served_are_refused(listeners: str) -> None:
    with pytest.raises(ConfigError):
        parse_listeners(broker_config(listeners=listeners))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (0.0, "0.0"),
        (1e-3, "0.001"),
        (1e-4, "1.0E-4"),
        (123456.75, "123456.75"),
        (1e7, "1.0E7"),
        (-12345678.5, "-1.23456785E7"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_numbers_are_shown_as_java_shows_them(value: float, text: str) -> None:
    assert BrokerConfig.settings["log.cleaner.min.cleanable.ratio"].render(value) == text


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"listeners": "PLAINTEXT://127.0.0.1:1,A://[::1]:2"}, 0),
        ({"listeners": "PLAINTEXT://0.0.0.0:1,A://10.0.0.1:2"}, 2),
        ({"listeners": "SSL://10.0.0.1:1"}, 1),
        ({"listeners": "SSL://10.0.0.1:1", "ssl_client_auth": "required"}, 0),
        ({"listeners": "SASL_PLAINTEXT://10.0.0.1:1"}, 0),
        (
            {
                "listeners": "PLAINTEXT://10.0.0.1:1",
                "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            },
            0,
        ),
    ],
)
def test_listeners_that_ask_no_client_who_it_is_are_known(
    settings: dict[str, str], count: int
) -> None:
    config = broker_config(listener_security_protocol_map="A:PLAINTEXT", **settings)
    assert len(unguarded(config, parse_listeners(config))) == count


# What nodes of a cluster speak to each other.

_PROTOCOL_OF_PEERS = "security.inter.broker.protocol"
_NAME_OF_PEERS = "inter.broker.listener.name"
_MAP = {"listener.security.protocol.map": "inside:SSL,OUTSIDE:SASL_PLAINTEXT"}


@pytest.mark.parametrize(
    ("settings", "name", "protocol"),
    [
        ({}, "PLAINTEXT", "PLAINTEXT"),
        ({_PROTOCOL_OF_PEERS: "ssl"}, "SSL", "SSL"),
        ({_PROTOCOL_OF_PEERS: "SASL_SSL"}, "SASL_SSL", "SASL_SSL"),
        ({_NAME_OF_PEERS: "Inside", **_MAP}, "INSIDE", "SSL"),
        ({_NAME_OF_PEERS: "OUTSIDE", **_MAP}, "OUTSIDE", "SASL_PLAINTEXT"),
        ({_NAME_OF_PEERS: "SSL", **_MAP}, "SSL", "SSL"),
    ],
)
def test_peers_speak_what_kafkas_settings_say(
    settings: dict[str, str], name: str, protocol: str
) -> None:
    config = load([Given(*each, "test") for each in settings.items()]).config
    assert protocol_of_peers(config) == (name, protocol)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({_PROTOCOL_OF_PEERS: "TLS"}, "security.inter.broker.protocol: TLS is not one of"),
        ({_NAME_OF_PEERS: "OTHER", **_MAP}, "Name the protocol of OTHER in"),
        ({_NAME_OF_PEERS: "INSIDE", _PROTOCOL_OF_PEERS: "SSL", **_MAP}, "Set only one of the two"),
    ],
)
def test_a_protocol_of_peers_that_cannot_be(settings: dict[str, str], said: str) -> None:
    config = load([Given(*each, "test") for each in settings.items()]).config
    with pytest.raises(ConfigError, match=said):
        protocol_of_peers(config)


def test_no_address_may_connect_only_where_some_are_named() -> None:
    given = [Given("max.connections.per.ip", "0", "test")]
    with pytest.raises(ConfigError, match="only if max.connections.per.ip.overrides"):
        load(given)
    named = Given("max.connections.per.ip.overrides", "10.1.2.3:5", "test")
    assert load([*given, named]).config.max_connections_per_ip == 0


@pytest.mark.parametrize("text", ["-1", "0", str(-INT64_MAX - 1), str(INT64_MAX)])
def test_what_a_broker_takes_for_its_topics_is_a_value_of_theirs(text: str) -> None:
    """A start fails at any other, even where it was set at run time."""
    for name, setting in TopicConfig.settings.items():
        for synonym in setting.synonyms:
            try:
                config = load([Given(synonym, text, "test")])[0]
            except ConfigError:
                continue
            broker_default(name, config)
