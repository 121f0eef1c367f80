"""The page of the lab as one file: its modules, style and data inside, opened without a server."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from grouprl.record.files import json_text

STATIC = Path(__file__).parent / "static"
_IMPORT = re.compile(r'^((?:import|export)\b[^"`;]*)"(\.{1,2}/[^"]+)"', re.MULTILINE)
_PICTURE = re.compile(r'"static/([\w-]+\.svg)"')
_LINKED = re.compile(r"<(?:link|script)\b[^>]*>(?:</script>)?\n?")
# What a data: URL may hold as it is; a browser drops its line ends, and ends the address at #.
_PLAIN = " !$&'()*+,-./:;=?@[]^_`{|}~>"


def standalone(title: str, data: Mapping[str, Any], pages: Sequence[str], *, parts: bool = False) -> str:
    """The page's HTML with everything inside that it needs.

    Modules become `data:` addresses in an import map, under bare names: a module that comes from such an address has
    no folder that "./" could start from.

    Args:
        title: of the browser's window until the page sets its own.
        data: what `parts/api.js` answers from: `home` (the address of the first page), `links` (addresses and words at
            the top) and `answers` (by the lab's path).
        pages: names of the files of pages/ that the data are for.
        parts: whether the page loads scripts beside it that hold further answers (`lab.site`).
    """
    modules: dict[str, str] = {}
    wanted = ["app.js", *(f"pages/{page}.js" for page in pages)]
    while wanted:
        path = wanted.pop()
        if path not in modules:
            modules[path], needed = _rewritten(path)
            wanted += needed
    app = modules.pop("app.js")
    names = {f"./pages/{page}.js": _address(modules[f"pages/{page}.js"]) for page in pages}  # as app.js imports them
    names |= {_bare(path): _address(text) for path, text in modules.items()}
    imports = _inside_script(json_text({"imports": names}))
    styles = "\n".join(
        (STATIC / name).read_text(encoding="utf-8") for name in ("vendor/uPlot-1.6.32.min.css", "style.css")
    )
    icon = _picture("icon.svg")
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(imports, app, parts=parts)}">\n'
        f'<link rel="icon" href="{icon}">\n'
        f"<style>\n{styles}\n</style>\n"
        f'<script type="importmap">{imports}</script>\n'
        f'<script type="module">{app}</script>\n'
    )
    held_data = f'<script type="application/json" id="held">{_inside_script(json_text(data))}</script>\n'
    page = _LINKED.sub("", (STATIC / "index.html").read_text(encoding="utf-8"))
    page = page.replace("GroupRL lab</a>", "GroupRL</a>")
    page = re.sub("<title>.*?</title>", lambda _: f"<title>{html.escape(title)}</title>", page)
    return page.replace("</head>", head + "</head>").replace("</body>", held_data + "</body>")


def _rewritten(path: str) -> tuple[str, list[str]]:
    """The text of a module with bare names for what it imports, and the paths of those."""
    needed: list[str] = []

    def bare(match: re.Match[str]) -> str:
        imported = (STATIC / path).parent.joinpath(match[2]).resolve()
        needed.append(imported.relative_to(STATIC.resolve()).as_posix())
        return f'{match[1]}"{_bare(needed[-1])}"'

    text = _IMPORT.sub(bare, (STATIC / path).read_text(encoding="utf-8"))
    return _PICTURE.sub(lambda match: f'"{_picture(match[1])}"', text), needed


def _picture(name: str) -> str:
    return "data:image/svg+xml," + quote((STATIC / name).read_text(encoding="utf-8"))


def _bare(path: str) -> str:
    return f"grouprl/{path}"


def _address(module: str) -> str:
    return "data:text/javascript;charset=utf-8," + quote(module, safe=_PLAIN)


def _inside_script(text: str) -> str:
    """JSON that cannot end the element it stands in, whatever a model wrote."""
    return text.replace("<", "\\u003c")


def _policy(*scripts: str, parts: bool) -> str:
    """Nothing is loaded, and no script runs but these and, where the page has parts, those that lie beside it."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" for script in scripts
    )
    beside = " 'self'" if parts else ""
    return (
        f"default-src 'none'; script-src {hashes} data:{beside}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
