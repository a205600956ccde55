"""Every target by its name."""

from __future__ import annotations

from tools.fuzz import (
    batches,
    files,
    journal,
    logins,
    messages,
    peers,
    requests,
    stored_records,
    texts,
    tokens,
)
from tools.fuzz.target import Target

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET
    for module in (
        requests,
        messages,
        batches,
        journal,
        files,
        stored_records,
        texts,
        logins,
        peers,
        tokens,
    )
}
