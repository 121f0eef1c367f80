"""How a model's chat template writes conversations with tools: which calls it reads, and the ids of an observation.

What the policy sampled is never rendered again. The ids of an observation come from the template's difference on a
short synthetic conversation, so they depend on what is observed alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from grouprl.environments.base import Call, Schema
from grouprl.environments.calls import FORMS, THINK, THOUGHT, CallForm, Entry, before_calls, read_calls
from grouprl.forward.prefix import same_tokens
from grouprl.models.plain_text import encoded_pieces, probes_of, text_pieces
from grouprl.models.templates import try_template
from grouprl.types import Message, Problem, UserError

Messages = list[dict[str, Any]]
_NAME, _PARAMETER, _SAID, _OTHER, _ANSWER = "zq_probe", "zq_word", "zqSaidqz", "zqOtherqz", "zqAnswerqz"
_WORD = {"type": "string", "description": "The word."}
_PARAMETERS = {"type": "object", "properties": {_PARAMETER: _WORD}, "required": [_PARAMETER]}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "Finds it.", "parameters": _PARAMETERS}}
_CALL, _USER = Call(_NAME, {}), {"role": "user", "content": "Hello."}
_TURN: Messages = [_USER, {"role": "assistant", "content": _SAID}]
_PLAIN_NAME, _CALL_ID = re.compile(r"[\w.-]+"), re.compile(r"[A-Za-z0-9]{9}")  # Mistral's ids have 9 characters


@dataclass(frozen=True)
class ToolFormat:
    """The format of a tokenizer's chat template; `of` finds it."""

    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    end_ids: tuple[int, ...]  # tokens that end a turn
    form: CallForm | None = None  # None = the conversation has no tools
    tools: tuple[Schema, ...] = field(default=(), repr=False)  # of the conversation, whose types some forms need
    offers_always: bool = False  # whether the template fails without tools
    makes_many_calls: bool = True  # whether the template writes several calls in one turn
    takes_messages: bool = True  # whether a message may follow a turn without calls
    arguments_are_text: bool = False  # whether the template takes a call's arguments as a JSON text
    begins_thought: tuple[bool, bool] = (False, False)  # whether <think> ends what follows a message, a result
    rewrites: tuple[bool, bool] = (False, False)  # whether a message, a result, drops an earlier turn's thought

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, tools: Sequence[Schema] = (), end_ids: Sequence[int] = ()) -> ToolFormat:
        """Finds the format of a tokenizer, once, by rendering a synthetic conversation.

        Args:
            tokenizer: the policy's tokenizer, with the chat template of the run.
            tools: the tools of the environment; () = it has none, such as a text game.
            end_ids: the tokens that end a completion; () = the tokenizer's end token.

        Raises:
            UserError: the template drops tools or their results, or writes calls that cannot be read, or ends a turn
                without an end token.
        """
        if tokenizer.chat_template is None or not tokenizer.is_fast:
            got = "no template" if tokenizer.is_fast else "a tokenizer without offsets"
            raise _refusal(tokenizer, "renders a conversation", got)
        ends = tuple(end_ids) or (tokenizer.eos_token_id,)
        tool_format = _probed(tokenizer, str(tokenizer.chat_template), bool(tools), ends)
        return _with_tools(tool_format, json.dumps(list(map(dict, tools))))

    def calls(self, text: str, *, after_results: bool = False) -> list[Entry]:
        """Reads the text of a turn, of `turn_text`, which follows results of tools or a message; [] = no call."""
        if self.form is None:
            return []
        return read_calls(text, self.form, self.tools, in_thought=self.begins_thought[after_results])

    def said(self, text: str, *, after_results: bool = False) -> str:
        """What a turn says before its first call; see `calls`."""
        if self.form is None:
            return text
        return before_calls(text, self.form, in_thought=self.begins_thought[after_results]).rstrip()

    def thinks(self, text: str, *, after_results: bool = False) -> bool:
        """Whether a turn has a thought; see `calls`."""
        return self.begins_thought[after_results] or THINK in text

    def turn_text(self, token_ids: Sequence[int]) -> str:
        """The text of a turn without its end token. It has special tokens, because the marks of calls can be such."""
        ids = list(token_ids[:-1] if token_ids and token_ids[-1] in self.end_ids else token_ids)
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def observation_ids(self, results: Sequence[tuple[Entry, str]], *, ended: bool) -> tuple[int, ...]:
        """Token ids that follow a turn with calls: their results, and the beginning of the next turn.

        Args:
            results: the calls of the turn in their order, each with the text that its tool gave.
            ended: whether the turn's last token is an end token; else the ids begin with one.
        """
        turn, answers = self.exchange([call for call, _ in results])
        return self._ids(turn, answers, [text for _, text in results])[ended:]

    def message_ids(self, role: str, text: str, *, ended: bool) -> tuple[int, ...]:
        """Token ids that follow a turn without calls: a message, and the beginning of the next turn.

        Raises:
            UserError: the template writes an earlier turn in another way than the policy, as gpt-oss's does.
        """
        if not self.takes_messages:
            self.check(_TURN, [{"role": role}], "a message after a turn of the assistant")
        return self._ids(_TURN, [{"role": role}], [text])[ended:]

    def rewritten(
        self, read: Sequence[int], problem: Problem, said: Sequence[Message]
    ) -> tuple[tuple[int, ...], int | None]:
        """What the policy reads next where the template writes earlier turns anew, such as without their thoughts.

        Args:
            read: token ids that it has read so far.
            problem: its prompt and its tools.
            said: what followed: turns of the assistant, whose calls stand in the content as it wrote them, and others.

        Returns:
            Token ids up to the beginning of the next turn, and how many of `read` stay before them; None = all.
        """
        prompt = [dict(message) for message in problem.prompt if not isinstance(message, str)]
        shown = [_named(message) for message in said if message["role"] != "assistant"]

        def filled(contents: Sequence[str]) -> Messages:
            answers = iter(_filled(shown, contents))
            return [*prompt, *(dict(message) if message["role"] == "assistant" else next(answers) for message in said)]

        pieces = self._pieces(filled, [message["content"] for message in shown], problem.tools)
        ids = encoded_pieces(self.tokenizer, pieces)
        kept_count = same_tokens((tuple(read), ids))
        return ids[kept_count:], None if kept_count == len(read) else kept_count

    def written(self, content: str, calls: Sequence[Call]) -> str:
        """The text of an authored turn, as the template writes it without its end token.

        Raises:
            UserError: the template does not write the turn as it is, or not several calls in one.
        """
        if not calls:
            return content
        if len(calls) > 1 and not self.makes_many_calls:
            raise _refusal(self.tokenizer, "writes several calls in a turn", "one that writes one")
        turn, _ = self.exchange(calls)
        turn[1]["content"] = content
        for written, call in zip(turn[1]["tool_calls"], calls, strict=True):
            arguments = dict(call.arguments)
            written["function"]["arguments"] = json.dumps(arguments) if self.arguments_are_text else arguments
        text = self.rendered(turn, begin=False)
        prompt = self.rendered([_USER], begin=True, tools=True)
        if not text.startswith(prompt):  # it may end in <think>, and the turn begin with <think></think>
            same = next((index for index, pair in enumerate(zip(text, prompt, strict=False)) if len({*pair}) > 1), 0)
            prompt = prompt[: max(prompt.rfind(mark, 0, same) for mark in ("\n", ">", "]", "｜")) + 1]
        text = text[len(prompt) :]
        ends = [str(self.tokenizer.decode([token])) for token in self.end_ids]
        if (stop := max(text.rfind(end) for end in ends)) >= 0:  # else the end token is the next message's beginning
            text = text[:stop]
        if [call for call in self.calls(text) if isinstance(call, Call)] != [replace(call, id="") for call in calls]:
            raise _refusal(self.tokenizer, "writes calls as they are read", repr(text))
        return text

    def exchange(self, entries: Sequence[Entry]) -> tuple[Messages, Messages]:
        """A conversation that ends with calls, the probe in the last of them, and their answers without contents."""
        named = [_identity(call, index) for index, call in enumerate(entries)]
        written, calls = named if self.makes_many_calls else named[:1], []
        for number, (name, identity) in enumerate(written, 1):
            arguments = {_PARAMETER: _SAID if number == len(written) else _OTHER}
            function = {"name": name, "arguments": json.dumps(arguments) if self.arguments_are_text else arguments}
            calls.append({"type": "function", "id": identity, "function": function})
        answers = [{"role": "tool", "name": name, "tool_call_id": identity} for name, identity in named]
        return [_USER, {"role": "assistant", "content": "", "tool_calls": calls}], answers

    def rendered(
        self, messages: Messages, what: str = "it", *, begin: bool = True, tools: bool | Sequence[Schema] = False
    ) -> str:
        """Renders messages, with tools where one has calls or `tools` says so; raises a UserError that names `what`."""
        offers = tools is True or self.offers_always or any("tool_calls" in message for message in messages)
        offered = list(tools) if not isinstance(tools, bool) else [_TOOL] if offers else []
        render = self.tokenizer.apply_chat_template
        try:
            return str(render(messages, tools=offered or None, add_generation_prompt=begin, tokenize=False))
        except Exception as error:  # a template is a program, which can raise anything
            raise _refusal(self.tokenizer, f"renders {what}", f"{type(error).__name__}: {error}") from error

    def end_of_turn(self, text: str) -> tuple[int, int]:
        """From where to where the end token of the turn with the probe stands; (-1, -1) = nowhere."""
        said = text.find(_SAID)
        ends = [str(end) for end in self.tokenizer.convert_ids_to_tokens(list(self.end_ids))]
        spans = [(start, start + len(end)) for end in ends if (start := text.find(end, said)) >= 0]
        return min(spans) if said >= 0 and spans else (-1, -1)

    def _ids(self, turn: Messages, answers: Messages, texts: Sequence[str]) -> tuple[int, ...]:
        """Token ids from the turn's end token on."""
        return encoded_pieces(self.tokenizer, self._pieces(lambda contents: turn + _filled(answers, contents), texts))

    def _pieces(
        self, filled: Callable[[Sequence[str]], Messages], texts: Sequence[str], tools: Sequence[Schema] | None = None
    ) -> list[str]:
        """The pieces of a rendered text that are encoded one by one, as in `text_pieces`.

        With `tools` those of all that is rendered, else those from the probe's end token on.
        """
        render = partial(self.rendered, tools=False if tools is None else tools)
        return text_pieces(
            lambda contents: render(filled(contents)),
            texts,
            lambda skeleton: self.end_of_turn(skeleton)[0] if tools is None else 0,
        )

    def check(self, turn: Messages, answers: Messages, what: str) -> bool:
        """Whether <think> ends answers to a turn; raises a UserError if the template does not write them apart."""
        probes = probes_of(len(answers))
        alone = self.rendered(turn, what, begin=False)
        full = self.rendered(turn + _filled(answers, probes), what)
        (_, end), (begin, start) = self.end_of_turn(alone), self.end_of_turn(full)
        # GLM's turns end with the token that the next message begins with: alone there is none.
        said = alone[alone.find(_SAID) : len(alone) if end < 0 else end]
        said_again = full[full.find(_SAID) : begin if end < 0 else start]
        if start < 0 or said != said_again or (end >= 0 and alone[end:].strip()):
            ends = " or ".join(map(str, self.tokenizer.convert_ids_to_tokens(list(self.end_ids))))
            raise _refusal(self.tokenizer, f"ends each turn of the assistant with {ends}", repr(alone[-40:]))
        if any(full.count(probe) != 1 or full.find(probe) < start for probe in probes):
            raise _refusal(self.tokenizer, f"renders {what}", repr(full[start:]))
        apart = [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (full[:start], full)]
        if [*apart[0], *self._ids(turn, answers, probes)[1:]] != apart[1]:
            raise _refusal(self.tokenizer, f"renders {what} apart from the turn before", "other token ids together")
        return full.rstrip().endswith(THINK)


