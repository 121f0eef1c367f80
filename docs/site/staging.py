"""The pages of the site out of those of the repository: the same text, with links that fit the site."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from grouprl.types import UserError

# Places in the repository, and their pages on the site. Other pages keep their names; a source file gets a page.
MOVED = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
# Folders of docs/ whose pages the list of pages does not name.
FOLDERS = ("algorithms", "keys")
# Code first, so that nothing in it is taken for a link.
LINK = re.compile(r"^```.*?^```$|`[^`\n]+`|\]\((?P<target>[^)\s]+)(?=\))", re.MULTILINE | re.DOTALL)
GROUP = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def navigation(root: Path) -> list[dict[str, Any]]:
    """The headings of docs/README.md, each with the pages that its table names, in their order."""
    listed = root / "docs/README.md"
    found = GROUP.findall(listed.read_text(encoding="utf-8"))
    links = {heading: re.findall(r"\]\(([^)#]+)\)", body) for heading, body in found}
    return [{"GroupRL": "index.md"}] + [
        {heading: [place_of(root, listed.parent / target) for target in targets]} for heading, targets in links.items()
    ]


def written(root: Path) -> dict[str, str]:
    """Every page that somebody wrote, as the site shows it, by its place on the site.

    Raises:
        UserError: a page links to a file that is not there.
    """
    pages = [root / "README.md", root / "CONTRIBUTING.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    pages += [page for folder in FOLDERS for page in sorted((root / "docs" / folder).glob("*.md"))]
    texts = {page: page.read_text(encoding="utf-8") for page in pages}
    texts |= {page: of_notebook(page.read_text(encoding="utf-8")) for page in (root / "docs").glob("*.ipynb")}
    return {place_of(root, page): relinked(root, page, text) for page, text in texts.items()}


def relinked(root: Path, page: Path, text: str) -> str:
    """The text of a page with links that fit the site.

    Raises:
        UserError: no file is where a link leads.
    """
    folder = Path(place_of(root, page)).parent

    def turned(found: re.Match[str]) -> str:
        if not found["target"] or "://" in found["target"]:
            return found[0]
        path, _, anchor = found["target"].partition("#")
        target = Path(os.path.normpath(page.parent / path)) if path else page
        if not target.exists():
            raise UserError(f"{page}: expected a link to a file that is there, got {found['target']}; correct the link")
        place, anchor = place_of(root, target), f"#{anchor}" if anchor else ""
        return f"]({os.path.relpath(place, folder)}{anchor}"

    return LINK.sub(turned, text)


def place_of(root: Path, path: Path) -> str:
    """Where the site has what the repository has at `path`."""
    name = Path(os.path.normpath(path)).relative_to(root).as_posix()
    if name in MOVED:
        return MOVED[name]
    inside = re.sub(r"\.ipynb$", ".md", name.removeprefix("docs/"))
    folder = inside.partition("/")[0] if "/" in inside else "images"
    page = name.startswith("docs/") and folder in ("images", *FOLDERS)
    return inside if page else f"source/{name}.md"


def stage(root: Path, pages: Path, texts: Mapping[str, str]) -> None:
    """Writes the pages with their pictures, and a page of each source file that one of them links to."""
    shutil.copytree(root / "docs/images", pages / "images")
    shutil.copy(Path(__file__).with_name("site.css"), pages)
    linked = {name for text in texts.values() for name in re.findall(r"\]\((?:\.\./)*source/([^)#\s]+)\.md", text)}
    for place, text in {**texts, **{f"source/{name}.md": _source(root / name, name) for name in linked}}.items():
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        (pages / place).write_text(text, encoding="utf-8")


def of_notebook(text: str) -> str:
    """A notebook as Markdown: its cells, and what they printed and showed."""
    return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _cell(cell)) + "\n"


def _cell(cell: Mapping[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
    for output in cell.get("outputs", ()):
        shown = output.get("data", {})
        if "text/html" in shown:
            # A blank line would end the block for Markdown.
            lines = [line.strip() for line in "".join(shown["text/html"]).splitlines() if line.strip()]
            yield "\n".join(('<div class="cell-output">', *lines, "</div>"))
        else:
            yield f"```text\n{''.join(output.get('text') or shown['text/plain']).rstrip()}\n```"


def _source(path: Path, name: str) -> str:
    if path.is_dir():
        return f"# {name}\n\n" + "\n".join(f"- `{one.name}`" for one in sorted(path.glob("*.py"))) + "\n"
    if path.suffix == ".md":
        return f"# {name}\n\n{path.read_text(encoding='utf-8')}"
    kind = "python" if path.suffix == ".py" else "text"
    return f'# {name}\n\n````{kind} linenums="1"\n{path.read_text(encoding="utf-8").rstrip()}\n````\n'
