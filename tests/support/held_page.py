"""The page of a run or a comparison with its data inside, read as a browser would."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest


class Page(HTMLParser):
    """Every tag of a page with its attributes, and the answers that it holds as strict JSON."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._text, self._held = "", False
        self.feed(path.read_text(encoding="utf-8"))
        held = json.loads(self._text, parse_constant=pytest.fail)
        self.answers: dict[str, Any] = held["answers"]
        self.home: str = held["home"]
        self.shown: dict[str, Any] = self.answers[self.home[1:].replace("comparison/", "comparisons/")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._held = ("id", "held") in attrs

    def handle_endtag(self, tag: str) -> None:
        self._held = False

    def handle_data(self, data: str) -> None:
        self._text += data if self._held else ""

    def assert_stands_alone(self) -> None:
        """No script but its own, and nothing that would be fetched."""
        assert [attrs["type"] for tag, attrs in self.tags if tag == "script"] == [
            "importmap",
            "module",
            "application/json",
        ]
        addresses = [value or "" for _, attrs in self.tags for name, value in attrs.items() if name in ("src", "href")]
        assert [one for one in addresses if not one.startswith(("#", "data:image/svg+xml,"))] == []
