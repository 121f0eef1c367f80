"""Units of measure behind a number: what may be dropped when two answers are compared."""

from __future__ import annotations

import re

# Spelled out, without the plural's s, in any case. Multiples of other units (decade, dozen, score) are not here.
_NAMES = """
    meter metre kilometer kilometre centimeter centimetre millimeter millimetre micrometer nanometer inch inche foot
    feet yard mile acre hectare liter litre milliliter millilitre gallon quart pint cup ounce tablespoon teaspoon gram
    kilogram milligram ton tonne pound second minute hour day week month year degree radian dollar cent euro penny
    pence rupee yuan yen peso newton joule kilojoule watt kilowatt volt ampere ohm hertz pascal kelvin mole calorie
    kilocalorie unit mph kph percent
"""
_WORDS = frozenset(_NAMES.split())
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
