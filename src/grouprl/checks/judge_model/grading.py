"""A reward from a judge model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from grouprl.checks.judge_model.client import Server, ask, is_count
from grouprl.checks.judge_model.cost import Meter
from grouprl.checks.judge_model.text import PLACEHOLDERS, TEMPLATE, grading_text, read_score
from grouprl.rewards.calls import Invalid
from grouprl.rewards.rules import Ids, Text, Texts, check_arguments, completion_text, is_finite
from grouprl.types import UserError

_Row = tuple[str, str, str]  # prompt, completion, answer


@dataclass(frozen=True)
class Grading:
    """The request to a judge model, and the score in its reply.

    Args:
        model: its name at the server.
        template: the grading instruction with `{completion}`, and optionally `{prompt}` and `{answer}`; a request for
            the form of the reply is appended.
        scale: lowest and highest score, mapped to 0 and 1.
        json: whether to request a JSON object, with `response_format`; otherwise a last line `Score: N`, for servers
            without JSON mode and models that write their reasoning first.
        max_tokens, temperature, seed: sampling parameters of the judge model; None = not sent.
    """

    model: str
    template: str = TEMPLATE
    scale: Sequence[float] = (0.0, 10.0)
    json: bool = True
    max_tokens: int | None = 512
    temperature: float | None = 0.0
    seed: int | None = 0

    def __post_init__(self) -> None:
        template, scale, tokens, heat = self.template, self.scale, self.max_tokens, self.temperature
        is_scale = isinstance(scale, list | tuple) and len(scale) == 2 and all(map(is_finite, scale))
        with_completion = isinstance(template, str) and "{completion}" in template
        check_arguments(
            "judge_model",
            self,
            ("model", isinstance(self.model, str) and bool(self.model), "the name of a model at the server"),
            ("template", with_completion, "text with the placeholder {completion}"),
            ("scale", is_scale and scale[0] < scale[1], "two numbers, the lowest score and the highest"),
            ("json", isinstance(self.json, bool), "true or false"),
            ("max_tokens", tokens is None or is_count(tokens, 1, 1 << 20), "at least 1, or null"),
            ("temperature", heat is None or (is_finite(heat) and heat >= 0), "at least 0, or null"),
            ("seed", self.seed is None or is_count(self.seed, 0, 1 << 62), "a number from 0, or null"),
        )

    def body(self, row: _Row) -> Mapping[str, Any]:
        """The body of the request for one completion."""
        text = grading_text(self.template, dict(zip(PLACEHOLDERS, row, strict=True)), self.scale, as_json=self.json)
        settings = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "response_format": {"type": "json_object"} if self.json else None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        return {"model": self.model, "messages": [{"role": "user", "content": text}], **given}

    def score(self, reply: str | Invalid) -> float | Invalid:
        """The score in a reply, in [0, 1]."""
        try:
            return reply if isinstance(reply, Invalid) else read_score(reply, self.scale, as_json=self.json)
        except ValueError as error:
            return Invalid(str(error))


@dataclass(frozen=True)
class JudgeModel:
    """The score of a completion from a judge model, scaled to [0, 1].

    One call sends all its completions concurrently, equal ones once. A completion without a score (no reply in time, a
    reply in another form, a score outside the scale) is `Invalid` with its reason, never 0. Prompt, completion and
    answer are in fenced blocks; see `rewards.judge_model.text.grading_text` and docs/judge.md.

    Range: [0, 1]; None for a problem without an answer when the template has `{answer}`. Failure modes: training finds
    exploits of the judge model: text that demands full marks, length, confidence, its own style, a fake solution.
    Scores drift when the server changes the model, and few servers give the same score twice. Add a rule reward and
    watch held-out accuracy. A run is not bit-reproducible without a seed, and with most hosted models not even with it.
    """

    in_process: ClassVar[bool] = True  # bound by the network; a step's completions share its connections and budget
    parts: ClassVar[Mapping[str, type]] = MappingProxyType({"server": Server, "grading": Grading, "meter": Meter})

    server: Server
    grading: Grading
    meter: Meter

    def __call__(
        self,
        prompts: Texts,
        completions: Texts,
        completion_ids: Ids,
        *,
        answer: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | Invalid | None]:
        """Returns a number in [0, 1], None, or `Invalid` with a reason, for each completion.

        Raises:
            UserError: the server rejects the requests (key, model, address), or the budget is used up.
        """
        rows = self._rows(prompts, completions, answer)
        asked = list(dict.fromkeys(row for row in rows if row is not None))
        replies = ask(self.server, [self.grading.body(row) for row in asked], self.meter)
        scores = {row: self.grading.score(reply) for row, reply in zip(asked, replies, strict=True)}
        found = [None if row is None else scores[row] for row in rows]
        self.meter.add({"failures": sum(isinstance(score, Invalid) for score in found)})
        return found

    def usage(self) -> dict[str, float]:
        """Returns sums since the start, `judge/requests` and others: see `Meter.metrics`."""
        return self.meter.metrics()

    def _rows(self, prompts: Texts, completions: Texts, answers: Sequence[Any] | None) -> list[_Row | None]:
        if "{answer}" not in self.grading.template:
            answers = [""] * len(completions)
        if answers is None:
            raise UserError(
                "reward judge_model: expected problems with the column 'answer', which the template names, got none: "
                "rename the column, or remove {answer} from the template"
            )
        return [
            None if gold is None else (_prompt_text(prompt), completion_text(completion), str(gold))
            for prompt, completion, gold in zip(prompts, completions, answers, strict=True)
        ]


def _prompt_text(prompt: Text) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
