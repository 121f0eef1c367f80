r"""Compares mathematical answers by value, with math-verify. Needs the extra `math`.

The library accepts very much and passes it to sympy. So this module gives it one short text at a time, and only the
LaTeX of final answers: no sums, integrals, derivatives or named operators, and few expressions that are short to write
and endless to compute.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from grouprl.rewards.rules import Ids, Texts, Values, completion_text, gold_text
from grouprl.tasks.answers import equals_gold, final_text, gold_value, parse_value
from grouprl.tasks.spelling import bare_text, other_unit, unwrapped, without_units
from grouprl.types import UserError

LONGEST_FORMULA = 300  # characters
DEEPEST_FORMULA = 8  # levels of brackets; parsing time can double with each level

_ALLOWED = """
    frac sqrt binom pi infty cdot times div pm mp mathbb begin end cup cap setminus in emptyset leq geq neq log ln exp
    sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh circ alpha beta gamma delta epsilon varepsilon zeta eta
    theta kappa lambda mu nu xi rho sigma tau phi varphi chi psi omega Delta Omega
"""
_COMMANDS = frozenset(_ALLOWED.split())
_PIECES = re.compile(r"(?:\\[A-Za-z]+|\\[{}\\]|[-0-9A-Za-z+*/^_=<>()\[\]{}|.,;:!& ])*+")
_COMMAND = re.compile(r"(?<!\\)(?:\\\\)*\\([A-Za-z]+)")
_SMALL = r"(?:[0-9]{1,3}|[a-z])"
_CHEAP = re.compile(rf"(?<![0-9!.}}]){_SMALL}!(?!!)|\\binom ?\{{ ?{_SMALL} ?\}} ?\{{ ?{_SMALL} ?\}}")
_COMBINATORIAL = re.compile(r"!|\\binom")
_COSTLY_FORMS = (
    r"\^ ?[{(]? ?[-+]? ?[0-9]{5,}",  # an exponent of more than four digits
    r"\^ ?[{(][^{}()]*(?:!|[0-9)}\]] ?\^)",  # a factorial, or the power of a number, in an exponent
    r"[)}] ?\^ ?[{(]? ?[0-9]{3,}",  # a large power of a group
    r"[0-9]{65}",
    r"[0-9][eE][-+]?[0-9]",  # 1e9 would be read as 1 * e * 9
    r"[0-9] +[0-9]",  # 2 7 would be read as a mixed number
    r"\.[0-9]*\.",  # 1.000.000 would be read as 0
)
_COSTLY = re.compile("|".join(_COSTLY_FORMS))
_NAMES = re.compile(r"\\(?:begin|end)\{[a-z]*\}|\\(?!text(?![A-Za-z]))[A-Za-z]+")  # \text holds words
_OR = re.compile(r"\\text\{\s?(?:or|and)\s?\}")
_JOINT = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_INEQUALITY = re.compile(r"[<>]|\\[lg]eq")
# Words, a number with a base (the library reads over it), a clock time or a ratio of three (the library divides).
_WORDS = re.compile(
    r"\\text\{[^{}]*[A-Za-z]{2}|\\text\{[^{}]*\}$|[A-Za-z]{4,}|^(?:yes|no|odd)$|[0-9]_"
    r"|(?<![0-9])[0-9]{1,2}:[0-9]{2}(?![0-9])|:[^:]*:",
    re.I,
)
_NAME = re.compile(r"^(?:[A-Z]{2}|[A-Za-z](?:_\{[A-Za-z0-9]{1,3}\})?(?:\([A-Za-z0-9]{1,3}\))?)(?:=|\\in(?![a-z]) ?)")
_IMAGINARY = re.compile(r"(?<![A-Za-z\\])([A-Za-oq-z]?)i(?![A-Za-z])")
# Where terms with letters are compared: on both sides of 0, small and large, and no special values of anything.
_PLACES = ("0.3718", "-0.6129", "2.9173", "-3.3391", "13.7771", "-47.1137", "1234.5919", "-879.2343")
_DIGITS, _MANY_DIGITS = 40, 1000
_MOST_BITS = 100_000  # of an exact fraction


@dataclass(frozen=True)
class MathVerify:
    r"""1.0 when the final answer equals `answer` mathematically, else 0.0; None for a problem without an answer.

    `tasks.answers.final_text` finds the final answer: one box or one answer tag, never the best of several. It may be a
    number, a term with letters, a set, interval, point, matrix, equation or inequality. Several values ("5 or 6", a
    set, \pm) are right only if the gold answer has several too; equations are equal up to a constant factor; words,
    clock times, ratios of three, and numbers with a base such as `110_2`, are compared as text.

    Range: 0 or 1. Failure modes: an arithmetic expression counts as its value (`3 \cdot 4` for 12); numbers are exact,
    so 0.333 is not 1/3, while irrational numbers agree to 1000 digits; 50\% is 50; `(1, 2)` is a point and an open
    interval, and `1, 2` equals both; case is ignored in words; an answer that cannot be parsed, or that sympy gives up
    on, is wrong unless it repeats the gold answer. Some comparisons may not end: run it in a worker with limits. Raises
    ValueError for a gold answer that cannot be parsed, unless the answer repeats it.
    """

    def __post_init__(self) -> None:
        if find_spec("math_verify") is None:
            raise UserError(
                "reward math_verify: expected the package math-verify, got none: pip install 'grouprl[math]'"
            )

    def __call__(
        self, prompts: Texts, completions: Texts, completion_ids: Ids, *, answer: Sequence[Any], **columns: Any
    ) -> Values:
        """Returns 1.0, 0.0 or None for each completion."""
        return [
            None if gold is None else float(_means(final_text(completion_text(completion)), gold_text(gold)))
            for completion, gold in zip(completions, answer, strict=True)
        ]


def _means(answer: str | None, gold: str) -> bool:
    if answer is not None and answer.strip() == gold:
        return True
    kind: Any = gold_value(gold)  # a number, words in small letters, or an object of sympy
    cleaned = "" if isinstance(kind, Fraction) else _cleaned(without_units(gold))
    if kind is None:
        kind = _letters(gold) if _is_text(without_units(gold)) else _gold_tree(cleaned)
    if answer is None or not answer.strip() or len(answer) > LONGEST_FORMULA:
        return False
    if equals_gold(answer, gold):
        return True
    if isinstance(kind, str):
        return _letters(answer) == kind
    if isinstance(kind, Fraction) and parse_value(answer) is not None:
        return False  # two numbers that differ
    if other_unit(answer, gold):
        return False
    written = without_units(answer)
    if _is_text(written):
        return False
    joints = [set(_JOINT.findall(text)) for text in (answer, gold)]
    if all(joints) and joints[0] != joints[1] and _INEQUALITY.search(written):
        return False
    written, expected = _without_same_name(_cleaned(written), cleaned)
    tree = _tree(written)
    if tree is None:
        return False
    braces = "\\{" in (written[:2], expected[:2])
    return _same(_rational(kind) if isinstance(kind, Fraction) else _gold_tree(expected), tree, braces)


@lru_cache(maxsize=1024)
def _gold_tree(gold: str) -> Any:
    tree = _tree(gold)
    if tree is None:
        raise ValueError(f"expected a gold answer that math-verify reads, got {gold!r:.100}: use correct_answer for it")
    return tree


def _cleaned(spelled: str) -> str:
    """Text of `without_units` for the library, which reads `i` as the imaginary unit only where it stands alone."""
    return _IMAGINARY.sub(r"\1 i", unwrapped(_OR.sub(" or ", spelled))).strip()


def _is_text(spelled: str) -> bool:
    return _WORDS.search(_NAMES.sub(" ", _OR.sub(" ", spelled))) is not None


def _letters(text: str) -> str:
    bare = bare_text(text[:LONGEST_FORMULA]).casefold()
    return bare[1:-1] if re.fullmatch(r"\([^()]*\)", bare) else bare


def _without_same_name(answer: str, gold: str) -> tuple[str, str]:
    """Removes the name in `x = 5` and `x \\in [0, 1]`, unless the gold answer has another name."""
    name, expected = _NAME.match(answer), _NAME.match(gold)
    if name is None or answer.count("=") > 1 or gold.count("=") > 1:
        return answer, gold
    if expected and name[0].replace(" ", "") == expected[0].replace(" ", ""):
        return answer[name.end() :], gold[expected.end() :]
    return (answer, gold) if "=" in gold else (answer[name.end() :], gold)


def _tree(text: str) -> Any | None:
    """Parses a cleaned text to unevaluated sympy objects; None when it cannot be parsed."""
    depths = accumulate((letter in "([{") - (letter in ")]}") for letter in text)
    if not (
        0 < len(text) <= LONGEST_FORMULA
        and _PIECES.fullmatch(text) is not None
        and not _is_text(text)
        and _COMMANDS.issuperset(_COMMAND.findall(text))
        and max(depths) <= DEEPEST_FORMULA
        and _COSTLY.search(text) is None
        and _COMBINATORIAL.search(_CHEAP.sub("", text)) is None
    ):
        return None
    library, config = _library()
    # No search for LaTeX in the text, no further candidates, no signals (workers have their own limits).
    parsed = library.parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    sympy = import_module("sympy")
    tree = parsed[0] if parsed else None
    if not isinstance(tree, sympy.Basic | sympy.MatrixBase) or tree.has(sympy.Derivative, sympy.nan, sympy.zoo):
        return None
    # The library may have parsed only the last part of a chain of equations.
    is_chain = text.count("=") > 1 and not {",", ";"} & {*text}
    return None if is_chain and len(getattr(tree, "_unsorted_args", ())) < text.count("=") else tree


@cache
def _library() -> tuple[Any, list[Any]]:
    library = import_module("math_verify")
    normalization = import_module("latex2sympy2_extended").NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
    )
    # By default the library makes numbers with sympy.Number(text), which evaluates the digits as Python. Fractions
    # avoid this and are exact; for a float, sympy also evaluates text in its search for a closed form.
    reader: Any = import_module("latex2sympy2_extended.latex2sympy2")
    reader._Latex2Sympy.parse_number = lambda self, text: _number(text)
    reader.convert_number = _number
    exact = reader.ConversionConfig(lowercase_symbols=False)  # by default R is r, and Delta is delta
    parser: Any = import_module("math_verify.parser")
    parser.latex2sympy = partial(reader.latex2sympy, conversion_config=exact)
    # It takes numbers that differ by less than 5e-17 for equal, and expressions where `simplify` may not end.
    grader: Any = import_module("math_verify.grader")
    grader.sympy_numeric_eq = lambda gold, answer, *digits: _equal_parts(gold, answer)
    grader.sympy_symbolic_eq = lambda gold, answer: False
    grader.sympy_compare_symbols = _equal_parts
    grader.sympy_compare_relational = lambda gold, answer, *digits: _same_relations(gold, answer)
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of every run without its signals
    return library, [library.LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)]


def _number(text: str) -> Any:
    return _rational(Fraction(text.replace(",", "")))


def _rational(value: Fraction) -> Any:
    return import_module("sympy").Rational(value.numerator, value.denominator)


def _same(gold: Any, answer: Any, braces: bool) -> bool:
    """Whether two trees are equal; with `braces` one of them is a set written as such, which is no point."""
    sympy, grader = import_module("sympy"), import_module("math_verify.grader")
    if grader.is_relation(answer) and isinstance(gold, sympy.Interval | sympy.Union):
        sides = [link.args for link in getattr(answer, "_unsorted_args", [answer])]
        if not all(a.is_Symbol + b.is_Symbol == 1 and not (a.free_symbols and b.free_symbols) for a, b in sides):
            return False  # 1 < x < 2 is the interval, and x^2 < 4 may be the problem
        gold, answer = answer, gold  # the library solves inequalities of the gold answer alone
    if grader.is_relation(answer):
        return grader.is_relation(gold) and _same_relations(gold, answer)
    several, point = sympy.Set | sympy.Tuple, sympy.Interval | sympy.Tuple
    if isinstance(answer, several) and not isinstance(gold, several) and not grader.is_relation(gold):
        return False
    if braces and isinstance(gold, point) != isinstance(answer, point):
        return False
    parts = getattr(gold, "_unsorted_args", ()) if isinstance(gold, sympy.FiniteSet) else ()
    if len({part.lhs for part in parts if isinstance(part, sympy.Eq)}) == len(parts) > 1 and not answer.has(sympy.Eq):
        gold = sympy.Tuple(*(part.rhs for part in parts))  # values of x = 1, y = 2 are in its order
    library, _ = _library()
    return bool(library.verify(gold, answer, timeout_seconds=None, raise_on_error=True))


def _equal_parts(gold: Any, answer: Any) -> bool:
    """Whether two terms or matrices of terms are equal."""
    sympy = import_module("sympy")
    if isinstance(gold, sympy.MatrixBase) and isinstance(answer, sympy.MatrixBase):
        return gold.shape == answer.shape and all(map(_equal_terms, gold.flat(), answer.flat()))
    return isinstance(gold, sympy.Expr) and isinstance(answer, sympy.Expr) and _equal_terms(gold, answer)


def _equal_terms(gold: Any, answer: Any) -> bool:
    """Whether two terms are equal: exactly as fractions, else in their first 1000 digits at several places.

    A place where both are complex is outside of the domain, unless `i` occurs.
    """
    sympy = import_module("sympy")
    gold, answer = (
        term.xreplace({symbol: sympy.I for symbol in term.free_symbols if symbol.name == "i"})
        for term in (gold, answer)
    )
    if gold == answer:
        return True
    exact = _fraction(gold), _fraction(answer)
    if None not in exact:
        return bool(exact[0] == exact[1])
    if 0 in exact:
        return bool(sympy.simplify(gold - answer).is_zero)
    letters = sorted({symbol.name for symbol in gold.free_symbols | answer.free_symbols})
    compared = 0
    for number in range(len(_PLACES) if letters else 1):
        same = _equal_at(gold, answer, letters, number, _DIGITS)
        if same and compared < 2:
            same = _equal_at(gold, answer, letters, number, _MANY_DIGITS)
        if same is False:
            return False
        compared += same is True
    return compared > (2 if letters else 0)


def _equal_at(gold: Any, answer: Any, letters: Sequence[str], number: int, digits: int) -> bool | None:
    """Whether two terms agree in their first digits at a place; None outside of their domain."""
    sympy = import_module("sympy")
    places = {name: _number(_PLACES[(number + 3 * at) % 8] + str(ord(name[0]))) for at, name in enumerate(letters)}
    values = []
    for term in (gold, answer):
        value_by_symbol = {symbol: places[symbol.name] for symbol in term.free_symbols}
        values.append(term.evalf(digits + 10, subs=value_by_symbol, maxn=3 * digits))
    if not all(value.is_number and value.is_finite for value in values):
        return None
    if letters and not gold.has(sympy.I) and not answer.has(sympy.I) and not any(value.is_real for value in values):
        return None
    difference, size = abs(values[0] - values[1]), max(map(abs, values))
    return bool(difference <= size * sympy.Float(10) ** -digits)


def _fraction(term: Any) -> Fraction | None:
    """The exact value of a term of whole numbers with + - * / and whole exponents; None for others and long ones."""
    sympy = import_module("sympy")
    if isinstance(term, sympy.Rational):
        return Fraction(term.p, term.q)
    if not isinstance(term, sympy.Add | sympy.Mul | sympy.Pow | sympy.UnevaluatedExpr):
        return None
    first, *others = map(_fraction, term.args)
    if first is None or None in others:
        return None
    for other in others:
        assert other is not None
        size = max(first.numerator.bit_length(), first.denominator.bit_length())
        if isinstance(term, sympy.Pow):
            if other.denominator != 1 or size * abs(other) > _MOST_BITS or (first == 0 and other <= 0):
                return None
            first = first ** int(other)
        else:
            first = first + other if isinstance(term, sympy.Add) else first * other
    return first


def _same_relations(gold: Any, answer: Any) -> bool:
    """Compares chains such as 1 < x < 2 link by link, in both directions. The library compares solutions, so it takes
    any two equations without a solution as equal."""
    golds, answers = ([*getattr(chain, "_unsorted_args", [chain])] for chain in (gold, answer))
    orders = answers, answers[::-1]
    return len(golds) == len(answers) and any(all(map(_same_relation, golds, order)) for order in orders)


def _same_relation(gold: Any, answer: Any) -> bool:
    sympy = import_module("sympy")
    if not all(isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return False
    ratio = sympy.simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
    if not (ratio.is_number and ratio.is_finite and ratio.is_nonzero):
        return False
    same_way = gold.func is (answer.reversed if ratio.is_negative else answer).func
    return bool(same_way)
