"""Brokers for the tests: one of each kind for the session, and ones of a test's own to kill."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from compat_tests.admin import create_topic
from compat_tests.brokers import (
    LONG_LIVED,
    OVER_POSTGRESQL,
    WORKERS,
    Broker,
    make_broker,
    started_when_asked,
)
from compat_tests.scheduling import UnitScheduling, in_order
from compat_tests.secured import certificates, secured
from tools.reference_kafka import ReferenceUnavailable, fetch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from compat_tests.console import Browser
    from compat_tests.group_frames import Member
    from compat_tests.raw import Connection
    from compat_tests.spark import Spark

#: Fixtures of files that need brokers with listeners for every security protocol.
__all__ = ["certificates", "secured"]
#: The reference runs as one node; over several nodes it has nothing to be compared with.
KINDS = ("magnetar", "kafka") if WORKERS == 1 else ("magnetar",)
#: The fixtures of tests that compare answers in detail.
COMPARING = frozenset({"both_brokers", "pair"})
TEST_TIMEOUT_S = 300
_HERE = Path(__file__).parent
MakeName = Callable[[str], str]
MakeTopic = Callable[..., str]
StartBroker = Callable[..., Broker]
Enter = Callable[..., "Member"]
EnterOn = Callable[[Broker], Enter]
#: The client libraries' own: deprecated calls, and sockets they leave to the garbage collector.
_CLIENTS_OWN_WARNINGS = (
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "magnetar_only(reason): a promise of magnetar's that Kafka does not make"
    )
    config.addinivalue_line(
        "markers", "one_node(reason): not run with MAGNETAR_WORKERS, since it is about one process"
    )
    config.addinivalue_line(
        "markers",
        "local_files(reason): not run with MAGNETAR_STORAGE, since it is about files of partitions",
    )
    for ignored in _CLIENTS_OWN_WARNINGS:
        config.addinivalue_line("filterwarnings", ignored)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the tests in order, and give each time enough for a busy machine: it may start brokers
    and JVMs. Over several nodes, leave out those that are about one, and over a database those
    that are about files.
    """
    items[:] = in_order(items)
    left_out = [
        each
        for each in items
        if (WORKERS > 1 and is_about_one_node(each))
        or (OVER_POSTGRESQL and each.get_closest_marker("local_files") is not None)
    ]
    items[:] = [each for each in items if each not in left_out]
    config.hook.pytest_deselected(items=left_out)
    for item in items:
        if _HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_TIMEOUT_S))


def is_about_one_node(item: pytest.Item) -> bool:
    """Whether a test has no meaning over several nodes: it says so, or it compares the answers of
    magnetar, number by number, with those of a Kafka of one node.
    """
    fixtures: Sequence[str] = getattr(item, "fixturenames", ())
    is_compared = not COMPARING.isdisjoint(fixtures)
    return is_compared or item.get_closest_marker("one_node") is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep what belongs together on one worker."""
    if config.getoption("dist") != "loadscope":
        return None
    return UnitScheduling(config, log)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give every test that uses a broker one run per kind."""
    if "broker_kind" not in metafunc.fixturenames:
        return
    beyond_kafka = metafunc.definition.get_closest_marker("magnetar_only") is not None
    metafunc.parametrize("broker_kind", KINDS[:1] if beyond_kafka else KINDS, scope="session")


@pytest.fixture(scope="session")
def jars() -> Path:
    """Kafka's jars; a machine without Java or Maven fails here and says what is missing."""
    try:
        return fetch()
    except ReferenceUnavailable as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Broker]]:
    """Return the session's broker of a kind, started at its first use."""
    with started_when_asked(
        lambda kind: make_broker(kind, tmp_path_factory.mktemp(kind), LONG_LIVED.get(kind))
    ) as get:
        yield get


@pytest.fixture
def broker(broker_kind: str, shared_broker: Callable[[str], Broker]) -> Broker:
    """The session's broker of this kind. Shared: use names of your own, and do not end it."""
    return shared_broker(broker_kind)


@pytest.fixture
def connection(broker: Broker) -> Iterator[Connection]:
    """A connection to the broker, for raw requests."""
    # Not imported above: kafka-python's warnings are ignored from `pytest_configure` on.
    from compat_tests import raw

    with raw.Connection(broker.bootstrap) as connection:
        yield connection


