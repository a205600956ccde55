"""pytest fixtures: `pytest_plugins = ["magnetar.testing.fixtures"]` in a conftest.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.testing.process import BrokerProcess


@pytest.fixture(scope="session")
def magnetar_settings() -> dict[str, str]:
    """Return no settings for `magnetar_broker`. Override it with settings by Kafka's names."""
    return {}


@pytest.fixture(scope="session")
def magnetar_broker(
    tmp_path_factory: pytest.TempPathFactory, magnetar_settings: dict[str, str]
) -> Iterator[BrokerProcess]:
    """Yield a running broker that all tests of the session share: use topic names of your own."""
    with BrokerProcess(tmp_path_factory.mktemp("magnetar"), magnetar_settings) as broker:
        yield broker
