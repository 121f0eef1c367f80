"""Whether a reward function compares its completions with one another, read off its source.

In TRL one call has the completions of several problems; here a call has those of one, unless scope="batch" is set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from grouprl.scoring.source import Definition, definition_of

_GIVEN = {"completions", "completion_ids"}
_ALIGNED = {"zip", "enumerate", "map", "list", "array", "asarray", "tensor", "stack"}  # one item for each completion
# They make one number, or an order, of all items.
_STATISTICS = {"sum", "max", "min", "sorted", "set", "Counter", "mean", "fmean", "std", "stdev", "pstdev", "var"} | {
    *("median", "amax", "amin", "argmax", "argmin", "argsort", "sort", "unique", "rankdata", "percentile", "quantile"),
}
_SHOWN = {"print", "log_metric", "log_extra", "log", "debug", "info", "warning", "error"}  # not part of the values


def comparison_in(function: object) -> tuple[int, str] | None:
    """The line (from the function's first, counted from 1) and the code of the first comparison that is found.

    A statistic of the completions, or of a list with an item for each, of which the values depend; or their number
    that divides or is compared. What is only printed or logged is none. None = nothing found.
    """
    body = definition_of(function)
    if body is None:
        return None
    found = _Reader(body).first()
    return None if found is None else (found.lineno - body.lineno + 1, " ".join(ast.unparse(found).split()))


class _Reader:
    """Reads a function from its first statement on."""

    def __init__(self, body: Definition) -> None:
        self._body = body
        self._lists = set(_GIVEN)  # names of lists with an item for each completion
        self._numbers = dict[str, ast.expr]()  # names of what was made of all of them
        self._counts = set[str]()  # names of their number

    def first(self) -> ast.expr | None:
        """The first expression that compares completions."""
        for node in self._in_order(self._body):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
                self._assign(names, node.value)
            elif isinstance(node, ast.For) and self._is_list(node.iter):
                self._lists |= set(_filled_by(node))
            if isinstance(node, ast.expr) and self._compares(node):
                return self._numbers.get(_name(node), node)  # of a name, what it was made of
        return None

    def _in_order(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes of the function, without what is only shown, and without numbers that are only given a name."""
        yield node
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        named = value if value is not None and self._is_number(value) else None
        for child in ast.iter_child_nodes(node):
            shown = isinstance(child, ast.Call) and _name(child.func) in _SHOWN
            if not shown and (named is None or child is not named):
                yield from self._in_order(child)

    def _is_number(self, value: ast.expr) -> bool:
        """Whether an expression is made of all items, and has none for each."""
        whole = [node for node in ast.walk(value) if isinstance(node, ast.expr)]
        return not self._is_list(value) and any(map(self._compares, whole))

    def _assign(self, names: set[str], value: ast.expr) -> None:
        is_count, is_list, is_number = self._is_count(value), self._is_list(value), self._is_number(value)
        for known in (self._lists, self._counts):
            known -= names
        for name in names & self._numbers.keys():
            del self._numbers[name]
        if is_count:
            self._counts |= names
        elif is_list:
            self._lists |= names
        elif is_number:
            self._numbers |= dict.fromkeys(names, value)

    def _is_list(self, node: ast.AST) -> bool:
        """Whether an expression has one item for each completion."""
        if isinstance(node, ast.Name):
            return node.id in self._lists
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self._is_list(node.generators[0].iter) and not node.generators[0].ifs
        if isinstance(node, ast.Call) and _name(node.func) == "range":
            return any(map(self._is_count, node.args))
        return isinstance(node, ast.Call) and _name(node.func) in _ALIGNED and any(map(self._is_list, node.args))

    def _is_count(self, node: ast.AST) -> bool:
        if isinstance(node, ast.Call) and _name(node.func) == "len" and len(node.args) == 1:
            return self._is_list(node.args[0])
        return isinstance(node, ast.Name) and node.id in self._counts

    def _is_statistic(self, node: ast.AST) -> bool:
        """Whether an expression makes something of all items, or is the name of such."""
        if isinstance(node, ast.Name):
            return node.id in self._numbers and isinstance(node.ctx, ast.Load)
        if not isinstance(node, ast.Call) or _name(node.func) not in _STATISTICS:
            return False
        of = node.func.value if isinstance(node.func, ast.Attribute) else None
        # max(a, b) compares two values; max(a) is one of all items.
        return (len(node.args) == 1 and self._is_list(node.args[0])) or (of is not None and self._is_list(of))

    def _compares(self, node: ast.expr) -> bool:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod):
            return self._is_count(node.right) or self._is_count(node.left)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            others = [side for side in sides if not self._is_count(side)]
            return len(others) < len(sides) and any(not _is_length(side) for side in others)
        return self._is_statistic(node)


def _is_length(node: ast.expr) -> bool:
    """Another length, or a number that only an empty or single list has."""
    if isinstance(node, ast.Call):
        return _name(node.func) == "len"
    return isinstance(node, ast.Constant) and node.value in (0, 1)


def _filled_by(loop: ast.For) -> Iterator[str]:
    """Names of lists that a loop over completions appends to, and that it does not make anew."""
    inside = [node for part in loop.body for node in ast.walk(part)]
    made = {node.id for node in inside if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in inside:
        called = node.func if isinstance(node, ast.Call) else None
        if not isinstance(called, ast.Attribute) or called.attr != "append":
            continue
        if isinstance(called.value, ast.Name) and called.value.id not in made:
            yield called.value.id


def _name(node: ast.expr) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
