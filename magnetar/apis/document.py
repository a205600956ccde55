"""docs/supported_apis.md, written from the handlers: `python -m magnetar.apis.document`."""

from __future__ import annotations

import re
import sys
from textwrap import fill

from magnetar.apis.registry import Api, load_apis
from wire.api import API_NAMES

_INTRODUCTION = """
`python -m magnetar.apis.document` writes this page from the declarations and the docstrings of the
handlers in `magnetar/apis`; it is not edited by hand. ApiVersions is built from the same
declarations.

Each API below is served in these versions and in no others. They are the versions of Apache Kafka
4.4.0, unless the API says otherwise.
"""

_NOT_SERVED_EITHER = """
Kafka's other APIs between brokers, and those of its controllers, are not served either: nodes have
messages of their own, and a catalog in place of the controllers. So UnregisterBroker,
UnregisterController, AddRaftVoter and RemoveRaftVoter are not.
"""

#: APIs that Kafka 4.4.0 lists for clients, and why they are not served.
NOT_SERVED: dict[str, str] = {
    "ShareGroupHeartbeat": "share groups are not served (KIP-932)",
    "ShareGroupDescribe": "share groups are not served (KIP-932)",
    "ShareFetch": "share groups are not served (KIP-932)",
    "ShareAcknowledge": "share groups are not served (KIP-932)",
    "DescribeShareGroupOffsets": "share groups are not served (KIP-932)",
    "AlterShareGroupOffsets": "share groups are not served (KIP-932)",
    "DeleteShareGroupOffsets": "share groups are not served (KIP-932)",
    "StreamsGroupHeartbeat": "streams groups are not served (KIP-1071)",
    "StreamsGroupDescribe": "streams groups are not served (KIP-1071)",
    "StreamsGroupTopologyDescriptionUpdate": "streams groups are not served (KIP-1071)",
}


def document() -> str:
    """Return the whole page."""
    apis = [api for _, api in sorted(load_apis().items())]
    lines = [
        "# Supported APIs\n",
        *_paragraphs(_INTRODUCTION),
        "| Key | API | Versions | KIPs | What it does |",
        "|---|---|---|---|---|",
    ]
    for api in apis:
        name, what = f"[{api.name}](#{api.name.lower()})", _title(api)
        lines.append(f"| {api.key} | {name} | {versions(api)} | {_kips(api)} | {what} |")
    lines += ["\n## Not served\n", "| Key | API | Why |", "|---|---|---|"]
    for key, name in sorted(API_NAMES.items()):
        if name in NOT_SERVED:
            lines.append(f"| {key} | {name} | {NOT_SERVED[name]} |")
    lines += ["", *_paragraphs(_NOT_SERVED_EITHER)]
    for api in apis:
        lines += [
            f"## {api.name}\n",
            f"API key {api.key}: {_title(api)}.\n",
            *_paragraphs(_description(api)),
        ]
    return "\n".join(lines).rstrip() + "\n"


def versions(api: Api) -> str:
    """Return the versions as docstrings of handlers write them: "3-13", or "0"."""
    if api.min_version == api.max_version:
        return str(api.min_version)
    return f"{api.min_version}-{api.max_version}"


def header(api: Api) -> str:
    """Return the docstring of the handler's module."""
    # The page is written from what a reader of the code sees, so the two cannot differ.
    text = sys.modules[api.handler.__module__].__doc__
    assert text is not None, f"{api.name} is not described"
    return text


def _title(api: Api) -> str:
    first = header(api).splitlines()[0].partition("): ")[2].rstrip(".")
    return re.sub(r" \(KIP-[^)]*\)$", "", first)


def _kips(api: Api) -> str:
    numbers = {int(number) for number in re.findall(r"KIP-(\d+)", header(api))}
    return ", ".join(f"KIP-{number}" for number in sorted(numbers))


def _description(api: Api) -> str:
    return header(api).partition("\n\n")[2]


def _paragraphs(text: str) -> list[str]:
    paragraphs = text.strip().split("\n\n")
    return [fill(" ".join(each.split()), 120, break_on_hyphens=False) + "\n" for each in paragraphs]


if __name__ == "__main__":
    print(document(), end="")
