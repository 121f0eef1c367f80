"""Tools in GroupRL and in TRL 1.16.0: both loops write the same episodes, token for token, with the same mask.

    OMP_NUM_THREADS=1 python benchmarks/trl_tools.py [--problems 32] [--smoke]

The bundled model that can write calls answers word problems greedily, with a calculator as its tool; so that it calls
it, the embedding of the token with which a call begins is made larger. TRL's loop is its own: prompts, calls, results,
mask; so is its decoding, by `generate`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from trl_peer import Settings, grpo_config, missing_trl

from grouprl.config.run import RunConfig
from grouprl.environments.calculator import calculate
from grouprl.environments.conversation import open_conversations
from grouprl.models.load import load_model, load_tokenizer
from grouprl.models.prompts import prompt_token_ids
from grouprl.models.save import save_model
from grouprl.rollout import NativeEngine, Request
from grouprl.rollout.episodes import bound
from grouprl.tasks import load_task
from grouprl.types import Problem, Sampling

MODEL, LARGER = "abacus_tools", 1.3
LONGEST, SHORT = 300, 136  # tokens after the prompt, and of a turn; so few that a turn is cut
Row = tuple[list[int], list[int]]
"""Token ids after the prompt, and 1 for each that the policy wrote."""
# How Qwen3 writes calls, which is how this model does; TRL knows templates by their text.
RESPONSES = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*", "content": "text"},
    },
}


def save_caller(folder: Path) -> None:
    """Writes the model that calls."""
    model, tokenizer = load_model(MODEL, device=torch.device("cpu")), load_tokenizer(MODEL)
    (first, *_) = tokenizer("<tool_call>")["input_ids"]
    with torch.no_grad():
        model.get_input_embeddings().weight[first] *= LARGER
    save_model(model, tokenizer, folder)


def ours(folder: str, problems: Sequence[Problem], longest: int) -> list[Row]:
    """GroupRL's episodes."""
    environment = {"max_tokens": longest, "turns": 20}
    config = RunConfig.model_validate({"task": {"name": "calculator"}, "environment": environment})
    model, tokenizer = load_model(folder, device=torch.device("cpu")), load_tokenizer(folder)
    with open_conversations(config, load_task("calculator")) as opened:
        talk = bound(opened, model, tokenizer, longest)
        engine = NativeEngine(model, tokenizer, seed=0, max_rows=64, conversation=talk)
        asked = [opened.opened(problem) for problem in problems]
        requests = [Request(one, prompt_token_ids(one, tokenizer, longest=500), 1) for one in asked]
        groups = engine.generate(requests, Sampling(max_tokens=longest, temperature=0.0))
    return [_row(group.completions[0]) for group in groups]


def _row(completion: Any) -> Row:
    """An episode's tokens and mask as TRL has them."""
    ids, mask, at, written = list[int](), list[int](), 0, list(completion.token_ids)
    for shown in completion.episode.observations:
        ids += [*written[at : shown.after], *shown.token_ids]
        mask += [1] * (shown.after - at) + [0] * len(shown.token_ids)
        at = shown.after
    return ids + written[at:], mask + [1] * len(written[at:])


def theirs(folder: str, problems: Sequence[Problem], longest: int) -> list[Row]:
    """TRL's episodes of the same prompts, by its own loop and `generate`."""
    from datasets import Dataset
    from trl import GRPOTrainer

    tokenizer = load_tokenizer(folder)
    tokenizer.response_template = RESPONSES
    prompts = [[dict(message) for message in problem.prompt if isinstance(message, dict)] for problem in problems]
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=grpo_config(Settings(), completions=8, num_generations=8, max_completion_length=longest),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
        tools=[calculate],
    )
    trainer.generation_config.do_sample = False
    trainer.model.eval()
    kept, generate = list[Any](), trainer._generate

    def generated(asked: Any) -> Any:
        kept.append(generate(asked))
        return kept[-1]

    trainer._generate = generated
    trainer._generate_and_score_completions([{"prompt": prompt} for prompt in prompts])
    return list(zip(kept[0][1], kept[0][2], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args()
    problems = load_task("calculator", difficulty=1).problems("train")[: 8 if arguments.smoke else arguments.problems]
    with tempfile.TemporaryDirectory() as folder:
        save_caller(Path(folder))
        for longest in (LONGEST, SHORT):
            rows = ours(folder, problems, longest)
            results = sum(before > own for _, mask in rows for before, own in pairwise(mask))
            cut = sum(len(ids) == longest and before for ids, mask in rows for before in [0 in mask])
            print(
                f"GroupRL, {longest} tokens: {len(rows)} episodes, {results} results of tools between turns, {cut} cut"
            )
            assert results
            assert cut or longest == LONGEST
            if missing := missing_trl():
                print(f"skipped, TRL's episodes: {missing}")
                continue
            pairs = list(zip(rows, theirs(folder, problems, longest), strict=True))
            different = [place for place, (one, other) in enumerate(pairs) if one != other]
            print(f"TRL: {f'differs in the episodes {different}' if different else 'the same ids and masks'}")
            assert not different


if __name__ == "__main__":
    main()
