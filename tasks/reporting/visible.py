"""Escapes invisible characters in untrusted text.

In: any text. Out: text that is safe to print on terminals and pages.
"""


def visible(text: str) -> str:
    """The text with non-printable characters escaped, such as \\x07 or \\u200b; line ends are kept."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def one_line(text: str) -> str:
    """The text on one line: white space becomes single spaces."""
    return visible(" ".join(text.split()))
