"""Rollout engines sample groups of completions from the policy: the engine protocol and the native engine.

In: requests and sampling parameters. Out: groups. They never score or update.
"""

from grouprl.rollout.engine import Engine, Request, make_requests
from grouprl.rollout.native import NativeEngine
from grouprl.rollout.spread import SpreadEngine

__all__ = ["Engine", "NativeEngine", "Request", "SpreadEngine", "make_requests"]
