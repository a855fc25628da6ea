"""Text of others as it may be shown: nothing in it can forge a line, or change how others look. Pure.

All that ends in a log, a terminal, an event or a status goes through here: names and messages are tenants'
own in many places, and terminals obey control characters.
"""


def visible(text: object) -> str:
    """One line of text: what is no printable character becomes an escape of Python's.

    Line ends and tabs become blanks: a message is one paragraph.
    """
    shown = " ".join(str(text).split()) if not str(text).isprintable() else str(text)
    return escaped(shown)


def escaped(text: str) -> str:
    """The text with each character that is not printable as an escape of Python's, line ends included."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def in_json(text: str) -> str:
    """JSON that says the same, in printable characters only."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _json_escape(char) for char in text)


def _escape(char: str) -> str:
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(char: str) -> str:
    """A character as JSON writes it: those beyond 16 bits as two."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
