"""docs/configuration.md, written from the tables: `python -m magnetar.config.document`."""

from __future__ import annotations

from collections.abc import Collection

from magnetar.config.broker import BrokerConfig
from magnetar.config.client_metrics import ClientMetricsConfig
from magnetar.config.dynamic import DYNAMIC
from magnetar.config.group import GroupConfig
from magnetar.config.inert import OBSOLETE, inert_settings
from magnetar.config.setting import Config, Setting
from magnetar.config.topic import TopicConfig

_INTRODUCTION = """# Configuration

Written by `python -m magnetar.config.document` from the tables in `magnetar/config`; not edited by
hand.

Settings have Kafka's names, types, defaults and bounds, but where this says otherwise. They are
given to `magnetar serve` in a file (`--config server.properties`, in the syntax of Java's
properties) and by `--set name=value`; flags win over the file, the last of a name over the first.
`--listen HOST:PORT` stands for `listeners`, `--data-dir DIR` for `log.dirs`. A bad value ends the
start with exit code 2 and a message that names the place, the rule and the way out. An unknown name
is a warning with the closest known one.

*Shown* marks settings that are checked, stored and told to clients, and not acted on. *Dynamic*
marks those of the broker that can be changed while it runs (KIP-226), for one broker or for all of
a cluster: `magnetar configs set --broker 1 log.retention.ms=86400000`, or Kafka's tools. What was
set so wins over file and flags, and is kept over a restart.
"""


def document() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION, "## Broker\n", *_table(BrokerConfig, DYNAMIC)]
    lines += [
        "\n## Topics\n",
        "A topic's own settings are given when it is created, and changed at any time. What it does"
        " not set it takes from the broker.\n",
        *_table(TopicConfig),
        "\n## Groups\n",
        "A group's own settings are changed while it runs, or before it exists. What it does not"
        " set it takes from the broker.\n",
        *_table(GroupConfig),
        "\n## Client metrics\n",
        "Subscriptions to the metrics of clients (KIP-714): metrics.md says how.\n",
        *_table(ClientMetricsConfig),
        "\n## Names of Kafka without effect\n",
        "Accepted, checked for their type, stored and shown, without effect. They may stay in a"
        " file; each is a warning that says why.\n",
        "| Name | Type | Default | Why |",
        "|---|---|---|---|",
    ]
    for name, inert in sorted(inert_settings().items()):
        kind, default = inert.type.name.lower(), _default(inert)
        lines.append(f"| `{name}` | {kind} | {default} | {inert.reason} |")
    lines += [f"| `{name}` | | | {reason} |" for name, reason in sorted(OBSOLETE.items())]
    return "\n".join(lines) + "\n"


def _table(table: type[Config], dynamic: Collection[str] = ()) -> list[str]:
    lines = ["| Name | Type | Default | Since | What it does |", "|---|---|---|---|---|"]
    for name, setting in sorted(table.settings.items()):
        lines.append(
            f"| `{name}` | {setting.type.name.lower()} | {_default(setting)} | {setting.since}"
            f" | {'*Dynamic.* ' if name in dynamic else ''}{_meaning(setting)} |"
        )
    return lines


def _default(setting: Setting[object]) -> str:
    text = setting.render(setting.default)
    return f"`{text}`" if text else "none"


def _meaning(setting: Setting[object]) -> str:
    shown = "" if setting.acts else "*Shown.* "
    synonyms = ", ".join(f"`{synonym}`" for synonym in setting.synonyms)
    return f"{shown}{setting.doc}" + (f" Default from {synonyms}." if synonyms else "")


if __name__ == "__main__":
    print(document(), end="")
