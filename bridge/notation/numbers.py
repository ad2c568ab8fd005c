"""Whole numbers as users write them. Pure."""

_SHOWN = 50


def whole_number(text: str, low: int, high: int, what: str = "number") -> int:
    """`17`: no sign, no blanks, no digits of other scripts. Raises ValueError naming the value and the bounds."""
    # Python does not read numbers of thousands of digits.
    if len(text) <= _SHOWN and text.isascii() and text.isdecimal() and low <= int(text) <= high:
        return int(text)
    raise ValueError(f"not a {what}: {shown(text)} (expected {low} to {high})")


def shown(value: object) -> str:
    """A wrong value for a message: its beginning, if it is long."""
    return repr(value[:_SHOWN] if isinstance(value, str) else value)
