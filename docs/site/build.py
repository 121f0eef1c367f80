"""Builds the pages of docs/ as a site in build/site: `make docs`. A broken link or anchor stops it.

The pages are those that GitHub shows. `staging` copies them to build/pages with links that fit the site, `reference`
adds what is generated from code, zensical makes HTML of them, and equations become MathML, which needs no script.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from latex2mathml.converter import convert

import reference
import staging
from grouprl.lab.site import write_site
from grouprl.types import UserError

ROOT = Path(__file__).parents[2]
EQUATION = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)
# What a reader without a network would miss.
LOADED = r"<(?:script|img|iframe|source)\b[^>]*\ssrc=|<link\b[^>]*\srel=.?(?:stylesheet|preload)\b[^>]*\shref="
ELSEWHERE = re.compile(rf'(?:{LOADED})"?(https?:[^">\s]+)')


def build(root: Path, folder: Path) -> Path:
    """Builds the site of the pages below `root`, and returns the folder that holds it.

    Raises:
        UserError: a page links to a file that is not there, or would load something from elsewhere.
        CalledProcessError: zensical found a broken link or anchor, and has printed it.
    """
    pages, site = folder / "pages", folder / "site"
    for made in (pages, site):
        shutil.rmtree(made, ignore_errors=True)
    texts = staging.written(root)
    nav = reference.navigation(staging.navigation(root))
    staging.stage(root, pages, reference.with_generated(root, texts))
    config = folder / "zensical.yml"
    config.write_text(yaml.safe_dump(_settings(root, nav), sort_keys=False), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(config)], check=True)
    for page in site.rglob("*.html"):
        _finish(page)
    return site


def _settings(root: Path, nav: list[Any]) -> dict[str, Any]:
    found = yaml.safe_load(Path(__file__).with_name("zensical.yml").read_text(encoding="utf-8"))
    for plugin in found["plugins"]:
        if isinstance(plugin, dict):
            plugin["mkdocstrings"]["handlers"]["python"]["paths"] = [str(root / "src")]
    return {**found, "docs_dir": "pages", "site_dir": "site", "nav": nav}


def _finish(page: Path) -> None:
    """Makes MathML of a page's equations."""
    text = page.read_text(encoding="utf-8")
    if found := ELSEWHERE.search(text):
        raise UserError(f"{page}: expected nothing from elsewhere, got {found[1]}; copy it to docs/images")
    page.write_text(EQUATION.sub(_mathml, text), encoding="utf-8")


def _mathml(found: re.Match[str]) -> str:
    made = convert(html.unescape(found[3]), display="inline" if found[2] == "(" else "block")
    return made if found[2] == "(" else f'<div class="equation">{made}</div>'


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=ROOT / "build", help="where pages/ and site/ are made")
    parser.add_argument("--runs", type=Path, help="a folder of runs, which the site shows below recorded/")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    site = build(ROOT, folder)
    if arguments.runs:
        print(f"{write_site(arguments.runs, site / 'recorded')}: the recorded runs")
    print(f"{site}/index.html; with the search: python3 -m http.server -b 127.0.0.1 -d {site}")


if __name__ == "__main__":
    main()