def _filled(answers: Messages, contents: Sequence[str]) -> Messages:
    return [answer | {"content": content} for answer, content in zip(answers, contents, strict=True)]


def _identity(call: Entry, index: int) -> tuple[str, str]:
    """The name and the id that a template may write beside a result: the policy's own where they are plain words."""
    name, call_id = (call.tool, call.id) if isinstance(call, Call) else ("", "")
    plain = name if _PLAIN_NAME.fullmatch(name) else "unknown"
    return plain, call_id if _CALL_ID.fullmatch(call_id) else f"call{index:05d}"


def _refusal(tokenizer: PreTrainedTokenizerBase, expected: str, got: str) -> UserError:
    return UserError(
        f"the chat template of {tokenizer.name_or_path}: expected one that {expected}, got {got}: "
        "set model.chat_template=tools, or use an instruction-tuned model whose template has tools"
    )


@lru_cache(maxsize=8)
def _probed(tokenizer: PreTrainedTokenizerBase, template: str, has_tools: bool, end_ids: tuple[int, ...]) -> ToolFormat:
    try_template([*_TURN, _USER], tokenizer, [_TOOL] if has_tools else [])
    tool_format = ToolFormat(tokenizer, end_ids)
    if has_tools:
        tool_format = _with_form(tool_format)
        exchanges = [tool_format.exchange([_CALL] * count) for count in (1, 2)]
        after_results = [tool_format.check(*pair, f"{len(pair[1])} results of tools") for pair in exchanges]
    after_message = False
    try:
        after_message = tool_format.check(_TURN, [{"role": "user"}], "a message after a turn of the assistant")
    except UserError:
        if not has_tools:  # which end an episode with their last turn
            raise
        tool_format = replace(tool_format, takes_messages=False)
    return replace(
        tool_format,
        begins_thought=(after_message, after_results[0] if has_tools else after_message),
        rewrites=(_rewrites(tool_format, "user"), has_tools and _rewrites(tool_format, "tool")),
    )


