"""docs/supported_apis.md and the headers of handlers: they say what is served."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from magnetar.apis.document import NOT_SERVED, document, header, versions
from magnetar.apis.registry import Api, load_apis
from wire.api import API_NAMES


def test_the_page_is_that_of_the_handlers() -> None:
    page = Path(__file__).parents[3] / "docs" / "supported_apis.md"
    assert page.read_text() == document(), "run python -m magnetar.apis.document"


def test_every_api_is_served_or_said_not_to_be() -> None:
    served = {api.name for api in load_apis().values()}
    assert served | NOT_SERVED.keys() == set(API_NAMES.values())
    assert not served & NOT_SERVED.keys()


@pytest.mark.parametrize("api", load_apis().values(), ids=lambda api: api.name)
def test_a_handlers_header_names_its_api_and_versions(api: Api) -> None:
    assert header(api).startswith(f"{api.name} (API key {api.key}): ")
    assert re.search(rf"^Versions? {versions(api)}\.", header(api), re.MULTILINE)
