"""Applies to this node what other nodes change in the shared catalog.

The catalog numbers its changes, and says what each change was about: a topic, a user, a table. The
watch remembers the number of the last change that it has read. It reads the later ones, and brings
this node's memory up to date with the catalog. The changes of this node itself are read again too,
which is harmless: memory and catalog are equal then. A peer that has changed the catalog tells this
node (`catch_up`). The watch also looks once a second, so a lost message costs one second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from uuid import UUID

from magnetar.runtime.background import Background
from magnetar.storage.acls import Acls
from magnetar.storage.broker_configs import BrokerConfigs
from magnetar.storage.catalog import Catalog
from magnetar.storage.catalog_rows import Change
from magnetar.storage.client_quotas import ClientQuotas
from magnetar.storage.delegation_tokens import DelegationTokens
from magnetar.storage.scram_credentials import ScramCredentials
from magnetar.storage.stored_configs import StoredConfigs
from magnetar.storage.topics import Topics
from wire.resource_type import ResourceType

#: The longest time until a change is seen if the peer's message was lost.
LOOK_AGAIN_S = 1.0
#: Things of a kind that one step reads by one statement: a few milliseconds.
_READ_TOGETHER = 64
#: Reading quotas of so many entities takes as long as reading all of them.
_QUOTAS_MAX = 100


class CatalogWatch:
    """Reads the catalog's changes and applies them."""

    def __init__(
        self,
        catalog: Catalog,
        version: int,
        topics: Topics,
        stored_configs: StoredConfigs,
        broker_configs: BrokerConfigs,
        client_quotas: ClientQuotas,
        acls: Acls | None,
        scram: ScramCredentials,
        tokens: DelegationTokens | None,
    ) -> None:
        """`version`: the last change that `topics` and the other parts have read already."""
        self.version = version
        self._catalog = catalog
        self._topics = topics
        self._stored_configs = stored_configs
        self._broker_configs = broker_configs
        self._client_quotas = client_quotas
        self._acls = acls
        self._scram = scram
        self._tokens = tokens
        #: Called when nodes have started or ended, before topics learn of that.
        self.on_nodes: Callable[[], None] = lambda: None
        self._applying = asyncio.Lock()
        self._background: Background | None = None

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Look for changes from now on. `fail` ends the node if a change cannot be applied."""
        self._background = Background(fail)
        self._background.start(self._look_periodically())

    def stop(self) -> None:
        """Look for no more changes."""
        if self._background is not None:
            self._background.cancel()

    async def catch_up(self) -> int:
        """Apply every change made so far; return the number of the last one."""
        async with self._applying:
            if self._catalog.changes.count() != self.version:
                version, changes, epochs = self._catalog.changes.since(self.version)
                found = self._everything() if changes is None else changes
                # First: a node that starts may be the former leader of a topic that has moved.
                await self._topics.refresh(
                    UUID(hex=each.name) for each in found if each.kind == "topic"
                )
                if any(each.kind == "node" for each in found):
                    self.on_nodes()
                    self._topics.see_nodes(epochs)
                for kind in ("configs", "acls", "tokens", "scram"):
                    for names in _parts([each.name for each in found if each.kind == kind]):
                        await self._apply(kind, names)
                        await asyncio.sleep(0)
                self._apply_quotas([each.name for each in found if each.kind == "quotas"])
                self.version = version
            return self.version

    async def _look_periodically(self) -> None:
        while True:
            await self.catch_up()
            await asyncio.sleep(LOOK_AGAIN_S)

    def _everything(self) -> list[Change]:
        """Return one change for everything that is, or was, in the catalog."""
        ids = {row.id for row in self._catalog.topics()}
        ids.update(topic.id for topic in self._topics.all())
        users = {row[0] for row in self._catalog.scram_credentials()}.union(self._scram.users())
        return [
            Change("node", ""),
            *(Change("topic", topic_id.hex) for topic_id in ids),
            Change("configs", ""),
            Change("quotas", ""),
            Change("acls", ""),
            Change("tokens", ""),
            *(Change("scram", user) for user in users),
        ]

    async def _apply(self, kind: str, names: Sequence[str]) -> None:
        """Apply what has changed of these things of a kind, all together; no names: of all."""
        match kind:
            case "configs":
                await self._apply_configs(names)
            case "acls" if self._acls is not None:
                self._acls.reload(*(tuple(json.loads(name)) for name in names))
            case "tokens" if self._tokens is not None:
                self._tokens.reload(*names)
            case "scram":
                self._scram.reload(*names)

    async def _apply_configs(self, names: Sequence[str]) -> None:
        """Apply configs of resources, as `Catalog.set_resource_configs` names them, or all."""
        divided = [name.partition(":") for name in names]
        self._stored_configs.reload(*((int(kind), name) for kind, _, name in divided))
        # What topics inherit is the broker's: to look at all of them takes long.
        if not names or any(int(kind) == ResourceType.BROKER for kind, _, _ in divided):
            self._broker_configs.reload()
            self._broker_configs.on_change()
            await self._topics.configs.inherit()

    def _apply_quotas(self, entities: Sequence[str]) -> None:
        """Apply what has changed of quotas; "" is all of them. Together: after each reload all
        quotas and connections are looked at."""
        if entities:
            are_few = len(entities) <= _QUOTAS_MAX and "" not in entities
            self._client_quotas.reload(*(entities if are_few else ()))


def _parts(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in parts that one step reads; one part without names, if one of them is "":
    all things of the kind."""
    if "" in names:
        yield ()
        return
    for first in range(0, len(names), _READ_TOGETHER):
        yield names[first : first + _READ_TOGETHER]
