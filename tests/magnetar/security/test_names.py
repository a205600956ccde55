"""Names of certificates as Java writes them, and the rules that map them."""

from __future__ import annotations

import re
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.name import _ASN1Type
from cryptography.x509.oid import NameOID

from magnetar.security.names import (
    NameRefused,
    certificate_name,
    java_name,
    mapped,
    parse_rules,
)
from magnetar.testing.certificates import COMMON_NAME, COUNTRY, EMAIL, ORGANIZATION, make, named


def of_kind(kind: _ASN1Type, oid: x509.ObjectIdentifier, value: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value, _type=kind)])


@pytest.mark.parametrize(
    ("name", "written"),
    [
        (named((COUNTRY, "DE"), (COMMON_NAME, "ada")), "CN=ada,C=DE"),
        (named((ORGANIZATION, 'a,b+"c"\\<>;')), r"O=a\,b\+\"c\"\\\<\>\;"),
        (named((COMMON_NAME, "  #x ")), r"CN=\ \ \#x\ "),
        (named((COMMON_NAME, "a=b#c d")), r"CN=a\=b\#c d"),
        (named((COMMON_NAME, "\rx\r")), "CN=\\\rx\\\r"),
        (named((COMMON_NAME, " ")), r"CN=\ "),
        (named((COMMON_NAME, "\x00a\x00")), r"CN=\00a\00"),
        (
            named((COMMON_NAME, "ada"), (EMAIL, "a@b.c")),
            "1.2.840.113549.1.9.1=#16056140622e63,CN=ada",
        ),
        (named((NameOID.DOMAIN_COMPONENT, "org"), (NameOID.USER_ID, "u")), "UID=u,DC=org"),
        # Parts of several attributes keep their order.
        (
            x509.Name(
                [
                    x509.RelativeDistinguishedName(named((ORGANIZATION, "o"))),
                    x509.RelativeDistinguishedName(named((COMMON_NAME, "b"), (COUNTRY, "DE"))),
                ]
            ),
            "CN=b+C=DE,O=o",
        ),
        # Kinds of strings: Java writes some as they lie in the certificate.
        (of_kind(_ASN1Type.BMPString, COMMON_NAME, "\u00e9"), "CN=\u00e9"),
        (of_kind(_ASN1Type.BMPString, EMAIL, "a"), "1.2.840.113549.1.9.1=#1e020061"),
        (of_kind(_ASN1Type.UniversalString, COMMON_NAME, "a"), "CN=#1c0400000061"),
        (of_kind(_ASN1Type.VisibleString, COMMON_NAME, "a"), "CN=#1a0161"),
    ],
)
def test_a_name_is_written_as_java_does(name: x509.Name, written: str) -> None:
    assert java_name(name) == written


def test_a_long_name_is_written_and_a_long_rule_is_read_in_time() -> None:
    # A certificate may have 100 KB, and a search that begins anew at each blank takes 10 s.
    blanks, begun_s = " " * 60_000, time.thread_time()
    assert java_name(named((ORGANIZATION, f"x{blanks}x"))) == f"O=x{blanks}x"
    with pytest.raises(ValueError, match="is no rule"):
        parse_rules(f"{blanks}x")
    assert time.thread_time() - begun_s < 1.0


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", "CN=Ada,OU=Eng"),
        ("RULE:^CN=(.*?),.*$/$1/", "Ada"),
        ("RULE:^CN=(.*?),.*$/$1/L", "ada"),
        ("RULE:^CN=(.*?),OU=(.*)$/$1@$2/U,DEFAULT", "ADA@ENG"),
        ("RULE:^OU=.*$/x/, RULE:^CN=(.*?),OU=Eng$/$1/L", "ada"),
        ("RULE:^OU=.*$/x/, DEFAULT", "CN=Ada,OU=Eng"),
        (r"RULE:^CN=(.*?),(X)?.*$/\$1\/$1$2\\/", r"$1/Ada\\"[:-1]),
        # As many digits as there are groups for.
        ("RULE:^(.)(.)(.)(.)(.)(.)(.)(.)(.)(.).*$/$10-$11/", "=-C1"),
        ("RULE:^CN=(.*?),.*$/$123/", "Ada23"),
        ("RULE:^CN=(?<name>.*?),.*$/${name}!/", "Ada!"),
        # Java replaces each match within the name, also the empty one at its end.
        ("RULE:CN=(.*?)(,.*)?/$1/", "Ada,OU=Eng"),
        ("RULE:.*/x/", "xx"),
        (" , RULE:^OU=.*$/x/,, DEFAULT,", "CN=Ada,OU=Eng"),
    ],
)
def test_the_first_rule_that_fits_the_whole_name_maps_it(rules: str, user: str) -> None:
    assert mapped("CN=Ada,OU=Eng", parse_rules(rules)) == user


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        # Version 2, not 3.
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x01"),
        # A string of bits, not UTF-8.
        (b"\x0c\x04\x00ada", b"\x03\x04\x00ada"),
    ],
)
def test_a_certificate_whose_name_cannot_be_read_is_refused(usual: bytes, odd: bytes) -> None:
    der = make(named((COMMON_NAME, "\x00ada"))).certificate.public_bytes(Encoding.DER)
    assert usual in der
    with pytest.raises(NameRefused):
        certificate_name(der.replace(usual, odd))


def test_a_name_that_no_message_can_carry_is_refused() -> None:
    rules = parse_rules("DEFAULT")
    assert len(mapped("CN=" + "x" * 32_764, rules)) == 32_767
    for too_long in ("x" * 32_765, "\u00e9" * 16_383):
        with pytest.raises(NameRefused, match="32768 bytes|32769 bytes"):
            mapped(f"CN={too_long}", rules)


def test_a_name_that_no_rule_fits_is_refused() -> None:
    with pytest.raises(NameRefused):
        mapped("CN=Ada", parse_rules("RULE:^OU=.*$/x/"))
    with pytest.raises(NameRefused):
        mapped("CN=Ada", parse_rules(""))


@pytest.mark.parametrize("rules", ["RULE:a", "RULE:(?=x)y/z/", "DEFAULT RULE:a/b/", "X"])
def test_a_mistake_in_the_rules_is_told(rules: str) -> None:
    with pytest.raises(ValueError, match="is no rule|RE2 refuses"):
        parse_rules(rules)


@pytest.mark.parametrize("characters", ["[a-z&&[^b]]", "[[a]b]", "[[:alpha:]]", r"[\&&&x]"])
def test_characters_that_java_reads_otherwise_are_refused(characters: str) -> None:
    with pytest.raises(ValueError, match="Java reads"):
        parse_rules(f"RULE:^CN=({characters}+)$/$1/")


@pytest.mark.parametrize(
    "pattern", [r"a&&b", r"[^&,]+", r"[a\[&]+", r"\Q[a&&b]\E", "[]a]", r"\[&&"]
)
def test_characters_that_both_read_alike_are_taken(pattern: str) -> None:
    assert len(parse_rules(f"RULE:^CN=({pattern})$/$1/")) == 1


@pytest.mark.parametrize(("replacement", "named"), [("$1$2", "2"), ("${n}", "{n}"), ("a$", "")])
def test_a_rule_that_names_a_group_that_its_pattern_lacks_is_refused_at_the_start(
    replacement: str, named: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"names ${named}, and has 1 groups: RULE")):
        parse_rules(f"RULE:^CN=(.*)$/{replacement}/")
