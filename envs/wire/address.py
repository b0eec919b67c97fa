"""Addresses of servers, which stand in logs, recipes and artifacts: they hold no secret.

In: a URL from a recipe or a command line. Out: the same URL, or a ValueError that does not repeat it.
"""

KINDS = ("user or password", "query", "fragment")


def without_secrets(url: str, remedy: str) -> str:
    """The URL as it is. Raises ValueError where it holds a user, a password, a query or a fragment.

    Read off the text, not off a parser: what no parser takes as a URL is refused by a message that quotes it.

    Args:
        remedy: How this server is given a secret, if it takes one.
    """
    after = url.partition("://")[2] or url
    authority = after.replace("\\", "/").partition("/")[0].partition("?")[0].partition("#")[0]
    found = [kind for kind, is_in in zip(KINDS, ("@" in authority, "?" in after, "#" in after), strict=True) if is_in]
    if found:
        raise ValueError(f"an address is written into logs and artifacts: no {' or '.join(KINDS)} in it; {remedy}")
    return url
