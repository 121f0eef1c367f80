r"""One spelling for the LaTeX of final answers, so that `\dfrac12`, `{1}/2`, `18\,\text{dollars}` compare as meant."""

from __future__ import annotations

import re

from grouprl.tasks.units import is_unit

_UPRIGHT = "text|textrm|textnormal|textup|textit|textbf|textsf|mathrm|mathbf|mathit|mathsf|mbox|hbox|operatorname"
_TOKENS = re.compile(
    rf"\\(?:{_UPRIGHT})[ ~]*\{{[^{{}}]*\}}(?!\s*\()|\\sqrt\s*\[[^\[\]{{}}\\]*\]|\\[A-Za-z]+|\\.|(?<=[_^])-?[0-9]+|.",
    re.DOTALL,
)
_IN_TEXT = re.compile(r"\{,\}|\\[,;: ]|[~$\s]|\\!|\\quad")
_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\leq ", "≥": "\\geq "}
    | {"≠": "\\neq ", "∈": "\\in ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ", "°": "^{\\circ}", "²": "^{2}"}
    | {"³": "^{3}", "√": "\\sqrt ", "\u2009": "\\,", "\u202f": "\\,", "\u00a0": " "}
)
# "" = it prints nothing; " " = it prints a space, or a mark that is dropped.
_NAMES = {
    **dict.fromkeys(("\\dfrac", "\\tfrac", "\\cfrac"), "\\frac"),
    **dict.fromkeys(("\\dbinom", "\\tbinom"), "\\binom"),
    **dict.fromkeys(("\\ge", "\\geqslant", "\\geqq"), "\\geq"),
    **dict.fromkeys(("\\le", "\\leqslant", "\\leqq"), "\\leq"),
    "\\ne": "\\neq",
    "\\varnothing": "\\emptyset",
    "\\lt": "<",
    "\\gt": ">",
    "\\ast": "*",
    "\\colon": ":",
    "\\lbrace": "\\{",
    "\\rbrace": "\\}",
    "\\lbrack": "[",
    "\\rbrack": "]",
    "\\vert": "|",
    "\\degree": "^{\\circ}",
    "\\lvert": "|",
    "\\rvert": "|",
    "\\to": "\\rightarrow",
    "\\tg": "\\tan",
    "\\imath": "i",
    **dict.fromkeys(("\\left", "\\right", "\\big", "\\Big", "\\bigl", "\\bigr", "\\Bigl", "\\Bigr", "\\bigg"), ""),
    **dict.fromkeys(("\\displaystyle", "\\textstyle", "\\limits", "\\!"), ""),
    **dict.fromkeys(("\\,", "\\;", "\\:", "\\>", "\\ ", "~", "\\quad", "\\qquad", "\\thinspace", "\\enspace"), " "),
    **dict.fromkeys(("$", "\\$", "€", "£", "¥", "\\(", "\\)", "\\[", "\\]", "%", "\\%", "\n", "\t", "\r"), " "),
}
_ARGUMENTS = {"\\frac": 2, "\\binom": 2, "\\sqrt": 1, "\\mathbb": 1, "^": 1, "_": 1}
_GAP = "\u00a0"  # a space in \text{}, which parts words and numbers
_THIN = re.compile(r"(?<![0-9.,\\])[0-9]{1,3}(?:(?:\\,|\\thinspace ?)[0-9]{3})+(?![0-9])")
_UNITS = re.compile(
    r"(?<=[0-9A-Za-z)}|\]])(?: ?(?:/ ?|\\cdot ?)?\\text\{[^{}]{1,60}\}(?:\^\{-?[0-9]\})?){1,4}(?= ?(?:$|[,;)\]]|\\\}))"
)
_DEGREES = re.compile(r"(?<=[0-9})])\^\{\\circ\} ?(?:\\text\{\s?[CF]\s?\}|[CF])?$")
_PLAIN_UNITS = re.compile(r"(?<=[0-9}]) [A-Za-z][A-Za-z ./]{1,60}$")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_POWER = re.compile(r"\^\{?-?[0-9]\}?")
_STOP = re.compile(r"(?<!\.)\.(?: \.)? *$")
_IDLE = re.compile(
    r"(?<![0-9A-Za-z,]) +| +(?![0-9A-Za-z])|(?<![0-9]), +|(?<=,) +(?![0-9]{3}(?![0-9]))"
    r"|(?<=[0-9]) +(?=[A-Za-z](?![A-Za-z]))"
)
_BEHIND_COMMAND = re.compile(r"(\\[A-Za-z]+) +(?![A-Za-z ])")


