"""The package as source text: its modules, and what each imports. Nothing of it is loaded."""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "grouprl"
# A room of the trunk imports those before it; a leaf the trunk alone, but lab and cli, which show the other leaves too.
TRUNK = """
    types files leaves algorithms forward models record ranks config tasks rewards rollout
    learner evaluation step run trainer
"""
LEAVES = "problems terms received lean supervised environments kernels engines checks tools lab cli trl"


@dataclass(frozen=True)
class Module:
    name: str  # "grouprl.rollout.engine"; a package's __init__ has the package's name
    source: str
    is_package: bool = False

    @property
    def tree(self) -> ast.Module:
        return parsed(self.source)

    @property
    def room(self) -> str:
        return room_of(self.name)

    def imports(self) -> Iterator[str]:
        """Absolute dotted names, wherever they are imported: in functions and for types only as well."""
        package = self.name.split(".") if self.is_package else self.name.split(".")[:-1]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                base += node.module.split(".") if node.module else []
                yield from (".".join([*base, alias.name]) for alias in node.names)


@cache
def lines_of_code(source: str) -> int:
    """Lines with code: no blank lines, comments and docstrings."""
    beside = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in beside:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parsed(source)):
        for part in getattr(node, "body", []) if isinstance(getattr(node, "body", None), list) else []:
            if (
                isinstance(part, ast.Expr)
                and isinstance(part.value, ast.Constant)
                and isinstance(part.value.value, str)
            ):
                lines.difference_update(range(part.lineno, part.end_lineno + 1))
    return len(lines)


@cache
def parsed(source: str) -> ast.Module:
    """Each text once: every rule asks for it."""
    return ast.parse(source)


def room_of(dotted: str) -> str:
    """'grouprl.tasks.base.Split' -> 'tasks'; '' for the package itself and for other packages."""
    first, *rest = dotted.split(".")
    return rest[0] if first == "grouprl" and rest and not rest[0].startswith("__") else ""


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(SRC.rglob("*.py")):
        parts = ("grouprl", *path.relative_to(SRC).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found.append(Module(name, path.read_text(encoding="utf-8"), is_package))
    return tuple(found)