@lru_cache(maxsize=64)
def _with_tools(tool_format: ToolFormat, tools: str) -> ToolFormat:
    """The format with the tools of a conversation, from their JSON: it is looked up in every turn."""
    return replace(tool_format, tools=tuple(json.loads(tools)))


def _with_form(bare: ToolFormat) -> ToolFormat:
    """The format with the form of calls that the template writes."""
    prompts = [bare.rendered([_USER], "tools", begin=begin, tools=True) for begin in (True, False)]
    if any(shown not in prompts[0] for shown in (_NAME, _PARAMETER)):
        raise _refusal(bare.tokenizer, "renders tools", "a prompt without them")
    fails = True
    with suppress(UserError):
        fails = not bare.rendered(_TURN)
    got = "none"
    for many, as_text in ((True, False), (True, True), (False, False), (False, True)):
        tried = replace(bare, offers_always=fails, makes_many_calls=many, arguments_are_text=as_text)
        with suppress(UserError):
            text = tried.rendered(tried.exchange([_CALL] * 2)[0], begin=False)
            prompt = next((candidate for candidate in prompts if text.startswith(candidate)), "")
            got = text[len(prompt) :]
            written = [Call(_NAME, {_PARAMETER: word}) for word in ((_OTHER, _SAID) if many else (_SAID,))]
            if form := next((form for form in FORMS if read_calls(got, form, [_TOOL]) == written), None):
                return replace(tried, form=form)
    forms = ", ".join(form.name for form in FORMS)
    raise _refusal(bare.tokenizer, f"writes calls of tools in a known form ({forms})", repr(got))


def _rewrites(bare: ToolFormat, role: str) -> bool:
    """Whether the template drops the thought of an assistant's turn when a turn of this role, user or tool, follows."""
    content, text = f"{THINK}\n{_OTHER}\n{THOUGHT}\n\n{_ANSWER}", ""
    turn, answers = bare.exchange([_CALL]) if role == "tool" else (_TURN, [{"role": role}])
    with suppress(UserError):  # beside a call some templates take no content
        text = bare.rendered([_USER, *_filled([turn[1], *answers], [content, "Go on."])], tools=True)
    if _ANSWER not in text or _OTHER in text:
        return False
    said: Messages = [{"role": "assistant", "content": content}, {"role": role, "content": "Go on."}]
    bare.rendered([_USER, *map(_named, said)], "an earlier turn as the policy wrote it", tools=True)
    return True


def _named(message: Message) -> dict[str, Any]:
    """The message with what some templates need of a result."""
    name, identity = _identity(_CALL, 0)
    return {**message, **({"name": name, "tool_call_id": identity} if message["role"] == "tool" else {})}
