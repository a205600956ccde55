"""IP addresses: one text for each, in place of the several that settings, rules and sockets have.
Networks of such addresses, too.

Java writes `0:0:0:0:0:0:0:1` for `::1`, and Kafka's ACLs are compared with that. A socket that
accepts both kinds of addresses names a client `::ffff:10.0.0.1` that all else calls 10.0.0.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network


@lru_cache(maxsize=4096)
def plain_address(text: str) -> str:
    """Return the one text of an address. What is no address stays as it is."""
    try:
        address = ip_address(text)
    except ValueError:
        return text
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


@lru_cache(maxsize=4096)
def parse_network(text: str) -> IPv4Network | IPv6Network:
    """Return the network of a text such as 10.0.0.0/8. Raises ValueError."""
    _, _, prefix = text.partition("/")
    # A mask in the prefix's place is for Python alone, not for Kafka.
    if prefix.isascii() and prefix.isdecimal():
        # Bits of the address behind the prefix do not count.
        network = ip_network(text, strict=False)
        # Clients of such a network have addresses of version 4 (`plain_address`).
        if not (isinstance(network, IPv6Network) and network.network_address.ipv4_mapped):
            return network
    raise ValueError(f"{text!r} is no network")


def networks_around(address: str, prefix_lengths: Iterable[int]) -> list[str]:
    """Return the networks of these prefix lengths that an address is in, each in its one text:
    `str` of `parse_network`. What is no address is in none."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return []
    return [
        str(ip_network((parsed, length), strict=False))
        for length in prefix_lengths
        if length <= parsed.max_prefixlen
    ]
