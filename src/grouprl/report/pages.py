"""Pages that stand alone: templates of this folder, filled in with text as text, pictures inside."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


@dataclass(frozen=True)
class Picture:
    """A plot inside the page."""

    title: str
    caption: str
    data_uri: str


def picture(title: str, caption: str, path: Path) -> Picture:
    """The PNG file at `path`, ready to be put inside a page."""
    return Picture(title, caption, "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii"))


def page(template: str) -> Template:
    """A template of this folder; it escapes what it is given, and misses nothing silently."""
    environment = Environment(
        loader=PackageLoader("grouprl.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template)
