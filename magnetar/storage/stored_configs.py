"""Configs of groups and client metrics subscriptions: kept in the catalog, by type and name."""

from __future__ import annotations

from collections.abc import Mapping

from magnetar.storage.catalog import Catalog
from magnetar.storage.differences import difference
from magnetar.storage.kept_names import check_length
from wire.error_code import ErrorCode
from wire.errors import KafkaError

#: Most resources that have configs: all of them are held in memory.
RESOURCES_MAX = 10_000


class StoredConfigs:
    """The texts of every resource that is neither a topic nor the broker."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._texts = catalog.resource_configs()
        #: Rises with every change.
        self.version = 0

    def reload(self, *only: tuple[int, str]) -> None:
        """Read resources again, by type and name, or all of them: another node may have changed
        them."""
        stored = self._catalog.resource_configs(*only)
        for each in only or [*self._texts]:
            self._texts.pop(each, None)
        self._texts.update(stored)
        self.version += 1

    def texts(self, resource_type: int, name: str) -> dict[str, str]:
        """Return the resource's own configs; none for an unknown resource."""
        return dict(self._texts.get((resource_type, name), {}))

    def names(self, resource_type: int) -> list[str]:
        """Return the names of the resources of a type that have configs, sorted."""
        return sorted(name for kind, name in self._texts if kind == resource_type)

    def check_room(self, resource_type: int, name: str) -> None:
        """Raise POLICY_VIOLATION where the resource would be one too many, or its name is too
        long."""
        if (resource_type, name) in self._texts:
            return
        check_length(name)
        if len(self._texts) >= RESOURCES_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"{RESOURCES_MAX} resources have configs of their own, no more can.",
            )

    def replace(self, resource_type: int, name: str, texts: Mapping[str, str]) -> None:
        """Replace the configs of a resource, durably; without any it is forgotten."""
        # The catalog first: memory never says what the disk might not have.
        changes = difference(self.texts(resource_type, name), texts)
        self._catalog.set_resource_configs(resource_type, name, changes)
        self.version += 1
        # A resource without configs does not count towards the limit.
        if texts:
            self._texts[resource_type, name] = dict(texts)
        else:
            self._texts.pop((resource_type, name), None)
