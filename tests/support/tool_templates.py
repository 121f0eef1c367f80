"""Chat templates with tools in the styles of model families, written for these tests, each with a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from grouprl.models.names import TOOLS
from grouprl.models.templates import prepare_template
from grouprl.supervised.scratch import new_tokenizer
from tiny import TEXTS

FOLDER = Path(__file__).parents[1] / "environments" / "templates"


@dataclass(frozen=True)
class ToolStyle:
    """A template, the special tokens of its family, the first of which ends a turn, and its other added tokens."""

    template: str  # its file, or the built-in one
    special: tuple[str, ...]
    added: tuple[str, ...] = ()
    form: str = "Hermes"
    many: bool = True  # whether a turn can have several calls
    rewrites: tuple[bool, bool] = (False, False)  # whether a message, a result, drops an earlier thought
    begins_thought: tuple[bool, bool] = (False, False)  # after a message, after a result
    arguments: Mapping[str, bool | int | float | str] = field(default_factory=dict)  # of the template
    ends: tuple[str, ...] = ()  # tokens that end a turn, if not the first special one alone
    takes_messages: bool = True  # whether a message may follow a turn without calls

    def end_ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int]:
        """The ids of `ends`."""
        return [int(tokenizer.convert_tokens_to_ids(end)) for end in self.ends]


_CHATML = ("<|im_end|>", "<|im_start|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_LLAMA = ("<|eot_id|>", "<s>", "<|eom_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>")
_MISTRAL = ("</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]")
_MISTRAL += ("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[CALL_ID]", "[ARGS]")
_DEEPSEEK = ("<｜end▁of▁sentence｜>", "<s>")
_PARTS = "calls▁begin calls▁end call▁begin call▁end sep outputs▁begin outputs▁end output▁begin output▁end"
_MARKS = (*(f"<｜tool▁{part}｜>" for part in _PARTS.split(" ")), "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>")
_BOTH = (True, True)
_GLM = ("<|user|>", "<|observation|>", "<|assistant|>", "<|system|>")
_HARMONY = ("<|call|>", "<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>")
_GEMMA = ("<|tool_response>", "<s>", "<turn|>", "<|turn>", "<tool_response|>", "<|tool_call>", "<tool_call|>", '<|"|>')
_LFM = (*_CHATML, "<s>", "<|tool_call_start|>", "<|tool_call_end|>")
_MUSE = ("<|eot|>", "<s>", "<|eom|>", "<|start|>", "<|message|>")
STYLES = {
    "qwen2": ToolStyle("qwen2", _CHATML, _TAGS),
    "qwen3": ToolStyle("qwen3", _CHATML, _TAGS, rewrites=(True, False)),
    "llama": ToolStyle("llama", _LLAMA, form="Llama", many=False),
    "mistral": ToolStyle("mistral", _MISTRAL, form="Mistral"),
    "mistral_args": ToolStyle("mistral_args", _MISTRAL, form="Mistral"),
    "hermes": ToolStyle("hermes", (*_CHATML, "<s>")),
    "deepseek_r1": ToolStyle("deepseek", _DEEPSEEK, _MARKS, "DeepSeek", True, _BOTH, (True, False), {"r1": True}),
    "deepseek_v31": ToolStyle("deepseek", _DEEPSEEK, _MARKS, "DeepSeek", True, _BOTH, arguments={"r1": False}),
    "xml": ToolStyle("xml", _CHATML, _TAGS, "Qwen XML", rewrites=(True, False), begins_thought=_BOTH),
    "glm": ToolStyle("glm", _GLM, _TAGS, "GLM", ends=_GLM[:2]),
    "harmony": ToolStyle("harmony", _HARMONY, (), "gpt-oss", many=False, ends=_HARMONY[:2], takes_messages=False),
    "gemma": ToolStyle("gemma", _GEMMA, (), "Gemma", ends=(_GEMMA[0], _GEMMA[2])),
    "lfm": ToolStyle("lfm", _LFM, (), "LFM"),
    "muse": ToolStyle("muse", _MUSE, (), "Muse"),
    TOOLS: ToolStyle(TOOLS, _CHATML),
}


def spaced_tokenizer(scheme: str) -> PreTrainedTokenizerBase:
    """A tokenizer in the style of SentencePiece: a space before a text, and <unk> for an unknown letter."""
    backend = Tokenizer(BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=scheme)
    letters = [chr(code) for code in range(33, 127)]
    backend.train_from_iterator(
        TEXTS * 3, BpeTrainer(vocab_size=400, special_tokens=["<unk>"], initial_alphabet=letters, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


def tool_tokenizer(
    style: ToolStyle, tokenizer: PreTrainedTokenizerBase | None = None, *, strips: bool = False
) -> PreTrainedTokenizerBase:
    """The tiny tokenizer, or another, with a family's tokens and template.

    `strips`: white space after a special token belongs to it, as in Phi-3.
    """
    tokenizer = tokenizer or new_tokenizer(TEXTS * 3, 320)
    tokenizer.add_tokens([AddedToken(one, special=True, normalized=False, rstrip=strips) for one in style.special])
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in style.added])
    tokenizer.eos_token, tokenizer.name_or_path = style.special[0], "a-model"
    if "<s>" in style.special:
        tokenizer.bos_token = "<s>"
    file = TOOLS if style.template == TOOLS else str(FOLDER / f"{style.template}.jinja")
    prepare_template(tokenizer, "a-model", file, style.arguments)
    return tokenizer
