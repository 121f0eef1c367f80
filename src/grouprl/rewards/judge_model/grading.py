"""A reward that another language model gives, over an OpenAI-compatible endpoint."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import grouprl.rewards.judge_model.client as client
from grouprl.rewards.judge_model.cost import Meter, Usage
from grouprl.rewards.judge_model.text import PLACEHOLDERS, TEMPLATE, grading_text, read_score
from grouprl.rewards.rules import Text, completion_text
from grouprl.scoring.invalid import Invalid
from grouprl.types import UserError

_Row = tuple[str, str, str]  # prompt, completion, answer


@dataclass(frozen=True)
class JudgeModel:
    """The score that a model behind an OpenAI-compatible endpoint gives a completion, scaled to [0, 1].

    All completions of a call are asked about at once, equal ones once. What cannot be judged (no answer in time, a
    reply in another form, a score outside of the scale) is `Invalid` with its reason, never 0. The prompt, the
    completion and the answer stand in fenced blocks; see `rewards.endpoint_text.grading_text` and docs/judge.md.

    Range: [0, 1]; None for a problem without an answer when the template has `{answer}`. Failure modes: a judge is a
    model, and training against it finds what it falls for: text that tells it to give full marks, length, confidence,
    flattery of its own style, a fake solution that looks like one; scores drift when the server changes the model, and
    few servers give the same score twice. Keep a rule reward beside it and watch held-out accuracy. Without a seed,
    and with most hosted models in spite of it, a run is not repeated to the bit.

    Args:
        base_url: up to and without /chat/completions, for example http://127.0.0.1:8000/v1; everything that is judged
            is sent there.
        model: its name at the server.
        template: what to judge by, with `{completion}`, and `{prompt}` and `{answer}` where they are wanted; the form
            of the reply is asked for behind it.
        scale: lowest and highest score, mapped to 0 and 1.
        json: ask for a JSON object, with `response_format`; otherwise for a last line `Score: N`, which servers without
            JSON mode and models that think aloud can write.
        api_key_env: NAME of the environment variable that holds the key; None = no key is sent.
        concurrency: requests under way.
        timeout: seconds for one request.
        deadline: seconds for one completion, from its first request to its last retry.
        retries: further requests after status 408, 425, 429, 5xx, a lost connection or a timeout.
        max_tokens, temperature, seed: of the judge's reply; None = not sent.
        input_price, output_price: of a million tokens, in any currency.
        max_cost: in that currency, since the start of the process; beyond it the run stops. Requests under way at that
            time are still paid.
    """

    in_process: ClassVar[bool] = True  # bound by the network; a step's completions share its connections and budget

    base_url: str
    model: str
    template: str = TEMPLATE
    scale: Sequence[float] = (0.0, 10.0)
    json: bool = True
    api_key_env: str | None = None
    concurrency: int = 16
    timeout: float = 60.0
    deadline: float = 300.0
    retries: int = 5
    max_tokens: int | None = 512
    temperature: float | None = 0.0
    seed: int | None = 0
    input_price: float = 0.0
    output_price: float = 0.0
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name, ok, expected in _expectations(self):
            if not ok:
                raise UserError(
                    f"reward judge_model: expected {name} to be {expected}, got {getattr(self, name)!r}: change it"
                )
        _check_url(self.base_url)
        _key(self.api_key_env)  # tells now when it is missing
        _ = self._meter  # made before any thread may ask for it

    def __call__(
        self,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        completion_ids: Sequence[Sequence[int]],
        *,
        answer: Sequence[Any] | None = None,
        **columns: Any,
    ) -> list[float | Invalid | None]:
        """A number in [0, 1], None or the reason why there is none, for each completion.

        Raises:
            UserError: the server refuses the requests as such (key, model, address), or the budget is used up.
        """
        rows = self._rows(prompts, completions, answer)
        asked = list(dict.fromkeys(row for row in rows if row is not None))
        replies = client.ask(self._endpoint(), [self._body(row) for row in asked], self._meter)
        scores = {row: self._score(reply) for row, reply in zip(asked, replies, strict=True)}
        found = [None if row is None else scores[row] for row in rows]
        self._meter.add(Usage(failures=sum(isinstance(score, Invalid) for score in found)))
        return found

    def usage(self) -> dict[str, float]:
        """Sums since the start: `judge/requests`, `judge/retries` (of these), `judge/failures` (completions without a
        score), `judge/prompt_tokens`, `judge/completion_tokens`, `judge/cost` in the currency of the prices."""
        return self._meter.measures()

    @cached_property
    def _meter(self) -> Meter:
        return Meter(self.input_price, self.output_price, self.max_cost)

    def _rows(
        self, prompts: Sequence[Text], completions: Sequence[Text], answers: Sequence[Any] | None
    ) -> list[_Row | None]:
        if "{answer}" not in self.template:
            answers = [""] * len(completions)
        if answers is None:
            raise UserError(
                "reward judge_model: expected problems with the column 'answer', which the template names, got none: "
                "rename the column or leave {answer} out"
            )
        return [
            None if gold is None else (_prompt_text(prompt), completion_text(completion), str(gold))
            for prompt, completion, gold in zip(prompts, completions, answers, strict=True)
        ]

    def _endpoint(self) -> client.Endpoint:
        url = self.base_url.rstrip("/") + "/chat/completions"
        key = _key(self.api_key_env)
        return client.Endpoint(url, key, self.concurrency, self.timeout, self.deadline, self.retries)

    def _body(self, row: _Row) -> Mapping[str, Any]:
        text = grading_text(self.template, dict(zip(PLACEHOLDERS, row, strict=True)), self.scale, as_json=self.json)
        settings = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "response_format": {"type": "json_object"} if self.json else None,
        }
        given = {name: value for name, value in settings.items() if value is not None}
        return {"model": self.model, "messages": [{"role": "user", "content": text}], **given}

    def _score(self, reply: str | Invalid) -> float | Invalid:
        if isinstance(reply, Invalid):
            return reply
        try:
            return read_score(reply, self.scale, as_json=self.json)
        except ValueError as error:
            return Invalid(str(error))


def _expectations(judge: JudgeModel) -> Iterator[tuple[str, bool, str]]:
    """Name of a setting, whether it is as it should be, and how it should be."""
    scale, priced = judge.scale, judge.input_price or judge.output_price
    is_scale = isinstance(scale, list | tuple) and len(scale) == 2 and all(map(_is_number, scale))
    yield "model", isinstance(judge.model, str) and bool(judge.model), "the name of a model at the server"
    yield (
        "template",
        isinstance(judge.template, str) and "{completion}" in judge.template,
        "text with the placeholder {completion}",
    )
    yield "scale", is_scale and scale[0] < scale[1], "two numbers, the lowest score and the highest"
    yield "json", isinstance(judge.json, bool), "true or false"
    yield "concurrency", _is_count(judge.concurrency, 1, 1024), "a number from 1 to 1024"
    yield "retries", _is_count(judge.retries, 0, 100), "a number from 0 to 100"
    yield "timeout", _is_number(judge.timeout) and judge.timeout > 0, "seconds, more than 0"
    yield "deadline", _is_number(judge.deadline) and judge.deadline > 0, "seconds, more than 0"
    yield "max_tokens", judge.max_tokens is None or _is_count(judge.max_tokens, 1, 1 << 20), "at least 1, or null"
    temperature = judge.temperature
    yield "temperature", temperature is None or (_is_number(temperature) and temperature >= 0), "at least 0, or null"
    yield "seed", judge.seed is None or _is_count(judge.seed, 0, 1 << 62), "a number from 0, or null"
    for name in ("input_price", "output_price"):
        price = getattr(judge, name)
        yield name, _is_number(price) and price >= 0, "the price of a million tokens"
    cost = judge.max_cost
    yield "max_cost", cost is None or (_is_number(cost) and cost > 0), "more than 0, or null"
    yield "max_cost", cost is None or bool(priced), "null as long as there are no prices"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _check_url(base_url: str) -> None:
    import httpx2

    try:
        url = httpx2.URL(base_url)
    except (httpx2.InvalidURL, TypeError):
        raise UserError(
            "reward judge_model: expected base_url to be an address such as http://127.0.0.1:8000/v1, got an "
            "unreadable one (not shown here, it may hold a password): mend it"
        ) from None
    if url.path.rstrip("/").endswith("/chat/completions"):
        raise UserError("reward judge_model: expected base_url without /chat/completions, got it: leave that part out")
    if url.userinfo or url.query or url.fragment:
        raise UserError(
            "reward judge_model: expected base_url without user, password, ? and #, got some (not shown here, they may "
            "be secret): give a key through api_key_env"
        )
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 1 << 16:
        raise UserError(
            f"reward judge_model: expected base_url to begin with http:// or https://, a host and a port below 65536, "
            f"got {url.scheme or 'nothing'!r}, {url.host!r} and {url.port}: for example http://127.0.0.1:8000/v1"
        )


def _key(variable: str | None) -> str:
    if variable is None:
        return ""
    if not re.fullmatch("[A-Z][A-Z0-9_]*", variable):
        raise UserError(
            "reward judge_model: expected api_key_env to be the NAME of an environment variable in capitals, such as "
            "JUDGE_KEY, got something else (not shown here, it may be the key): export the key and name the variable"
        )
    key = os.environ.get(variable, "").strip()
    if not re.fullmatch(r"[!-~]+", key):
        raise UserError(
            f"reward judge_model: expected a key in the environment variable {variable}, got "
            f"{'text that is no key' if key else 'none'}: export {variable}=..."
        )
    return key


def _prompt_text(prompt: Text) -> str:
    return prompt if isinstance(prompt, str) else "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
