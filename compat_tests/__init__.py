"""Real clients over TCP against a running broker: magnetar, and Apache Kafka as the reference.

The broker is started by its command line. Of magnetar nothing is imported but what users import,
`magnetar.spark` and `magnetar.testing`, and the data source where `sink_crashes` plays Spark.
"""

from pkgutil import iter_modules

import pytest

# A failed assertion of a helper says its values, as one of a test does.
pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
