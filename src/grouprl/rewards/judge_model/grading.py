"""A reward from a judge model behind an OpenAI-compatible endpoint."""

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
    """The score of a completion from a judge model, scaled to [0, 1].

    One call sends all its completions concurrently, equal ones once. A completion without a score (no reply in time, a
    reply in another form, a score outside the scale) is `Invalid` with its reason, never 0. Prompt, completion and
    answer are in fenced blocks; see `rewards.judge_model.text.grading_text` and docs/judge.md.

    Range: [0, 1]; None for a problem without an answer when the template has `{answer}`. Failure modes: training finds
    exploits of the judge model: text that demands full marks, length, confidence, its own style, a fake solution.
    Scores drift when the server changes the model, and few servers give the same score twice. Add a rule reward and
    watch held-out accuracy. A run is not bit-reproducible without a seed, and with most hosted models not even with it.

    Args:
        base_url: address without /chat/completions, for example http://127.0.0.1:8000/v1; completions are sent there.
        model: its name at the server.
        template: the grading instruction with `{completion}`, and optionally `{prompt}` and `{answer}`; a request for
            the form of the reply is appended.
        scale: lowest and highest score, mapped to 0 and 1.
        json: whether to request a JSON object, with `response_format`; otherwise a last line `Score: N`, for servers
            without JSON mode and models that write their reasoning first.
        api_key_env: NAME of the environment variable that holds the key; None = no key is sent.
        concurrency: requests at once.
        timeout: seconds for one request.
        deadline: seconds for one completion, from its first request to its last retry.
        retries: further requests after status 408, 425, 429, 5xx, a lost connection or a timeout.
        max_tokens, temperature, seed: sampling parameters of the judge model; None = not sent.
        input_price, output_price: price of a million tokens, in any currency.
        max_cost: largest cost in that currency since the start of the process; beyond it the run stops. Requests in
            progress at that time still cost.
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
        _key(self.api_key_env)  # raises now if the key is missing
        _ = self._meter  # created before threads use it

    def __call__(
        self,
        prompts: Sequence[Text],
        completions: Sequence[Text],
        completion_ids: Sequence[Sequence[int]],
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
        replies = client.ask(self._endpoint(), [self._body(row) for row in asked], self._meter)
        scores = {row: self._score(reply) for row, reply in zip(asked, replies, strict=True)}
        found = [None if row is None else scores[row] for row in rows]
        self._meter.add(Usage(failures=sum(isinstance(score, Invalid) for score in found)))
        return found

    def usage(self) -> dict[str, float]:
        """Returns sums since the start: `judge/requests`, `judge/retries` among them, `judge/failures` (completions
        without a score), `judge/prompt_tokens`, `judge/completion_tokens`, `judge/cost` in the prices' currency."""
        return self._meter.metrics()

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
                "rename the column, or remove {answer} from the template"
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
    """Yields, for each setting, its name, whether it is valid, and the expected value."""
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
            "unreadable one (not shown here, it may contain a password): fix it"
        ) from None
    if url.path.rstrip("/").endswith("/chat/completions"):
        raise UserError("reward judge_model: expected base_url without /chat/completions, got it: remove that part")
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
