"""Checks that a server's URL holds no secret: it is written into logs, recipes and artifacts."""

KINDS = ("user or password", "query", "fragment")


def without_secrets(url: str, remedy: str) -> str:
    """Return the URL unchanged. Raises ValueError if it holds a user, a password, a query or a fragment.

    Searches the text instead of parsing it: a parser's error message would quote the URL.

    Args:
        remedy: How to pass a secret to this server, if it takes one.
    """
    after = url.partition("://")[2] or url
    authority = after.replace("\\", "/").partition("/")[0].partition("?")[0].partition("#")[0]
    found = [kind for kind, is_in in zip(KINDS, ("@" in authority, "?" in after, "#" in after), strict=True) if is_in]
    if found:
        forbidden = f"{', '.join(KINDS[:-1])} or {KINDS[-1]}"
        raise ValueError(f"a URL is written into logs and artifacts and must not hold a {forbidden}; {remedy}")
    return url
