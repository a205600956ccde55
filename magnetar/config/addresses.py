"""IP addresses: one text for each, in place of the several that settings, rules and sockets have.

Java writes `0:0:0:0:0:0:0:1` for `::1`, and Kafka's ACLs are compared with that. A socket that
accepts both kinds of addresses names a client `::ffff:10.0.0.1` that all else calls 10.0.0.1.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv6Address, ip_address


@lru_cache(maxsize=4096)
def plain_address(text: str) -> str:
    """Return the one text of an address. What is no address stays as it is."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)
