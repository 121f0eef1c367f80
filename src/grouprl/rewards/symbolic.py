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
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate
from typing import Any

from grouprl.rewards.rules import Ids, Texts, Values, completion_text, gold_text
from grouprl.tasks.answers import final_text, parse_value, same_value
from grouprl.types import UserError

LONGEST_FORMULA = 300  # characters
DEEPEST_FORMULA = 8  # levels of brackets; parsing time can double with each level

_ALLOWED = """
    frac dfrac tfrac sqrt binom pi infty cdot times div pm mp left right text textbf mathrm mathbf mathbb begin end
    cup cap setminus in emptyset varnothing le leq ge geq lt gt ne neq log ln exp sin cos tan cot sec csc arcsin arccos
    arctan sinh cosh tanh circ quad alpha beta gamma delta epsilon varepsilon zeta eta theta kappa lambda mu nu xi rho
    sigma tau phi varphi chi psi omega Delta Omega
"""
_COMMANDS = frozenset(_ALLOWED.split())
_PIECES = re.compile(r"(?:\\[A-Za-z]+|\\[{},;: \\]|[-0-9A-Za-z+*/^_=<>()\[\]{}|.,;:!& ])*+")
_COMMAND = re.compile(r"\\([A-Za-z]+)")
_SMALL = r"(?:[0-9]{1,3}|[a-z])"
_CHEAP = re.compile(rf"(?<![0-9!.}}]){_SMALL}!(?!!)|\\binom ?\{{ ?{_SMALL} ?\}} ?\{{ ?{_SMALL} ?\}}")
_COMBINATORIAL = re.compile(r"!|\\binom")
_COSTLY = re.compile(
    "|".join(
        (
            r"\^ ?[{(]? ?[-+]? ?[0-9]{5,}",  # an exponent of more than four digits
            r"\^ ?[{(][^{}()]*(?:!|[0-9)}\]] ?\^)",  # a factorial, or the power of a number, in an exponent
            r"[)}] ?\^ ?[{(]? ?[0-9]{3,}",  # a large power of a group
            r"[0-9]{65}",
            r"[0-9][eE][-+]?[0-9]",  # 1e9 would be read as 1 * e * 9
            r"[0-9] ?_",  # the base in 110_2 would be read over
        )
    )
)
_UNIT = re.compile(r"(?<=[0-9}) ])\\(?:text|mathrm|mbox) ?\{[^{}]*\}(?:\^ ?\{?[0-9]\}?)?$")
_WORDS = re.compile(r"\\(?:text|textbf|mathrm|mathbf) ?\{[^{}]*\}|[A-Za-z]{4,}|[A-Za-z]{2,}(?: [A-Za-z]+)+")
_WRAP = re.compile(r"\\(?:text|textbf|mathrm|mathbf) ?\{([^{}]*)\}")
_NAME = re.compile(r"^[A-Za-z](?:_\{?[A-Za-z0-9]\}?)?(?:\([a-z]\))? ?(?:=|\\in(?![a-z])) ?")
_SYMBOLS = str.maketrans(
    {"−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "π": "\\pi ", "∞": "\\infty ", "≤": "\\le ", "≥": "\\ge "}
)


@dataclass(frozen=True)
class MathVerify:
    r"""1.0 when the final answer equals `answer` mathematically, else 0.0; None for a problem without an answer.

    `tasks.answers.final_text` finds the final answer: one box or one answer tag, never the best of several. It may be a
    number, a term with letters, a set, interval, point, matrix, equation or inequality. Several values ("5 or 6", a
    set, \pm) are right only if the gold answer has several too; equations are equal up to a constant factor; words,
    and numbers with a base such as `110_2`, are compared as text.

    Range: 0 or 1. Failure modes: an arithmetic expression counts as its value (`3 \cdot 4` for 12); numbers are exact,
    so 0.333 is not 1/3, while irrational numbers agree to 15 digits; 50\% is 50; `(1, 2)` is a point and an open
    interval, and `1, 2` equals both; case is ignored; an answer that cannot be parsed, or that sympy gives up on, is
    wrong unless it repeats the gold answer. Some comparisons never end: run it in a worker with limits. Raises
    ValueError for a gold answer that cannot be parsed.
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
    if _is_text(_cleaned(gold)):
        return answer is not None and _letters(answer) == _letters(gold)
    gold_tree = None if parse_value(gold) is not None else _gold_tree(gold)
    if answer is None or not answer.strip() or len(answer) > LONGEST_FORMULA:
        return False
    if same_value(answer, gold):
        return True
    if gold_tree is None and parse_value(answer) is not None:
        return False  # two numbers that differ
    written, expected = _without_same_name(_cleaned(answer), _cleaned(gold))
    tree = _tree(written)
    return tree is not None and _same(_gold_tree(expected), tree)


@lru_cache(maxsize=1024)
def _gold_tree(gold: str) -> Any:
    tree = _tree(_cleaned(gold))
    if tree is None:
        raise ValueError(f"expected a gold answer that math-verify reads, got {gold!r:.100}: use correct_answer for it")
    return tree


def _cleaned(text: str) -> str:
    """Cleans LaTeX: one line, without units, dollar signs and other text around an answer."""
    text = " ".join(text.translate(_SYMBOLS).replace("{,}", ",").replace("\\!", "").split())
    text = text.removesuffix(".").removeprefix("\\(").removesuffix("\\)").strip("$ ").removesuffix(".")
    text = _UNIT.sub("", text.removeprefix("\\$")).rstrip()
    return text.removesuffix("%").removesuffix("\\").rstrip()


def _is_text(gold: str) -> bool:
    return _WORDS.fullmatch(gold) is not None or re.search("[0-9] ?_", gold) is not None


def _letters(text: str) -> str:
    bare = _WRAP.sub(r"\1", text[:LONGEST_FORMULA]).strip().removesuffix(".")
    return "".join(letter for letter in bare.casefold() if letter not in "(){}$ ")


def _without_same_name(answer: str, gold: str) -> tuple[str, str]:
    """Removes the name in `x = 5` and `x \\in [0, 1]`, unless the gold answer has another name."""
    name, expected = _NAME.match(answer), _NAME.match(gold)
    if name and expected and name[0].replace(" ", "") == expected[0].replace(" ", ""):
        return answer[name.end() :], gold[expected.end() :]
    if name and "=" not in gold:
        return answer[name.end() :], gold
    return answer, gold


def _is_readable(text: str) -> bool:
    """Whether math-verify may parse a cleaned text."""
    depths = accumulate((letter in "([{") - (letter in ")]}") for letter in text)
    return (
        0 < len(text) <= LONGEST_FORMULA
        and _PIECES.fullmatch(text) is not None
        and _COMMANDS.issuperset(_COMMAND.findall(text))
        and max(depths) <= DEEPEST_FORMULA
        and _COSTLY.search(text) is None
        and _COMBINATORIAL.search(_CHEAP.sub("", text)) is None
    )


def _tree(text: str) -> Any | None:
    """Parses a cleaned text to unevaluated sympy objects; None when it cannot be parsed."""
    if not _is_readable(text):
        return None
    library, config = _library()
    # No search for LaTeX in the text, no further candidates, no signals (workers have their own limits).
    found = library.parse(f"${text}$", config, fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True)
    sympy = import_module("sympy")
    tree = found[0] if found else None
    if not isinstance(tree, sympy.Basic | sympy.MatrixBase) or tree.has(sympy.Derivative) or _is_cut(text, tree):
        return None
    return tree


def _is_cut(text: str, tree: Any) -> bool:
    """Whether the library parsed only the last part of a chain of equations."""
    equations = text.count("=")
    return equations > 1 and not {",", ";"} & {*text} and len(getattr(tree, "_unsorted_args", ())) < equations


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
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of every run without its signals
    return library, [library.LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normalization)]


def _number(text: str) -> Any:
    value = Fraction(text.replace(",", ""))
    return import_module("sympy").Rational(value.numerator, value.denominator)


def _same(gold: Any, answer: Any) -> bool:
    sympy, grader = import_module("sympy"), import_module("math_verify.grader")
    if grader.is_relation(answer):
        return grader.is_relation(gold) and _same_relations(gold, answer)
    several = sympy.Set | sympy.Tuple
    if isinstance(answer, several) and not isinstance(gold, several) and not grader.is_relation(gold):
        return False
    library, _ = _library()
    return bool(library.verify(gold, answer, timeout_seconds=None, raise_on_error=True))


def _same_relations(gold: Any, answer: Any) -> bool:
    """Compares chains such as 1 < x < 2 link by link. The library compares solutions, so it takes any two equations
    without a solution as equal."""
    golds, answers = ([*getattr(chain, "_unsorted_args", [chain])] for chain in (gold, answer))
    return len(golds) == len(answers) and all(map(_same_relation, golds, answers))


def _same_relation(gold: Any, answer: Any) -> bool:
    sympy = import_module("sympy")
    if not all(isinstance(side, sympy.Expr) for side in (*gold.args, *answer.args)):
        return False
    ratio = sympy.simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
    if not (ratio.is_number and ratio.is_finite and ratio.is_nonzero):
        return False
    same_way = gold.func is (answer.reversed if ratio.is_negative else answer).func
    return bool(same_way)
