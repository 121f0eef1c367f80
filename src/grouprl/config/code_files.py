"""Python files of users: their sources with the modules beside them, and a module that runs from these bytes."""

from __future__ import annotations

import ast
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from grouprl.files import read_file
from grouprl.types import UserError

_MOST_MODULES, _MOST_BYTES = 1000, 4 << 20  # of all the files; the tree of a source takes 400 times its size
_FRAMES = 3  # of an error in such a file that its user sees
CODE: dict[str, ModuleType] = {}
"""The modules of this process that were loaded from files of a user, by real path."""
_RAN: set[str] = set()  # paths of the files that ran in this process


def read_code(path: Path) -> dict[str, bytes]:
    """The bytes of a Python file, and of the modules beside it that it and they import by a statement, by path.

    Raises:
        UserError: a file is missing, cannot be read, or is too large; or there are too many.
    """
    sources: dict[str, bytes] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if str(file) in sources:
            continue
        data = read_file(file)
        if data is None:
            raise UserError(f"{file}: expected a Python file, found none: check the path")
        sources[str(file)] = data
        if len(sources) > _MOST_MODULES or sum(map(len, sources.values())) > _MOST_BYTES:
            most = f"{_MOST_MODULES} modules of {_MOST_BYTES} bytes in all"
            raise UserError(f"{path}: expected at most {most} beside it, got more: import fewer")
        package = file.relative_to(path.parent).parent.parts
        waiting += [source for name in _imports(data, package) for source in _files(path.parent, name)]
    return sources


def _imports(source: bytes, package: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The dotted names that a source imports anywhere, as parts."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return  # who loads it says so
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = tuple(package[: len(package) - node.level + 1]) if node.level else ()
            base = above + tuple(node.module.split(".") if node.module else ())
            yield from ((*base, alias.name) for alias in node.names)


def _files(folder: Path, name: Sequence[str]) -> Iterator[Path]:
    """The files in the folder that an import of this name runs; none for a module of a library."""
    elsewhere = [path for path in sys.path if str(path) not in ("", str(folder), str(folder.resolve()))]
    if not name or name[0] in sys.stdlib_module_names or PathFinder.find_spec(name[0], elsewhere) is not None:
        return
    for depth in range(1, len(name) + 1):
        module = folder.joinpath(*name[:depth])
        yield from filter(Path.is_file, (module / "__init__.py", module.with_name(f"{module.name}.py")))


class _BytesLoader(SourceFileLoader):
    """Loads one module from bytes that were read before."""

    def __init__(self, name: str, path: str, code: Mapping[str, bytes]) -> None:
        super().__init__(name, path)
        self.code, self._source = code, code[str(Path(path))]

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        """Compiles the bytes; bytecode is neither read nor written."""
        return self.source_to_code(self._source, self.path)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The module of this file that is there already: its classes are those of every file that imports it."""
        module = CODE.get(os.path.realpath(self.path))
        before: Mapping[str, bytes] = {} if module is None else getattr(module.__loader__, "code", {})
        is_same = all(self.code.get(path, source) == source for path, source in before.items())
        return module if is_same else None

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module, once; objects of its classes name it by its file."""
        path = os.path.realpath(self.path)
        if CODE.get(path) is module:
            return
        CODE[path] = module
        try:
            super().exec_module(module)
        except BaseException:
            del CODE[path]
            raise


class _Finder:
    """Finds the modules beside a user's file, after every other finder."""

    def __init__(self, folder: Path, code: Mapping[str, bytes]) -> None:
        self._folder = folder
        self._code, self._modules = code, {Path(path).relative_to(folder): path for path in code}

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module of this name: its source, its package, or a folder with modules of it."""
        module = Path(*name.split("."))
        for file, inside in ((module / "__init__.py", [str(self._folder / module)]), (module.with_suffix(".py"), None)):
            if file in self._modules:
                loader = _BytesLoader(name, self._modules[file], self._code)
                return spec_from_file_location(name, loader.path, loader=loader, submodule_search_locations=inside)
        if any(module in file.parents for file in self._modules):
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(self._folder / module)]
            return spec
        if (self._folder / module).with_suffix(".py").is_file():
            raise ModuleNotFoundError(f"{name}: expected an `import` statement with its name in the user's files")
        return None


def forget_modules() -> None:
    """Forgets the modules of files that ran before: the next file may have others of the same names beside it."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name, module in list(sys.modules.items()):
        if isinstance(getattr(module, "__loader__", None), _BytesLoader):
            del sys.modules[name]


def import_code(path: str, code: Mapping[str, bytes], name: str) -> ModuleType:
    """Runs a user's file as the module `name`; the modules beside it in `code` can be imported from now on."""
    sys.meta_path.append(_Finder(Path(path).parent, code))
    _RAN.update(code)
    loader = _BytesLoader(name, path, code)
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module; the name must not hide another module
    loader.exec_module(module)
    return module


def error_in_code(error: Exception) -> str:
    """An error in a user's file as a sentence and its last frames there, the innermost last; empty for another one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in _RAN]
    lines = [f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames[-_FRAMES:]]
    if isinstance(error, SyntaxError) and error.filename in _RAN:
        lines = [f"{Path(error.filename).name}:{error.lineno}: {(error.text or '').strip()}"]
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    said = f"expected code that runs, got {type(error).__name__}: {' '.join(said.split())[:500]}: correct it"
    return "\n    ".join([said, *lines]) if lines else ""


@contextmanager
def errors_of_code() -> Iterator[None]:
    """Turns an error in a user's file that ran in this process into a UserError; other errors pass."""
    try:
        yield
    except Exception as error:
        if said := error_in_code(error):
            raise UserError(said) from error
        raise
