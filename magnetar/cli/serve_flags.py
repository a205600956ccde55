"""The flags of `magnetar serve`, and the configuration that they and a file give."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from magnetar.config.broker import BrokerConfig
from magnetar.config.cluster import ClusterConfig
from magnetar.config.listeners import parse_address
from magnetar.config.load import ConfigError, Given, load, read_assignments, read_properties

#: The most nodes of one machine.
WORKERS_MAX = 64


class Flags(NamedTuple):
    """The flags of the command line."""

    listen: str | None
    data_dir: str | None
    config_file: str | None
    assignments: tuple[str, ...]
    log_level: str
    log_format: str
    workers: str = "1"
    storage: str | None = None
    node_id: int | None = None
    objects: str | None = None
    allows_async_storage: bool = False


def configure(flags: Flags) -> BrokerConfig:
    """Return the configuration of file and flags. Prints warnings."""
    given: list[Given] = []
    if flags.config_file is not None:
        given += read_properties(Path(flags.config_file))
    # In this order: the last value of a name wins, so flags win over the file.
    given += read_assignments(flags.assignments)
    if flags.listen is not None:
        # For its mistakes only: the message then names the flag, and not the setting it stands for.
        parse_address(flags.listen, "--listen")
        given.append(Given("listeners", f"PLAINTEXT://{flags.listen}", "--listen"))
    if flags.data_dir is not None:
        given.append(Given("log.dirs", flags.data_dir, "--data-dir"))
    if flags.storage is not None:
        if not flags.storage:
            # A variable of a script that is not set: a broker of its own is not what was meant.
            raise ConfigError(
                "--storage is empty: postgresql://USER@HOST:PORT/DATABASE is expected"
            )
        given.append(Given("cluster.storage", flags.storage, "--storage"))
    if flags.objects is not None:
        given.append(Given("cluster.objects", flags.objects, "--objects"))
    if flags.allows_async_storage:
        given.append(Given("cluster.allow.async.storage", "true", "--allow-async-storage"))
    if flags.node_id is not None:
        given.append(Given("node.id", str(flags.node_id), "--node-id"))
    loaded = load(given)
    # Printed, not logged: a log at level error would hide that a setting has no effect.
    for warning in loaded.warnings:
        print(f"magnetar: warning: {warning}", file=sys.stderr)
    return loaded.config


def check_without_storage(flags: Flags, config: ClusterConfig) -> None:
    """Raise ConfigError for what only a cluster has; it names the flag, or the setting."""
    if config.cluster_objects:
        name = "cluster.objects" if flags.objects is None else "--objects"
        raise ConfigError(
            f"{name} needs cluster.storage (--storage): a bucket has the older batches of a cluster"
        )
    if config.cluster_allow_async_storage:
        name = "cluster.allow.async.storage"
        if flags.allows_async_storage:
            name = "--allow-async-storage"
        raise ConfigError(f"{name} is about the database that cluster.storage (--storage) names")


def worker_count(text: str) -> int:
    """Return how many nodes `--workers` asks for: a number, or `auto` for one a core."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), WORKERS_MAX)
    if not text.isdecimal() or not 1 <= int(text) <= WORKERS_MAX:
        raise ConfigError(f"--workers {text}: give auto, or a number from 1 to {WORKERS_MAX}")
    return int(text)
