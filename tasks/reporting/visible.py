"""Escapes invisible characters in untrusted text."""


def visible(text: str) -> str:
    """The text with non-printable characters escaped, such as \\x07 or \\u200b; line ends are kept."""
    return "".join(c if c.isprintable() or c == "\n" else _written_out(c) for c in text)


def one_line(text: str) -> str:
    """The text on one line: white space becomes single spaces."""
    return visible(" ".join(text.split()))


def _written_out(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
