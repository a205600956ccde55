"""What containers of brokers make of their settings; engines are in tools/packages."""

from __future__ import annotations

from magnetar.testing.containers import settings_of


def test_variables_of_kafkas_images_become_settings() -> None:
    environment = {
        "KAFKA_NUM_PARTITIONS": "3",
        "KAFKA_LISTENER_NAME_SASL__PLAIN_PLAIN_SASL_JAAS_CONFIG": "x",
        "KAFKA_A___B": "1",
        "PATH": "/bin",
        # For the scripts that start the JVM.
        "KAFKA_HEAP_OPTS": "-Xmx1g",
    }
    assert settings_of(environment) == {
        "num.partitions": "3",
        "listener.name.sasl_plain.plain.sasl.jaas.config": "x",
        "a-b": "1",
    }
