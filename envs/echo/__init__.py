"""Echo: a text is given, and is to be said again."""
