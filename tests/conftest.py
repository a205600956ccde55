"""Settings of all tests: what is random is not judged by the speed of the machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.postgresql import postgres_server as postgres_server
from tests.postgresql import postgres_url as postgres_url

settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
