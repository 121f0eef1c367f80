"""Makes groups of completions: the engine protocol and the native engine."""

from grouprl.rollout.engine import Engine, Request, requests
from grouprl.rollout.native import NativeEngine

__all__ = ["Engine", "NativeEngine", "Request", "requests"]
