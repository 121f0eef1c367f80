"""Numbers as the lab's page writes them, read back."""

from __future__ import annotations

import re
from typing import Any

import pytest


def read(text: str) -> list[float]:
    """The numbers in a text of the page, with its minus and its powers of ten."""
    raised = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    text = re.sub(r" × 10([⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+)", lambda found: f"e{found[1].translate(raised)}", text).replace("−", "-")
    return [float(one) for one in re.findall(r"[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", text.replace(",", ""))]


def near(expected: float | list[float]) -> Any:
    """As far as the page writes numbers out: to three decimals, or to two digits of a very small one."""
    return pytest.approx(expected, abs=6e-4, rel=6e-2 if isinstance(expected, float) and abs(expected) < 1e-3 else 1e-3)


def table(page: Any, name: str) -> list[list[float]]:
    """The numbers of a table's rows, that of the completion first."""
    rows = page.get_by_role("region", name=name).locator("tbody tr")
    rows.first.wait_for()
    return [read(" ; ".join(row.locator("th, td").all_text_contents())) for row in rows.all()]
