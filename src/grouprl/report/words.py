"""Numbers as people say them."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "held-out problem"), counted(1000, "step")
    ('1 held-out problem', '1,000 steps')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them.

    >>> duration(98.4), duration(754), duration(11520)
    ('98 s', '12 min 34 s', '3 h 12 min')
    """
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 2:
        return f"{round(seconds)} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
