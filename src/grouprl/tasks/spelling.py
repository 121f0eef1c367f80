r"""One spelling for final answers without units, so that `\dfrac12`, `{1}/2`, `18\,\text{dollars}` compare as meant."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

Unit = frozenset[tuple[str, int]]
"""The powers of the units that it is a product of, by their names."""

# Each unit: its names, in any case and without the plural's s | its abbreviations, as they are spelled. Multiples of
# other units (decade, dozen, score) are not here, nor the abbreviations i, e, k, K, M, B, A, C, d: a value, a
# multiplier, a digit or a choice.
_TABLE = """
meter metre|m; kilometer kilometre|km kms Km KM; centimeter centimetre|cm cms CM; millimeter millimetre|mm; decimeter|dm
micrometer micron|; nanometer|nm; inch inche|in; foot feet|ft; yard|yd yds; mile|mi; acre; hectare|ha; liter litre|l L
milliliter millilitre|ml mL cc; deciliter|dL; centiliter|cL; gallon|gal gals; quart|qt qts; pint|pt pts; cup; ounce|oz
tablespoon|tbsp; teaspoon|tsp; gram gramme|g; kilogram kilogramme|kg kgs Kg KG; milligram|mg; microgram|mcg
ton; tonne; pound|lb lbs GBP; second|s sec secs; millisecond|ms; nanosecond|ns; minute|min mins; hour|h hr hrs; day
week|wk wks; month|mo mos mths; year|yr yrs; degree|deg; percent; unit; celsius; fahrenheit; radian|rad; dollar|USD
cent; euro|EUR; penny pence; rupee|INR Rs; yuan|CNY RMB; yen|JPY; peso; franc|CHF; newton|N; kilonewton|kN; joule|J
kilojoule|kJ; watt|W; kilowatt|kW; megawatt|MW; kilowatthour|kWh; volt|V; kilovolt|kV; ampere amp|; milliampere|mA
ohm; hertz|Hz; kilohertz|kHz; megahertz|MHz; gigahertz|GHz; pascal|Pa; kilopascal|kPa; atmosphere|atm; psi; kelvin
mole|mol; calorie|cal; kilocalorie|kcal; electronvolt|eV; rpm; knot; mile/hour mph|; kilometer/hour kph kmph|kmh
bit; byte; kilobyte|kB KB; megabyte|MB; gigabyte|GB; terabyte|TB; kibibyte|KiB; mebibyte|MiB; gibibyte|GiB
bit/second|bps; megabit/second|Mbps; gigabit/second|Gbps; pixel|px; fluidounce fluidoz
"""
# The same in Chinese; 个 and other words of counting are "unit". Not 万, 倍, 双, 对 and 打, which multiply.
_CHINESE = """
meter 米 公尺; kilometer 千米 公里; centimeter 厘米 公分; millimeter 毫米; decimeter 分米; hectare 公顷; mu 亩
liter 升 公升; milliliter 毫升; gram 克; kilogram 千克 公斤; milligram 毫克; jin 斤; tonne 吨; second 秒; day 天 日
minute 分钟 分鐘; hour 小时 个小时 小時 個小時; week 周 星期 个星期; month 月 个月; year 年 岁 歲; degree 度
yuan 元 块钱 人民币; dollar 美元; euro 欧元; yen 日元; jiao 角; fen 分; watt 瓦; kilowatt 千瓦
unit 个 個 只 人 名 位 本 支 枝 张 件 条 辆 棵 朵 头 匹 盒 箱 袋 瓶 次 种 页 题
"""
_ENTRIES = [entry.strip().partition("|") for entry in re.split("[;\n]", _TABLE.strip())]
_WORDS = {name: names.split()[0] for names, _, _ in _ENTRIES for name in names.split()}
_WORDS |= {word: names.split()[0] for names in re.split("[;\n]", _CHINESE.strip()) for word in names.split()[1:]}
_SYMBOLS = {short: names.split()[0] for names, _, shorts in _ENTRIES for short in shorts.split()}
_SIGNS = {"\\$": "dollar", "€": "euro", "£": "pound", "¢": "cent", "₹": "rupee"}
_VAGUE = frozenset({"degree", "percent", "unit"})  # written or left out, whatever else is measured
_COUNTED = frozenset({"people", "persons", "men", "women", "children"})
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3, "squared": 2, "cubed": 3}
# Two letters that stand at a number without a space and are hardly ever factors.
_CLOSE = re.compile("[A-Za-z]{3}|[\u4e00-\u9fff]|kg|[kcm]m|cc|lb|oz|k[WNJV]|Hz|[kKMGT]B|m[lL]")
_PIECE = re.compile(r"/|\^\{?-?[0-9]\}?|[^\s/^]+")
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
_FRACTIONS = {  # 1/2 is written 1\u20442 in its compatibility form
    sign: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", sign).split("\u2044"))
    for sign in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
}
_VULGAR = re.compile(f"([0-9]* ?)([{''.join(_FRACTIONS)}])(?![0-9{''.join(_FRACTIONS)}])")
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)} | {0x66A: "%", 0x66B: ".", 0x66C: ","}
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
    **dict.fromkeys(
        ("$", "\\$", "€", "£", "¥", "¢", "₹", "\\(", "\\)", "\\[", "\\]", "%", "\\%", "\n", "\t", "\r"), " "
    ),
}
_ARGUMENTS = {"\\frac": 2, "\\binom": 2, "\\sqrt": 1, "\\mathbb": 1, "^": 1, "_": 1}
_GAP = "\u00a0"  # a space in \text{}, which parts words and numbers
_THIN = re.compile(r"(?<![0-9.,\\])[0-9]{1,3}(?:(?:\\,|\\thinspace ?)[0-9]{3})+(?![0-9])")
_UNITS = re.compile(
    r"(?<=[0-9A-Za-z)}|\]])(?: ?(?:/ ?|\\cdot ?)?\\text\{[^{}]{1,60}\}(?:\^\{-?[0-9]\})?){1,4}(?= ?(?:$|[,;)\]]|\\\}))"
)
_DEGREES = re.compile(r"(?<=[0-9})]) ?\^\{\\circ\} ?(?:\\text\{\s?([CF])\s?\}|([CF]))?$")
_PLAIN_UNITS = re.compile(
    r"(?<=[0-9}]) ?(?=[A-Za-z\u4e00-\u9fff])(?:[A-Za-z\u4e00-\u9fff ./]|\^\{-?[0-9]\}|\\cdot){1,60}$"
)
_MONEY_FIRST = re.compile(r"(?:\\text\{)?(USD|EUR|GBP|INR|CNY|RMB|JPY|CHF|Rs\.?)[ \u00a0]?\}? ?(?=[-0-9.])")
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_STOP = re.compile(r"(?<!\.)\.(?: \.)? *$")
_IDLE = re.compile(
    r"(?<![0-9A-Za-z,]) +| +(?![0-9A-Za-z])|(?<![0-9]), +|(?<=,) +(?![0-9]{3}(?![0-9]))"
    r"|(?<=[0-9]) +(?=[A-Za-z](?![A-Za-z]))"
)
_BEHIND_COMMAND = re.compile(r"(\\[A-Za-z]+) +(?![A-Za-z ])")


def unit_of(text: str, *, upright: bool) -> Unit | None:
    r"""The unit that text behind a number means, such as `cm`, `square feet`, `km/h`; None for other text.

    Two units are the same if this is equal; it is empty for `percent`, `degrees`, `units`, and for what is counted.

    `upright`: it stands in `\text{}` or the like. Only there single letters count, save in m/s, because `5 m` may be 5
    times m, and so does what is counted, one plural such as `apples`, unless it is itself a number (`dozens`).

    >>> unit_of("square feet", upright=False) == unit_of("ft^2", upright=False), unit_of("m", upright=False)
    (True, None)
    """
    text = _PERCENT.sub(" percent", text).replace(".", " ").replace("\\cdot", " ")
    for chinese, english in (("平方", " square "), ("立方", " cubic "), ("每", " per ")):
        text = text.replace(chinese, english)
    words = _PIECE.findall(re.sub(r"\bfl(?:uid)? +(?=oz\b|ounces?\b)", "fluid", text))
    if (
        not upright
        and all((len(word) == 1 and word.isascii()) or word[0] == "^" for word in words)
        and words[:3] != ["m", "/", "s"]
    ):
        return None
    powers: Counter[str] = Counter()
    sign, power, last = 1, 1, ""  # of the next unit; the one before, or none
    for word in words:
        lower = word.lower()
        name = _SYMBOLS.get(word) or _WORDS.get(lower) or _WORDS.get(lower.removesuffix("s"))
        if last and (word[0] == "^" or lower in ("squared", "cubed")):
            powers[last] += sign * ((_POWERS.get(lower) or int(word.strip("^{}"))) - 1)
        elif last and lower in ("/", "per", "a", "an"):
            sign, last = -1, ""
        elif lower in _POWERS and power == 1:
            power, last = _POWERS[lower], ""
        elif name:
            last, *below = name.split("/")
            powers.update({last: sign * power} | dict.fromkeys(below, -sign * power))
            power = 1
        else:
            is_plural = _PLURAL.fullmatch(lower) is not None and _NO_UNIT.fullmatch(lower) is None
            is_counted = upright and len(words) == 1 and (is_plural or lower in _COUNTED)
            return frozenset() if is_counted else None
    return frozenset(pair for pair in powers.items() if pair[0] not in _VAGUE) if last else None


def same_letters(a: str, b: str) -> tuple[str, str] | None:
    r"""Two answers without their units, where a letter behind a number is the unit that the other answer names.

    >>> same_letters("5 m", r"5\text{ m}"), same_letters("5 m", "5 meters"), same_letters("5 m", "5")
    (('5', '5'), ('5', '5'), None)
    """
    (text, units), (other, others) = _parted(a, letters=True), _parted(b, letters=True)
    return (text, other) if units and units == others else None


def other_unit(a: str, b: str) -> bool:
    r"""Whether both answers have units, and not the same ones: 5 km and 5 m, but not 5 km and 5."""
    units = _parted(a)[1], _parted(b)[1]
    return all(units) and units[0] != units[1]


def without_units(text: str) -> str:
    r"""An answer in one spelling, without math signs, units and a full stop; what is left of `\text{}` stays in it.

    >>> without_units(r"\dfrac12\,\mathrm{cm}^2"), without_units(r"$5\text{ or }6$."), without_units("２½ kg")
    ('\\frac{1}{2}', '5\\text{\xa0or\xa0}6', '2\\frac{1}{2}')
    """
    return _parted(text)[0]


def _parted(text: str, *, letters: bool = False) -> tuple[str, set[Unit | None]]:
    """`without_units`, and its units, without those that may be left out; `letters`: a single one is a unit too."""
    units: set[Unit | None] = {frozenset({(name, 1)}) for sign, name in _SIGNS.items() if sign in text}

    def without_unit(match: re.Match[str], upright: bool = True) -> str:
        words = _TEXT.sub(r" \1 ", match[0])
        unit = unit_of(words, upright=upright or letters)
        if unit is None or not (upright or letters or match[0][0] == " " or _CLOSE.match(match[0])):
            return match[0]
        units.add(unit)
        return ""

    if not text.isascii():
        digits = (unicodedata.decimal(character, character) for character in text)
        text = _VULGAR.sub(_fraction, "".join(map(str, digits)).translate(_FULL_WIDTH))
    text = re.sub(r"\bUS(?=\\?\$)", "", text.translate(_CHARACTERS).replace("{,}", ","))
    text = re.sub(r"(?<=,)\\!\s*", "", text)
    text = _THIN.sub(lambda match: re.sub(r"[^0-9]", "", match[0]), text)
    spelled = _STOP.sub("", re.sub(" +", " ", "".join(_spelled(text))).strip())
    if money := _MONEY_FIRST.match(spelled):
        spelled = spelled[money.end() :]
        units.add(unit_of(money[1], upright=True))
    spelled = _UNITS.sub(without_unit, spelled).rstrip()
    if degrees := _DEGREES.search(spelled):
        spelled = spelled[: degrees.start()]
        units.add(unit_of({"C": "celsius", "F": "fahrenheit"}.get(degrees[1] or degrees[2], "degree"), upright=True))
    spelled = _PLAIN_UNITS.sub(lambda match: without_unit(match, upright=False), spelled)
    return _spaced(spelled), units - {frozenset()}


def _fraction(match: re.Match[str]) -> str:
    """A mixed number in LaTeX; as it is, and so no number, behind a decimal, a group of thousands or a factor."""
    before = match.string[: match.start()]
    if before.endswith(",") or re.search(r"[0-9A-Za-z.)}/\]][ ~]*$", before):
        return match[0]
    return match[1] + _FRACTIONS[match[2]]


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
            groups = missing > 0 or before == "}" or (before[:1] == "\\" and before[-1].isalpha())
            open_braces.append(("}" if groups else "", max(missing - 1, 0)))
            out += ["{"] if groups else []
            missing = 0
        elif token == "}":
            closing, missing = open_braces.pop() if open_braces else ("}", 0)
            out += [closing] if closing else []
        elif token not in ("", " "):
            single = missing > 0 and token[-1].isalnum() and token not in _ARGUMENTS
            out.append("{" + token + "}" if single else token)
            missing = missing - 1 if single else _ARGUMENTS.get(token.partition("[")[0].strip(), 0)
            depth += (token in ("(", "[", "\\{")) - (token in (")", "]", "\\}"))
    # A space parts a command and a letter behind it.
    return [
        token + " " if token[:1] == "\\" and token[-1].isalpha() and after[0].isalpha() else token
        for token, after in zip(out, [*out[1:], " "], strict=False)
    ]


def _spaced(text: str) -> str:
    """Text with spaces only where they part words, numbers or a command and a letter."""
    single = re.sub(r" +(?=[ ,])", "", _BEHIND_COMMAND.sub(r"\1", text))
    return _IDLE.sub(lambda match: "," if "," in match[0] else "", single).strip()
