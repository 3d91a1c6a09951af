"""What strings of a JSON schema's `format` look like, as patterns: no output fails a validator.

The compiler's own formats are looser than validators are (`025.60.60.60`, `9728-09-31`). A pattern
here is exact, or stricter where exactness has no pattern or no use:

- times end at 23:59:59, without the leap second that hardly any parser takes, have six decimals at
  most, and an offset, as RFC 3339 has them;
- years begin at 0001;
- host names, those of `idn-hostname` too, are ASCII, have four words at most between dots or
  hyphens before the last label, which begins with a letter;
- e-mail addresses have a domain, at most one dot before it, no quotes and no comments;
- durations have five digits at most to a number;
- URIs have a host, without a user, but for schemes known to do without; IRIs are URIs.

Sources: RFC 3339, 4122, 1123, 5322, 3986, 6570, 6901; JSON Schema 2020-12, validation, section 7;
names of UUID versions: pydantic.
"""

from typing import NamedTuple

_HEX = "[0-9a-fA-F]"
_WORD = "[A-Za-z0-9]"

_LEAP = "(0[48]|[2468][048]|[13579][26])"
_YEAR = "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    "|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|([0-9]{{2}}{_LEAP}|{_LEAP}00)-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?"
    r"(Z|[+\-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_COUNT = "[0-9]{1,5}"
_DAYS = f"({_COUNT}D|{_COUNT}M({_COUNT}D)?|{_COUNT}Y({_COUNT}M({_COUNT}D)?)?)"
_CLOCK = f"T({_COUNT}S|{_COUNT}M({_COUNT}S)?|{_COUNT}H({_COUNT}M({_COUNT}S)?)?)"
_DURATION = f"P({_DAYS}({_CLOCK})?|{_CLOCK}|{_COUNT}W)"

_OCTET = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(\.{_OCTET}){{3}}"
_GROUP = f"{_HEX}{{1,4}}"
_IPV6 = "({})".format(
    "|".join(
        (
            f"({_GROUP}:){{7}}{_GROUP}",
            f"({_GROUP}:){{1,7}}:",
            *(f"({_GROUP}:){{1,{7 - n}}}(:{_GROUP}){{1,{n}}}" for n in range(1, 7)),
            f":((:{_GROUP}){{1,7}}|:)",
            f"::([fF]{{4}}:)?{_IPV4}",
            f"({_GROUP}:){{6}}{_IPV4}",
        )
    )
)

# Words of letters and digits between hyphens or dots: even if all are one label, it has at most 63
# characters. Each character that is counted takes the compiler time, so that few are.
_WORDS = r"{word}{{1,{length}}}([.\-]{word}{{1,{length}}}){{0,{more}}}"
_LAST = f"[A-Za-z]{_WORD}{{0,14}}"
_LONG_WORDS = _WORDS.format(word=_WORD, length=20, more=2)
_MORE_WORDS = _WORDS.format(word=_WORD, length=15, more=3)
_DOMAIN = rf"({_LONG_WORDS}|{_MORE_WORDS})\.{_LAST}"
_HOSTNAME = f"({_DOMAIN}|{_LAST})"

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?_`{|}~^\-]{1,24}"
_EMAIL = rf"{_ATOM}(\.{_ATOM})?@{_DOMAIN}"

_PERCENT = f"%{_HEX}{{2}}"
_CHARS = r"A-Za-z0-9._~!$&'()*+,;=@\-"
_P = rf"([{_CHARS}:]|{_PERCENT})"
_PATH = f"(/{_P}*)*"
_TAIL = rf"(\?([{_CHARS}:/?]|{_PERCENT})*)?(#([{_CHARS}:/?]|{_PERCENT})*)?"
_PORT = "(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}))"
# No validator counts the characters of a host here.
_HOST = rf"(({_WORD}+[.\-])*[A-Za-z]{_WORD}*|{_IPV4})"
# Others, `file` above all, may not have a port.
_WITH_PORT = (
    "https?|wss?|ftps?|sftp|ssh|git|rtsp|ldaps?|amqps?|rediss?|mongodb|mysql|postgres|postgresql"
)
_URI = (
    rf"(({_WITH_PORT})://{_HOST}{_PORT}?{_PATH}{_TAIL}"
    rf"|[A-Za-z][A-Za-z0-9+.\-]{{1,19}}://{_HOST}{_PATH}{_TAIL}"
    rf"|file://(/{_P}*)+"
    rf"|(mailto|tel|sms|urn|doi|news|geo|data|about|cid|mid):{_P}+{_TAIL})"
)
_RELATIVE = rf"(/|/?([{_CHARS}]|{_PERCENT})+{_PATH})?{_TAIL}"

_POINTER = r"(/([^/~\"\\\x00-\x1f]|~[01])*)*"
_VARIABLE = rf"({_WORD}|_)(\.?({_WORD}|_))*(:[1-9][0-9]{{0,3}}|\*)?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}}"
_TEMPLATE = rf"([A-Za-z0-9._~!$&()*+,;=:@/?#\[\]\-]|{_PERCENT}|{_EXPRESSION})*"


def _uuid(version: str = _HEX, variant: str = _HEX) -> str:
    return f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-{variant}{_HEX}{{3}}-{_HEX}{{12}}"


class Format(NamedTuple):
    """A pattern without anchors, and how many characters its strings have; None: no limit."""

    pattern: str
    least: int
    most: int | None


# Unknown names are annotations, as JSON Schema has it.
FORMATS: dict[str, Format] = {
    "date": Format(_DATE, 10, 10),
    "time": Format(_TIME, 9, 21),
    "date-time": Format(f"{_DATE}T{_TIME}", 20, 32),
    "duration": Format(_DURATION, 3, 37),
    "ipv4": Format(_IPV4, 7, 15),
    "ipv6": Format(_IPV6, 2, 45),
    "ipvanyaddress": Format(f"({_IPV4}|{_IPV6})", 2, 45),
    "uuid": Format(_uuid(), 36, 36),
    **{f"uuid{n}": Format(_uuid(str(n), "[89abAB]"), 36, 36) for n in (1, 3, 4, 5, 6, 7, 8)},
    **dict.fromkeys(("hostname", "idn-hostname"), Format(_HOSTNAME, 1, 79)),
    **dict.fromkeys(("email", "idn-email"), Format(_EMAIL, 5, 129)),
    **dict.fromkeys(("uri", "iri"), Format(_URI, 5, None)),
    **dict.fromkeys(("uri-reference", "iri-reference"), Format(f"({_URI}|{_RELATIVE})", 0, None)),
    "uri-template": Format(_TEMPLATE, 0, None),
    "json-pointer": Format(_POINTER, 0, None),
    "relative-json-pointer": Format(f"(0|[1-9][0-9]{{0,8}})(#|{_POINTER})", 1, None),
}
REFUSED_FORMATS = ("regex",)
