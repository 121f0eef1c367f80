"""The leaves by name: the one place where the trunk knows them. A leaf is imported when its name is used.

A folder of a leaf can be deleted: what does not ask for it computes the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from grouprl.types import UserError

PLACES: Mapping[str, str] = {
    "cli": "grouprl.cli:main",
    "cluster": "grouprl.engines.ray_cluster:open_cluster",
    "cluster.ahead": "grouprl.engines.ahead:Ahead",
    "cluster.engine": "grouprl.engines.ray_samplers:RemoteEngine",
    "cluster.samplers": "grouprl.engines.ray_samplers:open_samplers",
    "cluster.scorers": "grouprl.engines.ray_scorers:RemoteRewards",
    "cold_start": "grouprl.problems.word_problems:cold_start_pairs",
    "comparison": "grouprl.lab.report.write:write_comparison_page",
    "conversations": "grouprl.environments.conversation:open_conversations",
    "data_page": "grouprl.lab.report.write:write_data_page",
    "engine.vllm": "grouprl.engines.vllm:VllmEngine",
    "environments.authored": "grouprl.environments.authored:authored_episode",
    "environments.schemas": "grouprl.environments.shapes:tool_schemas",
    "four_bits": "grouprl.lean.four_bits:quantize_weights",
    "gguf": "grouprl.tools.gguf:loadable",
    "graphs": "grouprl.lean.recorders",
    "hints": "grouprl.tools.imported.hints:hint",
    "kernels": "grouprl.kernels.offers",
    "memory": "grouprl.tools.planner.needs:memory_of",
    "moments": "grouprl.lean.library_adamw:LibraryAdamW",
    "notebook": "grouprl.lab.notebook",
    "operations": "grouprl.problems.word_problems:operations",
    "received.files": "grouprl.received.files",
    "received.hub": "grouprl.received.hub",
    "received.trust": "grouprl.received.trust",
    "report": "grouprl.lab.report.write:write_report",
    "reward.cosine_length": "grouprl.problems.lengths:CosineLength",
    "reward.json_schema": "grouprl.checks.json_schema:JsonSchema",
    "reward.judge_model": "grouprl.checks.judge_model.grading:JudgeModel",
    "reward.math_verify": "grouprl.checks.symbolic:MathVerify",
    "reward.near_length": "grouprl.problems.lengths:NearLength",
    "reward.regex": "grouprl.problems.formats:Regex",
    "reward.repetition": "grouprl.problems.repetition:Repetition",
    "reward.think_format": "grouprl.problems.formats:ThinkFormat",
    "reward.unit_tests": "grouprl.checks.unit_tests:UnitTests",
    "rollout.regex": "grouprl.engines.structure:structured_sampling",
    "sandbox": "grouprl.checks.sandbox",
    "step_reward.equation_steps": "grouprl.problems.step_rewards:equation_steps",
    "stories": "grouprl.problems.stories",
    "supervised.dpo": "grouprl.supervised.settings:DpoConfig",
    "supervised.reward-model": "grouprl.supervised.settings:RewardModelConfig",
    "supervised.sft": "grouprl.supervised.settings:SftConfig",
    "task.calculator": "grouprl.environments.calculator:Calculator",
    "task.chains": "grouprl.problems.chains:Chains",
    "task.code": "grouprl.checks.code:Code",
    "task.countdown": "grouprl.problems.countdown:Countdown",
    "task.environment": "grouprl.environments.owned:Owned",
    "task.gsm8k": "grouprl.problems.gsm8k:Gsm8k",
    "task.guess_number": "grouprl.environments.guess_number:GuessNumber",
    "task.math": "grouprl.problems.math_problems:MathProblems",
    "task.names": "grouprl.problems.names:Names",
    "task.python_repl": "grouprl.environments.python_repl:PythonRepl",
    "task.reasoning_gym": "grouprl.checks.reasoning_gym:ReasoningGym",
    "task.search_notes": "grouprl.environments.search_notes:SearchNotes",
    "task.sums": "grouprl.problems.sums:Sums",
    "task.svamp": "grouprl.problems.svamp:Svamp",
    "task.word_problems": "grouprl.problems.word_problems:WordProblems",
    "term.critic": "grouprl.terms.critic",
    "term.distill": "grouprl.terms.distill",
    "term.router": "grouprl.terms.router:RouterTerm",
    "trackers": "grouprl.tools.trackers:Trackers",
}


def leaf(name: str) -> Any:
    """What stands at the place of a name.

    Raises:
        UserError: this installation lacks the folder of the leaf.
    """
    value = find_leaf(name)
    if value is None:
        folder = "/".join(PLACES[name].split(".")[:2])
        raise UserError(f"{name}: expected the folder {folder}, got an installation without it: install all of grouprl")
    return value


@cache
def find_leaf(name: str) -> Any | None:
    """What stands at the place of a name; None where this installation lacks the folder of the leaf."""
    module, _, member = PLACES[name].partition(":")
    if find_spec(".".join(module.split(".")[:2])) is None:
        return None
    imported = import_module(module)
    return getattr(imported, member) if member else imported


class LeafNames(Mapping[str, Any]):
    """Names of one kind and what they stand for: `own` of the trunk, and those of the leaves as `KIND.NAME`."""

    def __init__(self, kind: str, own: dict[str, Any]) -> None:
        self._kind, self.own = kind, own

    def __getitem__(self, name: str) -> Any:
        if name in self.own or f"{self._kind}.{name}" not in PLACES:
            return self.own[name]
        return leaf(f"{self._kind}.{name}")

    def __contains__(self, name: object) -> bool:
        return name in self.own or f"{self._kind}.{name}" in PLACES

    def __iter__(self) -> Iterator[str]:
        kind = f"{self._kind}."
        return iter(sorted({*self.own, *(name.removeprefix(kind) for name in PLACES if name.startswith(kind))}))

    def __len__(self) -> int:
        return len(list(iter(self)))