@pytest.fixture(scope="session")
def spark_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one JVM and session of all Spark tests and both brokers."""
    # Not imported by those who run no test of Spark's.
    from compat_tests.spark import start_session

    session = start_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


@pytest.fixture
def spark(spark_session: SparkSession, broker: Broker) -> Spark:
    """The session, reading and writing on the shared broker."""
    from compat_tests.spark import Spark

    return Spark(spark_session, broker.bootstrap)


@pytest.fixture
def offset_reader(request: pytest.FixtureRequest, spark_session: SparkSession) -> Iterator[str]:
    """Make Spark ask for offsets through an `admin` client, or through a `consumer` as it did."""
    from compat_tests.spark import DEPRECATED_OFFSET_READER

    reader: str = request.param
    spark_session.conf.set(DEPRECATED_OFFSET_READER, str(reader == "consumer").lower())
    yield reader
    spark_session.conf.unset(DEPRECATED_OFFSET_READER)


@pytest.fixture
def both_brokers(shared_broker: Callable[[str], Broker]) -> tuple[Broker, Broker]:
    """magnetar and Kafka, for a script that must do the same on both."""
    return shared_broker("magnetar"), shared_broker("kafka")


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[StartBroker]:
    """Start brokers of a test's own: `start_broker(kind, settings={...})`. Killed at its end."""
    with ExitStack() as stack:

        def start(kind: str, settings: dict[str, str] | None = None) -> Broker:
            broker = make_broker(kind, tmp_path / f"{kind}-{uuid.uuid4().hex[:6]}", settings)
            stack.callback(broker.kill)
            broker.start()
            return broker

        yield start


@pytest.fixture
def own_broker(broker_kind: str, start_broker: StartBroker) -> Broker:
    """A broker of this kind that belongs to the test alone."""
    return start_broker(broker_kind)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One Chromium for the tests of a file."""
    # selenium is not imported by those who look at no page.
    from compat_tests.console import Browser

    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def consoles() -> Iterator[Callable[[Broker], str]]:
    """Return the address of a broker's console; it is started once."""
    from compat_tests.console import console

    started: dict[str, str] = {}
    with ExitStack() as stack:

        def of(broker: Broker) -> str:
            if broker.bootstrap not in started:
                started[broker.bootstrap] = stack.enter_context(console(broker.bootstrap))
            return started[broker.bootstrap]

        yield of


@pytest.fixture
def browser(chromium: Browser, consoles: Callable[[Broker], str], broker: Broker) -> Browser:
    """Chromium at the console of the shared broker."""
    from compat_tests.console import WIDE

    chromium.size(*WIDE)
    chromium.visit(consoles(broker))
    return chromium


@pytest.fixture
def name() -> MakeName:
    """Make names that no other test uses: `name("orders")`."""
    return lambda base: f"{base}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def topic(broker: Broker, topic_on: MakeTopic) -> MakeTopic:
    """Create a topic on the shared broker: `topic("orders", partitions=4)` returns its name."""
    return partial(topic_on, broker)


@pytest.fixture
def topic_on(name: MakeName) -> MakeTopic:
    """Create a topic on any broker: `topic_on(own_broker, "orders", partitions=4)`."""

    def create(broker: Broker, base: str, partitions: int = 1, **configs: str) -> str:
        created = name(base)
        create_topic(broker.bootstrap, created, partitions, configs)
        return created

    return create


@pytest.fixture
def enter(broker: Broker, enter_on: EnterOn) -> Enter:
    """Make members of the test's group: connected, and nothing else."""
    return enter_on(broker)


@pytest.fixture
def enter_on(name: MakeName) -> Iterator[EnterOn]:
    """As `enter`, on any broker."""
    # Not before the warnings of kafka-python are filtered.
    from compat_tests.group_frames import Member

    group = name("group")
    with ExitStack() as stack:

        def on(broker: Broker) -> Enter:
            def make(instance: str | None = None, group_id: str = group) -> Member:
                return stack.enter_context(Member(broker.bootstrap, group_id, instance))

            return make

        yield on
