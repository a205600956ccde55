"""The commands that docs/ shows, each run as it stands there, on a broker that has what it names.

compat_tests/test_documented_commands.py runs those of the README and of the tutorial, and looks at
what they print; here a command has to succeed. What needs more than a broker is in `ELSEWHERE`,
with what runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from compat_tests import documents
from compat_tests.admin import create_topic
from compat_tests.confluent_client import producer
from compat_tests.databases import database_of
from magnetar.testing import start_broker

pytestmark = [pytest.mark.magnetar_only(reason="the documents are magnetar's")]
#: The beginnings of commands that are not run here, and why.
ELSEWHERE = {
    "magnetar serve": "compat_tests/test_newcomer.py and test_scaling.py start brokers",
    "magnetar console": "compat_tests/test_console.py starts consoles",
    "magnetar import": "compat_tests/test_import.py has directories of Kafka",
    "magnetar users add ada --profile": "asks for a password: test_command_line_access.py",
    "magnetar topics list -b kafka.example.org": "TLS: compat_tests/test_command_line_access.py",
}
#: Written for a cluster of its reader's.
_FOREIGN = re.compile(r"--bootstrap kafka:\d+")
#: And for its database.
_FOREIGN_DATABASE = re.compile(r"--storage \$?URL\b")
_COMMAND = re.compile(r"^(?:\$ )?(magnetar .*)$", re.MULTILINE)
_COMMENT = re.compile(r"\s+#.*$")


class Prepared(NamedTuple):
    """A broker that has what the documents name, and a folder with the files that they name."""

    bootstrap: str
    folder: Path
    database: str
    """The URL of a cluster's database that no node has used."""


def shown() -> dict[str, list[str]]:
    """Return the commands of magnetar that each document shows, but the written reference."""
    found = {}
    for path in sorted((documents.ROOT / "docs").rglob("*.md")):
        name = str(path.relative_to(documents.ROOT))
        if path.parent.name != "decisions" and path.name not in ("cli.md", "first_five_minutes.md"):
            blocks = (
                block for kind in ("", "console", "bash") for block in documents.blocks(name, kind)
            )
            commands = [
                _COMMENT.sub("", command)
                for block in blocks
                for command in _COMMAND.findall(block.replace("\\\n", " "))
                if " ready on " not in command
            ]
            if commands:
                found[name] = commands
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("examples")
    for name in ("bob", "admin"):
        (folder / f"{name}.txt").write_text("secret\n")
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    # A data directory of a broker that is not running.
    with start_broker(folder / "data"):
        pass
    with start_broker(folder / "broker", settings=settings) as broker:
        address = broker.bootstrap_servers
        for topic in ("orders", "counts"):
            create_topic(address, topic, 2)
        seeding = Producer({"bootstrap.servers": address})
        for partition in (0, 1):
            seeding.produce("orders", b"x", partition=partition)
        assert seeding.flush(30) == 0
        reader = Consumer({"bootstrap.servers": address, "group.id": "billing"})
        reader.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        reader.close()
        etl = producer(address, transactional_id="orders-etl-1")
        etl.init_transactions()
        etl.begin_transaction()
        etl.produce("orders", b"open", partition=0)
        etl.flush()
        # For the command that removes a user.
        documents.run("magnetar users add ada --password-file bob.txt", address, folder)
        profile = folder / ".config" / "magnetar" / "profiles.toml"
        profile.parent.mkdir(parents=True)
        profile.write_text(f'[production]\n"bootstrap.servers" = "{address}"\n')
        database = database_of(str(folder))
        documents.run(f"magnetar cluster init --storage {database}", address, folder)
        yield Prepared(address, folder, database)


def here(command: str, prepared: Prepared) -> str:
    """Return the command for this broker, with the home of its reader."""
    command = _FOREIGN.sub(f"--bootstrap {prepared.bootstrap}", command)
    command = _FOREIGN_DATABASE.sub(f"--storage {prepared.database}", command)
    return f"export XDG_CONFIG_HOME={prepared.folder}/.config; {command}"


@pytest.mark.parametrize("document", shown())
def test_the_commands_of_a_document_succeed(document: str, prepared: Prepared) -> None:
    for command in shown()[document]:
        if not command.startswith((*ELSEWHERE,)):
            documents.run(here(command, prepared), prepared.bootstrap, prepared.folder)


def test_documents_show_what_is_run_here_and_what_is_not() -> None:
    commands = [command for each in shown().values() for command in each]
    run = [command for command in commands if not command.startswith((*ELSEWHERE,))]
    assert len(run) >= 20
    for beginning in ELSEWHERE:
        assert any(command.startswith(beginning) for command in commands), beginning
