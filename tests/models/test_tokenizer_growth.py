"""What a tokenizer may make of a text is bounded by its file: the library itself is the oracle of each bound."""

import base64
import json
import unicodedata
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from grouprl import UserError
from grouprl.models.load import load_tokenizer
from grouprl.received.files import refuse_tokenizer
from tiny import tiny_model_folder

PATH = Path("tokenizer.json")


def sequence(kind: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", kind: list(steps)}


def replace(literal: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": literal}, "content": content}


def regex(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def prepend(text: str) -> dict[str, Any]:
    return {"type": "Prepend", "prepend": text}


def metaspace(replacement: str = "▁", scheme: str = "always") -> dict[str, Any]:
    return {"type": "Metaspace", "replacement": replacement, "prepend_scheme": scheme, "split": True}


def precompiled(*texts: str, trie: bytes = b"") -> dict[str, Any]:
    table = len(trie).to_bytes(4, "little") + trie + b"".join(text.encode() + b"\0" for text in texts)
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def split(pattern: str, behavior: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def template(single: str, pair: str, **ids: int) -> dict[str, Any]:
    """A template of pieces: `$A`, or the name of a special token, which stands for so many tokens."""
    forms = [
        [
            {"Sequence": {"id": name[1:], "type_id": 0}}
            if name[0] == "$"
            else {"SpecialToken": {"id": name, "type_id": 0}}
            for name in form.split()
        ]
        for form in (single, pair)
    ]
    special = {name: {"id": name, "ids": [0] * count, "tokens": [name] * count} for name, count in ids.items()}
    return {"type": "TemplateProcessing", "single": forms[0], "pair": forms[1], "special_tokens": special}


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WORDS = {"type": "WordLevel", "vocab": {"a": 0, "<unk>": 1}, "unk_token": "<unk>"}
LLAMA_DECODER = sequence(
    "decoders",
    replace("▁", " "),
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
)
BERT = {
    "type": "BertNormalizer",
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
    "lowercase": True,
}
NFKC_LONGEST = unicodedata.normalize("NFKC", "\ufdfa")  # 33 bytes of 3, the most of all characters


def fields(**parts: Any) -> dict[str, Any]:
    empty = dict.fromkeys(("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder"))
    return {"version": "1.0", **empty, "added_tokens": [], "model": WORDS, **parts}


FAMILIES = {
    "Llama 2, Phi-3": fields(
        normalizer=sequence("normalizers", prepend("▁"), replace(" ", "▁")),
        post_processor=template("<s> $A", "<s> $A <s> $B", **{"<s>": 1}),
        decoder=LLAMA_DECODER,
    ),
    "Llama 3": fields(
        pre_tokenizer=sequence("pretokenizers", split(r"\p{N}{1,3}"), BYTES),
        post_processor=sequence("processors", BYTES, template("<s> $A", "<s> $A <s> $B", **{"<s>": 1})),
        decoder=BYTES,
    ),
    "Qwen": fields(
        normalizer={"type": "NFC"},
        pre_tokenizer=sequence("pretokenizers", split(r"\p{N}"), BYTES),
        post_processor=BYTES,
        decoder=BYTES,
    ),
    "Gemma": fields(
        normalizer=replace(" ", "▁"),
        pre_tokenizer={"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        post_processor=template("<bos> $A", "<bos> $A <bos> $B", **{"<bos>": 1}),
        decoder=sequence("decoders", replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"}),
    ),
    "DeepSeek": fields(
        normalizer=sequence("normalizers"),
        pre_tokenizer=sequence("pretokenizers", split("[\r\n]"), {"type": "Digits", "individual_digits": True}, BYTES),
        post_processor=BYTES,
        decoder=BYTES,
    ),
    "SmolLM2": fields(
        pre_tokenizer=sequence("pretokenizers", {"type": "Digits", "individual_digits": True}, BYTES), decoder=BYTES
    ),
    "Mistral 7B 0.3": fields(pre_tokenizer=metaspace(scheme="first"), decoder=LLAMA_DECODER),
    "XGLM, T5": fields(
        normalizer=sequence("normalizers", precompiled("a", NFKC_LONGEST), regex(" {2,}", "▁")),
        pre_tokenizer=sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace()),
        post_processor=template("$A </s>", "$A </s> $B </s>", **{"</s>": 1}),
        decoder=metaspace(),
    ),
    "BERT": fields(
        normalizer=BERT,
        pre_tokenizer={"type": "BertPreTokenizer"},
        post_processor=template("C $A S", "C $A S $B S", C=1, S=1),
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": True},
    ),
    "RoBERTa": fields(
        pre_tokenizer=BYTES,
        post_processor={
            "type": "RobertaProcessing",
            "sep": ["</s>", 2],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": False,
        },
        decoder=BYTES,
    ),
    "NFKC, lower case": fields(
        normalizer=sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"}), pre_tokenizer=BYTES
    ),
    "padded, cut": fields(
        padding={
            "strategy": {"Fixed": 512},
            "direction": "Right",
            "pad_to_multiple_of": 8,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        },
        truncation={"direction": "Right", "max_length": 512, "strategy": "LongestFirst", "stride": 0},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_known_tokenizers_are_accepted(family: str):
    text = json.dumps(FAMILIES[family])
    if "Precompiled" not in text:  # the table here has no trie
        Tokenizer.from_str(text)
    refuse_tokenizer(text.encode(), PATH)


X60, TYPE = replace("x", "x" * 60), "expected steps of a tokenizer with type and settings"
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "prepend, then replace": (
        {"normalizer": sequence("normalizers", prepend("x" * 1_000_000), replace("x", "x" * 256))},
        "2.56e",
    ),
    "prepend": ({"normalizer": prepend("x" * 10_000)}, "1e\\+04 bytes"),
    "many prepends": ({"normalizer": sequence("normalizers", *[prepend("x" * 1000)] * 5)}, "5e\\+03 bytes"),
    "beside nothing, then prepend": (
        {"normalizer": sequence("normalizers", regex("$", "x" * 900), prepend("x" * 3300))},
        "901 times and 4.2e\\+03 bytes",
    ),
    "replace": ({"normalizer": replace("x", "x" * 2000)}, "2e\\+03 times"),
    "replace nothing": ({"normalizer": replace("", "x" * 2000)}, "2e\\+03 times"),
    "a regex that looks ahead": ({"normalizer": regex("(?=x)", "y" * 2000)}, "2e\\+03 times"),
    "sequences in sequences": (
        {"normalizer": sequence("normalizers", sequence("normalizers", X60), sequence("normalizers", X60))},
        "3.6e",
    ),
    "over two parts": ({"normalizer": X60, "pre_tokenizer": sequence("pretokenizers", *[metaspace()] * 3)}, "3.84e"),
    "many metaspaces": ({"pre_tokenizer": sequence("pretokenizers", *[metaspace()] * 8)}, "times"),
    "many byte levels": ({"pre_tokenizer": sequence("pretokenizers", *[BYTES] * 12)}, "times"),
    "many byte levels of a normalizer": (
        {"normalizer": sequence("normalizers", *[{"type": "ByteLevel"}] * 12)},
        "times",
    ),
    "precompiled": ({"normalizer": precompiled("x" * 2000)}, "2e\\+03 times"),
    "precompiled twice": ({"normalizer": sequence("normalizers", *[precompiled("x" * 40)] * 2)}, "1.6e"),
    "compatible forms": (
        {"normalizer": sequence("normalizers", *[{"type": "NFKD"}, replace("x", "\ufdfa")] * 4)},
        "times",
    ),
    "a special token of many": ({"post_processor": template("S $A", "$A $B", S=100_000)}, "1e\\+05 bytes"),
    "a special token many times": ({"post_processor": template("S " * 50_000, "$A $B", S=1)}, "5e\\+04 bytes"),
    "a template of many copies": ({"post_processor": template("$A " * 2000, "$A $B")}, "2e\\+03 times"),
    "only of pairs": ({"post_processor": template("$A", "S $A $B", S=100_000)}, "1e\\+05 bytes"),
    "templates in templates": ({"post_processor": sequence("processors", *[template("$A " * 50, "$A")] * 2)}, "2.5e"),
    "padding": ({"padding": {"strategy": {"Fixed": 1 << 40}, "pad_to_multiple_of": None}}, "1.1e\\+12 bytes"),
    "padding to a multiple": ({"padding": {"strategy": "BatchLongest", "pad_to_multiple_of": 1 << 40}}, "1.1e\\+12"),
    "pieces that overlap": ({"truncation": {"max_length": 100_000, "stride": 99_999}}, "1e\\+05 times"),
    "a decoder": ({"decoder": replace("x", "x" * 2000)}, "decoder: .*2e\\+03 times"),
    "decoders": ({"decoder": sequence("decoders", sequence("decoders", X60), X60)}, "decoder: .*3.6e"),
    "a decoder that doubles": (
        {"decoder": sequence("decoders", *[{"type": "BPEDecoder", "suffix": ""}] * 20)},
        "1.05e",
    ),
    "a long token": ({"model": {"type": "BPE", "vocab": {"x" * 100_000: 0}, "merges": []}}, "vocabulary: .*1e\\+05"),
    "a long token of a list": (
        {"model": {"type": "Unigram", "vocab": [["x" * 100_000, 0.0]], "unk_id": 0}},
        "vocabulary",
    ),
    "a long prefix": (
        {"model": {"type": "BPE", "vocab": {}, "continuing_subword_prefix": "x" * 100_000}},
        "vocabulary",
    ),
    "a long added token": ({"added_tokens": [{"id": 5, "content": "x" * 100_000}]}, "vocabulary"),
    "a long added token of a configuration": (
        {"added_tokens_decoder": {"5": {"content": "x" * 100_000}}},
        "vocabulary",
    ),
    "long tokens, decoded": ({"model": {"vocab": {"x" * 4000: 0}}, "decoder": X60}, "decoder: .*2.4e"),
    "many added tokens": (
        {"added_tokens": [{"id": 5, "content": "x" * 90}] * 90_000, "normalizer": X60},
        "added tokens",
    ),
    "one added token too many": (
        {"added_tokens": [{"id": 5, "content": "x"}] * 100_001},
        "at most 100000 added tokens",
    ),
    "many short added tokens, each behind a long text": (
        {"added_tokens": [{"id": 5, "content": "x"}] * 80_000, "normalizer": prepend("x" * 1000)},
        "added tokens",
    ),
    "a step without a type": ({"normalizer": {"prepend": "x"}}, TYPE),
    "a step without a type, inside": ({"normalizer": sequence("normalizers", {"prepend": "x" * 9})}, TYPE),
    "an unknown type": ({"normalizer": {"type": "Repeat", "times": 9}}, f"{TYPE}, got 'Repeat'"),
    "settings of another kind": ({"normalizer": {"type": "Prepend", "prepend": ["x"]}}, TYPE),
    "a template without its token": ({"post_processor": {**template("S $A", "$A"), "special_tokens": {}}}, TYPE),
    "two lists": ({"normalizer": {**sequence("normalizers", X60), "decoders": []}}, TYPE),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_pipeline_that_makes_a_text_too_long_is_refused(kind: str):
    changes, said = HOSTILE[kind]
    with pytest.raises(UserError, match=said):
        refuse_tokenizer(json.dumps({**fields(), **changes}).encode(), PATH)


def test_the_texts_of_a_table_begin_behind_its_trie():
    for longest in (1024, 1025):  # the most that is accepted, and one more
        data = json.dumps(fields(normalizer=precompiled("x" * longest, trie=b"\xff" * 8))).encode()
        with nullcontext() if longest == 1024 else pytest.raises(UserError, match=r"1\.02e\+03 times"):
            refuse_tokenizer(data, PATH)


def test_a_model_with_such_a_pipeline_does_not_load(tmp_path: Path):
    file = tiny_model_folder(tmp_path / "model") / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | HOSTILE["prepend, then replace"][0]))
    with pytest.raises(UserError, match=r"768 times and 7\.68e"):
        load_tokenizer(str(file.parent))


@pytest.mark.parametrize("hidden", [b'"skipped": ' + b"9" * 5000, b'"skipped": "\xff"'])
def test_what_this_parser_cannot_read_another_one_may(hidden: bytes):
    text = json.dumps({**fields(), **HOSTILE["replace"][0]}).encode()
    with pytest.raises(UserError, match="expected JSON"):
        refuse_tokenizer(text[:-1] + b", " + hidden + b"}", PATH)


def test_the_bounds_of_fixed_steps_hold_for_every_character():
    """Of one character repeated, by the library; the table of growth is refused at 1,024 times."""
    fixed = {"NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "Lowercase": 1.5, "StripAccents": 1.0, "Nmt": 1.0}
    steps = {name: (getattr(normalizers, name)(), most) for name, most in fixed.items()}
    steps |= {
        "BertNormalizer": (normalizers.BertNormalizer(strip_accents=False), 7.5),
        "ByteLevel": (normalizers.ByteLevel(), 3.0),
    }
    # The characters that any normal form changes are in these planes, most of them in the first.
    letters = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x12000), *range(0x1D000, 0x1F300))]
    for name, (step, most) in steps.items():
        worst = max(letters, key=lambda one: len(step.normalize_str(one).encode()) / len(one.encode()))
        assert len(step.normalize_str(worst).encode()) <= most * len(worst.encode()), (name, worst)
