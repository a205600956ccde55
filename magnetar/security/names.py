"""The principal of a client's certificate: its name as Java writes it, and the rules that map it.

Source: RFC 2253 as `X500Principal.getName` follows it; KIP-371 for `ssl.principal.mapping.rules`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar.config.java_patterns import read_otherwise
from wire.types import STRING_BYTES_MAX

if TYPE_CHECKING:
    from cryptography.x509 import Name, NameAttribute

#: Java's keywords. Any other type is written by its number, its value as hexadecimal DER.
_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
#: What Java escapes wherever it stands, and at either end.
_ESCAPED = re.compile(r'[,=+<>#;"\\]')
_ESCAPED_ENDS = re.compile(r"\A[ \r]+|(?<![ \r])[ \r]+\Z")
#: The kinds of strings that Java writes as text, by their tags: of UTF-8, printable, T61, IA5, BMP.
_TEXTS = frozenset({12, 19, 20, 22, 30})
#: How strings of other kinds than UTF-8 are encoded, by their tags: universal, BMP.
_ENCODINGS = {28: "utf-32-be", 30: "utf-16-be"}
_RULE = re.compile(
    r"\s*(?:(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/"
    r"(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*)?(?:,|$)"
)
#: As Java's replaceAll reads a replacement: a group by number or name, or a character after a
#: backslash.
_REPLACED = re.compile(r"\$(?:([0-9]+)|\{(\w+)\}|)|\\(.)", re.DOTALL)


class NameRefused(ValueError):
    """No rule maps the name of a certificate: its client is not let in."""


class MappingRule(NamedTuple):
    """One rule; `pattern` None is DEFAULT, which takes the whole name."""

    #: Compiled by RE2.
    pattern: Any | None
    #: Texts, and the numbers of groups that stand between them.
    replacement: Sequence[str | int]
    case: str


def certificate_name(der: bytes) -> str:
    """Return the subject of a certificate as Java prints it: `CN=ada,OU=eng`.

    Raises ValueError for one that OpenSSL believes and this library cannot read.
    """
    from cryptography.x509 import InvalidVersion, load_der_x509_certificate

    try:
        return java_name(load_der_x509_certificate(der).subject)
    # A certificate of version 2, and a name whose value is a string of bits.
    except (InvalidVersion, TypeError) as odd:
        raise NameRefused(str(odd)) from None


class CertificateNames(NamedTuple):
    """What a certificate calls its owner: as Java prints the subject, and in other ways."""

    subject: str
    alternatives: frozenset[str]


def certificate_names(chain: str) -> CertificateNames:
    """Return the names in the first certificate of a PEM text."""
    from cryptography.x509 import (
        ExtensionNotFound,
        SubjectAlternativeName,
        load_pem_x509_certificates,
    )

    certificate = load_pem_x509_certificates(chain.encode())[0]
    try:
        found = certificate.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        return CertificateNames(java_name(certificate.subject), frozenset())
    alternatives = frozenset(str(each.value) for each in found)
    return CertificateNames(java_name(certificate.subject), alternatives)


def java_name(name: Name) -> str:
    """Return a name in RFC 2253's form: the last part first."""
    return ",".join(
        "+".join(_written(attribute) for attribute in part) for part in reversed(name.rdns)
    )


def _written(attribute: NameAttribute[str | bytes]) -> str:
    oid, tag, value = attribute.oid.dotted_string, attribute._type.value, attribute.value
    keyword = _KEYWORDS.get(oid)
    if keyword is None or tag not in _TEXTS:
        data = value if isinstance(value, bytes) else value.encode(_ENCODINGS.get(tag, "utf-8"))
        return f"{keyword or oid}=#{_der(tag, data).hex()}"
    assert isinstance(value, str), "these kinds are texts"
    text = _ESCAPED.sub(r"\\\g<0>", value).replace("\0", r"\00")
    text = _ESCAPED_ENDS.sub(lambda blanks: "".join(f"\\{each}" for each in blanks[0]), text)
    return f"{keyword}={text}"


def _der(tag: int, value: bytes) -> bytes:
    length = len(value)
    if length < 128:
        return bytes((tag, length)) + value
    size = length.to_bytes((length.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(size))) + size + value


def parse_rules(text: str) -> list[MappingRule]:
    """Return the rules of `ssl.principal.mapping.rules`. Raises ValueError for a mistake.

    Without any rule no certificate is let in, as in Kafka.
    """
    # The import loads a native library, which few brokers ever need.
    import re2  # type: ignore[import-untyped]  # it has no stubs

    options = re2.Options()
    options.log_errors = False
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ValueError(f"is no rule from {text[position : position + 40]!r} on")
        position = found.end()
        if found["default"]:
            rules.append(MappingRule(None, (), ""))
        if found["pattern"] is None:
            # As in Kafka, nothing between two commas is no rule.
            continue
        if (characters := read_otherwise(found["pattern"])) is not None:
            raise ValueError(
                f"has the characters {characters!r}: Java reads [ or && within [] as a set of its"
                " own, RE2 does not"
            )
        try:
            pattern = re2.compile(found["pattern"], options=options)
        except re2.error as error:
            # Patterns that backtrack could hold the event loop; RE2 has none.
            raise ValueError(f"has a pattern that RE2 refuses: {error}") from None
        try:
            replacement = _parts(found["replacement"], pattern)
        except ValueError as mistake:
            raise ValueError(f"{mistake}: {found[0]}") from None
        rules.append(MappingRule(pattern, replacement, found["case"]))
    return rules


def _parts(replacement: str, pattern: Any) -> Sequence[str | int]:
    """Return a replacement as Java reads it. Raises ValueError for a group that there is not."""
    parts: list[str | int] = []
    end = 0
    for found in _REPLACED.finditer(replacement):
        number, name, literal = found.groups()
        parts.append(replacement[end : found.start()])
        end = found.end()
        if literal is not None:
            parts.append(literal)
        elif name is not None and name in pattern.groupindex:
            parts.append(pattern.groupindex[name])
        elif number is not None and int(number[0]) <= pattern.groups:
            # As many digits as name a group; those that follow are text.
            length = 1
            while length < len(number) and int(number[: length + 1]) <= pattern.groups:
                length += 1
            parts += [int(number[:length]), number[length:]]
        else:
            raise ValueError(f"names {found[0]}, and has {pattern.groups} groups")
    return [*parts, replacement[end:]]


def mapped(name: str, rules: Sequence[MappingRule]) -> str:
    """Return the user that the first fitting rule makes of a name. Raises NameRefused, also for
    one that no message can carry."""
    user = _mapped(name, rules)
    size_bytes = len(user.encode())
    if size_bytes > STRING_BYTES_MAX:
        raise NameRefused(f"a name of {size_bytes} bytes, at most {STRING_BYTES_MAX} are served")
    return user


def _mapped(name: str, rules: Sequence[MappingRule]) -> str:
    for pattern, replacement, case in rules:
        if pattern is None:
            return name
        if pattern.fullmatch(name) is not None:
            # As Kafka does: a pattern that fits less at its first match leaves the rest as it is.
            user: str = pattern.sub(partial(_replaced, replacement), name)
            return {"L": user.lower(), "U": user.upper()}.get(case, user)
    raise NameRefused(f"no rule of ssl.principal.mapping.rules fits {name}")


def _replaced(replacement: Sequence[str | int], found: Any) -> str:
    """Return what stands for a match: the texts, and what the groups have matched."""
    return "".join(part if isinstance(part, str) else found[part] or "" for part in replacement)
