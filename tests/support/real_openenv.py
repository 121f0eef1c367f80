"""An OpenEnv server with the real package, run by the Python of .venv-environments: `python real_openenv.py`.

Its environment is the calculator of `grouprl`, as a tool of that name, which pays for each call. It prints its port.
"""

import ast
import operator
import socket
import sys
from fractions import Fraction
from typing import Annotated, Any

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State
from pydantic import Field

SIGNS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value(node: Any) -> Fraction:
    if isinstance(node, ast.BinOp):
        return Fraction(SIGNS[type(node.op)](value(node.left), value(node.right)))
    return Fraction(ast.literal_eval(node))


class Calculator(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        server = FastMCP("calculator")

        @server.tool
        def calculate(expression: Annotated[str, Field(description="Numbers, + - * / and brackets.")]) -> str:
            """Computes an arithmetic expression exactly."""
            try:
                return str(value(ast.parse(expression, mode="eval").body))
            except (SyntaxError, ValueError, KeyError, TypeError, ZeroDivisionError):
                return "error"

        super().__init__(server)
        self._state = State(step_count=0)

    def reset(self, seed: int | None = None, episode_id: str | None = None, **row: Any) -> Observation:
        self._state = State(step_count=0)
        return Observation()

    def _step_impl(self, action: Any, **options: Any) -> Observation:
        raise ValueError(action)

    async def step_async(self, action: Any, **options: Any) -> Observation:
        seen: Observation = await super().step_async(action, **options)
        if isinstance(seen, CallToolObservation):
            seen.reward = 1.0
        return seen

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    print(bound.getsockname()[1], flush=True)
    app = create_fastapi_app(Calculator, CallToolAction, CallToolObservation, max_concurrent_envs=64)
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[bound])
    sys.exit()
