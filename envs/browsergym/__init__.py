"""BrowserGym: small web forms in a real browser, read as text."""
