"""A run directory whose every text tries to become markup, a link, a request or an order to the terminal.

A page that shows it as text makes no request to `/fetched`, opens no dialog and never sets `window.hostile`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import yaml
from tokenizers import Tokenizer

import grouprl.models
from grouprl.config.run import RunConfig
from grouprl.record.read import Example
from grouprl.record.write import RunRecord
from grouprl.types import Completion, Group, Message, Problem, RewardOutcome, StepRecord, StopReason, TokenTrace
from lab_runs import stages_of

SCRIPT = "<script>window.hostile = 1; alert(1)</script>"
IMAGE = "<img src=/fetched/image onerror=\"window.hostile=1;alert('image')\">"
LONGEST = 100_000  # signs

# By name, so that a test can say which of them it looks for.
TEXTS: Mapping[str, str] = {
    "script": f"The answer is {SCRIPT} \\boxed{{7}}",
    "image": f"{IMAGE} \"'><svg onload=alert(1)><iframe src=/fetched/frame></iframe>",
    "link": '[click](javascript:alert(1)) <a href="javascript:alert(1)">7</a> data:text/html,<script>alert(1)</script>',
    "style": "</span></div></style><style>* { display: none !important; background: url(/fetched/style) }</style>",
    "bidi": "7 \u202e}8{dexob\\\u202c is right, not \u2066\u202d8\u2069\u200f \u05d0\u05d1\u05d2 \u200e\u061c7",
    "ansi": "\x1b[31mred\x1b[0m \x1b]8;;https://example.invalid\x07link\x1b]8;;\x07 \x1b[2J\x1b[H\rover\b\b\x7f\x9b1m",
    "nulls": "before\x00after\x00\x00 \ufeffzero\u200bwidth\u200d\u2060\u00adsoft \U000e0041\U000e0042 tags\ufffd",
    "emoji": "\U0001f469\u200d\U0001f469\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd 7\ufe0f\u20e3",
    "marks": "Z" + "\u0300\u0301\u0302\u0303\u0308\u030a\u0323" * 40 + " \u0e01\u0e33\u0e47 \u0915\u094d\u0937",
    "spaces": "  two\t\ttabs\r\nnew\u2028line\u2029paragraph\u0085next\x0bup\x0cform\u00a0\u3000wide   \n\n\n\nend ",
    "template": "${alert(1)} {{constructor.constructor('alert(1)')()}} <%= 7 %> &lt;b&gt; &#60;script&#62; \\u003c",
    "unbroken": "9" * LONGEST,
    "words": "<b>seven</b> " * (LONGEST // 13),
    "lines": "7\n" * 2_000,
    "empty": "",
    "only spaces": "   \n\t ",
}
IDENTIFIERS = (
    f"../../etc/passwd?x=1#{SCRIPT}",
    f"{IMAGE}%2F%00&next=2",
    "plain",
    "\u202eeman",
    "a b+c%20d/e//f;g",
)


def make_hostile_run(directory: Path, steps: int = 3, *, longest: int = LONGEST // 5) -> None:
    """Records a finished run with 5 groups of 16 completions a step in `directory`, which must not hold one."""
    with RunRecord.create(directory, _config()) as record:
        for step in range(1, steps + 1):
            groups = [_group(problem, step, longest) for problem in _problems(longest)]
            outcomes = [[_outcome(place + step, name) for place, name in enumerate(TEXTS)] for _ in groups]
            pairs = zip(groups, outcomes, strict=True)
            advantages = [list(map(_advantages, group.completions, scored)) for group, scored in pairs]
            traces = [[_trace(completion, step) for completion in group.completions] for group in groups]
            metrics = {"reward": 0.5, "accuracy": 0.5, f"rewards/{IMAGE}/mean": 0.5, f"{SCRIPT}_share": 0.5}
            stages = stages_of(len(TEXTS)) if step == 3 else {}
            record.step(StepRecord(step, metrics, groups, outcomes, advantages, traces, stages=stages))
        record.evaluation(steps, {"greedy_accuracy": 0.5, "greedy_interval": [0.4, 0.6], SCRIPT: IMAGE})
        for when in ("before", "after"):
            record.examples(when, [Example(name, text, IMAGE, text, None) for name, text in TEXTS.items()])
        record.summary({"after": {"greedy_accuracy": 0.5}, "model": SCRIPT, "task": IMAGE, "train_seconds": 1.0})


def _config() -> str:
    config = RunConfig(name="hostile", steps=3).model_dump(mode="json")
    config["task"]["name"] = IMAGE
    config["task"]["arguments"] = {SCRIPT: TEXTS["bidi"]}
    config["rewards"] = [{"name": IMAGE, "weight": 0.5}]
    return yaml.safe_dump(config)


def _problems(longest: int) -> list[Problem]:
    prompts: list[str | tuple[Message, ...]] = [
        tuple({"role": f"{role}", "content": TEXTS[name]} for role, name in zip(_ROLES, TEXTS, strict=False)),
        TEXTS["image"],
        TEXTS["unbroken"][:longest],
        ({"role": "user", "content": TEXTS["bidi"]}, {"role": "assistant", "content": TEXTS["marks"]}),
        TEXTS["empty"],
    ]
    columns = {
        "answer": TEXTS["script"],
        IMAGE: TEXTS["link"],
        "": TEXTS["unbroken"][:longest],
        "__proto__": TEXTS["ansi"],
    }
    nested: dict[str, Any] = {"lists": [SCRIPT, {IMAGE: [math.nan, None, TEXTS["bidi"]]}], "number": 10**30}
    return [Problem(name, prompt, {**columns, **nested}) for name, prompt in zip(IDENTIFIERS, prompts, strict=True)]


_ROLES = ("system", "user", "assistant", SCRIPT, IMAGE, "\u202eresu", "", "tool")
_TOKENIZER = Tokenizer.from_file(str(Path(grouprl.models.__file__).parent / "assets" / "abacus" / "tokenizer.json"))


def _group(problem: Problem, step: int, longest: int) -> Group:
    completions = []
    for index, text in enumerate(text[:longest] for text in TEXTS.values()):
        # The page shows 2,000 and skips the rest: 15 completions with 100,000 tokens are 50 MB.
        most = max(2_500, longest * 6 // 100)
        ids = tuple(_TOKENIZER.encode(text, add_special_tokens=False).ids[:most]) or (0,)
        logprobs = tuple(-0.01 * (1 + (index + place) % 300) for place in range(len(ids)))
        stop = (StopReason.END, StopReason.STOP_STRING, StopReason.LENGTH)[index % 3]
        completions.append(Completion(index, ids, logprobs, logprobs, text, stop, step - 1))
    return Group(problem, (1, 2, 3), tuple(completions))


def _outcome(place: int, name: str) -> RewardOutcome:
    if place % 5 == 4:
        return RewardOutcome(math.nan, {IMAGE: None}, f"{SCRIPT} raised {TEXTS['ansi']} for {name}")
    worth = float(place % 3)
    return RewardOutcome(worth, {IMAGE: 2 * worth, SCRIPT: None}, correct=(None, False, True)[place % 3])


def _advantages(completion: Completion, outcome: RewardOutcome) -> list[float]:
    size = 0.0 if math.isnan(outcome.total) else outcome.total - 1.0
    varies = completion.index % 2  # half of the completions have one advantage, the others one for each token
    return [size * (1.0 - varies * (place % 7) / 7) for place in range(len(completion))]


def _trace(completion: Completion, step: int) -> TokenTrace:
    moved = count()
    learner = tuple(logprob + 0.3 * math.sin(next(moved)) for logprob in completion.logprobs)
    entropies = tuple(abs(logprob) for logprob in learner)
    return TokenTrace(learner, entropies, completion.logprobs, learner if step == 3 else None)