def without_units(text: str) -> str:
    r"""An answer in one spelling, without math signs, units and a full stop; what is left of `\text{}` stays in it.

    >>> without_units(r"\dfrac12\,\mathrm{cm}^2"), without_units(r"$5\text{ or }6$.")
    ('\\frac{1}{2}', '5\\text{\xa0or\xa0}6')
    """
    text = text.translate(_CHARACTERS).replace("{,}", ",")
    text = re.sub(r"(?<=,)\\!\s*", "", text)
    text = _THIN.sub(lambda found: re.sub(r"[^0-9]", "", found[0]), text)
    spelled = _STOP.sub("", re.sub(" +", " ", "".join(_spelled(text))).strip())
    spelled = _UNITS.sub(_kept, spelled).rstrip()
    spelled = _DEGREES.sub("", spelled)
    if (found := _PLAIN_UNITS.search(spelled)) and is_unit(found[0], upright=False):
        spelled = spelled[: found.start()]
    return _spaced(spelled)


def bare_text(text: str) -> str:
    r"""`without_units` without `\text{}`: two answers in the same words or symbols give the same text.

    >>> bare_text(r"\text{no solution}"), bare_text("[0, 3)"), bare_text("52_8") == bare_text("52_{8}")
    ('no solution', '[0,3)', True)
    """
    return unwrapped(without_units(text))


def unwrapped(spelled: str) -> str:
    r"""Text of `without_units` with the content in place of each `\text{}`."""
    return _spaced(_STOP.sub("", _TEXT.sub(r"\1", spelled).replace(_GAP, " ")))


def _spelled(text: str) -> list[str]:
    r"""The tokens in one spelling: `\frac12` as `\frac{1}{2}`, x^2 as x^{2}; braces that group nothing are dropped."""
    out: list[str] = []
    open_braces: list[tuple[str, int]] = []  # how each is closed, and how many arguments follow it
    missing, depth = 0, 0
    for token in _TOKENS.findall(text):
        token = _NAMES.get(token, token)
        if token[:1] == "\\" and token[-1:] == "}" and len(token) > 2:
            gap = _GAP if out[-1:] == [" "] else ""  # the space before it
            token = "\\text{" + gap + _IN_TEXT.sub(_GAP, token[token.index("{") + 1 : -1]) + "}"
        before = out[-1] if out else ""
        if token == " " and before.startswith("\\text{"):
            out[-1] = before[:-1] + _GAP + "}"
        elif token == " " and not missing:
            # In brackets a comma ends a number; elsewhere 5, 100 are two numbers and 5,100 is one.
            out += [] if depth and before == "," else [" "]
        elif token == "{":
            kept = missing > 0 or before == "}" or (before[:1] == "\\" and before[-1].isalpha())
            open_braces.append(("}" if kept else "", max(missing - 1, 0)))
            out += ["{"] if kept else []
            missing = 0
        elif token == "}":
            closing, missing = open_braces.pop() if open_braces else ("}", 0)
            out += [closing] if closing else []
        elif token not in ("", " "):
            single = missing > 0 and token[-1].isalnum() and token not in _ARGUMENTS
            out.append("{" + token + "}" if single else token)
            missing = missing - 1 if single else _ARGUMENTS.get(token.partition("[")[0].strip(), 0)
            depth += (token in ("(", "[", "\\{")) - (token in (")", "]", "\\}"))
    return _apart(out)


def _apart(tokens: list[str]) -> list[str]:
    """Puts a space between a command and a letter behind it."""
    return [
        token + " " if token[:1] == "\\" and token[-1].isalpha() and after[0].isalpha() else token
        for token, after in zip(tokens, [*tokens[1:], " "], strict=False)
    ]


def _kept(found: re.Match[str]) -> str:
    r"""Text in `\text{}` behind a value: nothing where it is a unit."""
    words = _POWER.sub(" ", _TEXT.sub(r" \1 ", found[0]).replace("\\cdot", " "))
    return "" if is_unit(words, upright=True) else found[0]


def _spaced(text: str) -> str:
    """Text with spaces only where they part words, numbers or a command and a letter."""
    single = re.sub(r" +(?=[ ,])", "", _BEHIND_COMMAND.sub(r"\1", text))
    return _IDLE.sub(lambda found: "," if "," in found[0] else "", single).strip()
