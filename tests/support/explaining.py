"""The routes of the explainers alone, and their answers as strict JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from grouprl.lab.explain_routes import explain_routes
from grouprl.lab.runs import Runs
from grouprl.types import UserError


def lab(root: Path) -> TestClient:
    def refused(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    return TestClient(Starlette(routes=explain_routes(Runs(root)), exception_handlers={UserError: refused}))


def ask(page: TestClient, path: str) -> dict[str, Any]:
    answer = page.get(f"/api/explain/{path}")
    assert answer.status_code == 200, answer.text
    # Strict JSON: NaN and infinity are no numbers of it.
    found: dict[str, Any] = json.loads(answer.text, parse_constant=pytest.fail)
    return found
