r"""One spelling for final answers without units, so that `\dfrac12`, `{1}/2`, `18\,\text{dollars}` compare as meant."""

from __future__ import annotations

import re

# Spelled out, without the plural's s, in any case. Multiples of other units (decade, dozen, score) are not here.
_UNIT_NAMES = """
    meter metre kilometer kilometre centimeter centimetre millimeter millimetre micrometer nanometer inch inche foot
    feet yard mile acre hectare liter litre milliliter millilitre gallon quart pint cup ounce tablespoon teaspoon gram
    kilogram milligram ton tonne pound second minute hour day week month year degree radian dollar cent euro penny
    pence rupee yuan yen peso newton joule kilojoule watt kilowatt volt ampere ohm hertz pascal kelvin mole calorie
    kilocalorie unit mph kph percent
"""
_WORDS = frozenset(_UNIT_NAMES.split())
# Abbreviations, as they are spelled. Without i, e, k, K, M, B, A, C, d: a value, a multiplier, a digit or a choice.
_SHORT = """
    m cm mm km dm nm g kg mg s ms sec min h hr hrs L l mL ml dL cL ft in yd mi lb lbs oz rad deg Hz kHz MHz N kN J kJ
    W kW V Pa kPa atm mol eV kmh kWh rpm cc gal qt pt USD EUR
"""
_SYMBOLS = frozenset(_SHORT.split())
_COUNTED = frozenset({"people", "persons", "men", "women", "children"})
_ORDER = {"square": "S", "cubic": "S", "sq": "S", "cu": "S", "squared": "Q", "cubed": "Q", "/": "P", "per": "P"}
_ORDER |= {"a": "P", "an": "P", "celsius": "Q", "fahrenheit": "Q"}
_PHRASE = re.compile(r"S?UQ?(?:P?S?UQ?)*")
_PLURAL = re.compile(r"[a-z]{2,}(?<![sui])s")
_PERCENT = re.compile(r"\\?%|per\scent(?!s)")
# Plurals that are a number, change one or compare it.
_NO_UNIT = re.compile(
    r"(?:one|two|three|four|five|sixe|seven|eight|nine|ten|eleven|twelve|zero|zeroe|\w+teen|\w*illion|\w*hundred"
    r"|\w*thousand|grand|myriad|lakh|crore|dozen|score|pair|couple|trio|double|triple|half|halve|third|quarter"
    r"|\w+th|time|fold|factor|multiple|square|cube|power|root|log|exponent|percentage|percent|negative|reciprocal|inverse|equal"
    r"|decade|centurie|decimal|remainder|bit|unknown|imaginarie|alway|sometime|(?:twen|thir|for|fif|six|seven|eigh|nine)"
    r"tie)s"
)

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


def is_unit(text: str, *, upright: bool) -> bool:
    r"""Whether text behind a number is a unit, such as `cm`, `square feet`, `miles per hour`, `dollars`.

    `upright`: it stands in `\text{}` or the like. Only there abbreviations count, because `5 cm` may be 5 times c
    times m, and so does what is counted, one plural such as `apples`, unless it is itself a number (`dozens`).
    """
    words = _PERCENT.sub(" percent", text).replace("/", " / ").replace(".", " ").split()
    kinds = "".join("U" if _is_named(word, upright) else _ORDER.get(word.lower(), "-") for word in words)
    if _PHRASE.fullmatch(kinds):
        return True
    counted = words[0].lower() if upright and len(words) == 1 else ""
    return counted in _COUNTED or (_PLURAL.fullmatch(counted) is not None and _NO_UNIT.fullmatch(counted) is None)


def _is_named(word: str, upright: bool) -> bool:
    return word.lower() in _WORDS or word.lower().removesuffix("s") in _WORDS or (upright and word in _SYMBOLS)


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
