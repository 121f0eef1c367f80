"""The prefix tree: what of a sequence is read, and that keys and values are those of the whole sequence."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grouprl.forward.attention import Layout, hidden_states
from grouprl.forward.layouts import TreeLayout
from grouprl.forward.prefix import read_prefix
from grouprl.models.load import load_model
from grouprl.rollout.tree import Ids, PrefixTree

CPU = torch.device("cpu")
PROMPT = (40, 41, 42, 43)


class Reader:
    """Reads with a model, and notes how many tokens."""

    def __init__(self, folder: Path) -> None:
        self._read = partial(hidden_states, load_model(str(folder), device=CPU))
        self.sizes: list[int] = []

    def __call__(self, ids_S: Tensor, position_ids_S: Tensor, layout: Layout) -> Tensor:
        self.sizes.append(len(ids_S))
        return self._read(ids_S, position_ids_S, layout)

    @torch.no_grad()
    def through(self, tree: PrefixTree, *sequences: Ids) -> int:
        """The number of tokens that the tree read of the sequences; compares what it gives with reading all."""
        before, at = tree.computed, len(self.sizes)
        paths = tree.read(self, sequences, CPU)
        assert sum(self.sizes[at:]) == tree.computed - before
        for ids, path in zip(sequences, paths, strict=True):
            whole = read_prefix(self._read, ids, CPU)
            pairs = torch.stack([torch.stack(pair) for pair in zip(whole.keys, whole.values, strict=True)])
            torch.testing.assert_close(path.span(0, len(ids)), pairs, atol=1e-5, rtol=1e-5)
            alone = TreeLayout((len(ids),), ((),), CPU)
            last_H = self._read(torch.tensor(ids), alone.position_ids_S, alone)[-1]
            torch.testing.assert_close(path.last_H, last_H, atol=1e-5, rtol=1e-5)
        return tree.computed - before


@pytest.fixture
def reader(tiny: Path) -> Reader:
    return Reader(tiny)


def tree_of(limit: int = 100) -> PrefixTree:
    return PrefixTree((), None, limit, torch.float32)


def test_a_sequence_shares_the_longest_path_that_was_read(reader: Reader):
    tree = tree_of()
    assert reader.through(tree, PROMPT) == 4
    assert reader.through(tree, (*PROMPT, 50, 51, 52)) == 3
    assert reader.through(tree, (*PROMPT, 50, 51, 60, 61)) == 2
    assert reader.through(tree, (*PROMPT, 50, 51, 60, 61, 62)) == 1
    assert reader.through(tree, (40, 41, 7)) == 1
    assert reader.through(tree, (*PROMPT[:2], 50, 51)) == 2  # 50 comes behind the whole prompt alone
    assert reader.through(tree, PROMPT[:3]) == 1  # the hidden state of its last token is not that of the path's
    assert reader.through(tree, (8, *PROMPT)) == 5


def test_what_is_read_at_once_and_the_same_is_read_once(reader: Reader):
    assert reader.through(tree := tree_of(), PROMPT, (*PROMPT, 50), PROMPT) == 4 + 5
    assert reader.through(tree, PROMPT, (*PROMPT, 50)) == 0


def test_of_what_was_added_the_last_token_is_read(reader: Reader):
    """Its hidden state is needed, and the sampler keeps keys and values alone."""
    tree, ids = tree_of(), (*PROMPT, 50, 51)
    reader.through(tree, PROMPT)
    kept = read_prefix(reader._read, ids, CPU)
    pairs = torch.stack([torch.stack(pair) for pair in zip(kept.keys, kept.values, strict=True)])[:, :, 4:]
    tree.add(ids, pairs)
    assert tree.kept == 6
    assert reader.through(tree, ids) == 1
    tree.add(ids, pairs)  # another episode wrote the same
    assert tree.kept == 6
    assert reader.through(tree, ids) == 0


def test_the_leaf_used_longest_ago_goes_first(reader: Reader):
    tree = tree_of(limit=8)
    reader.through(tree, PROMPT)
    reader.through(tree, (*PROMPT, 50, 51))
    reader.through(tree, (*PROMPT, 60, 61))
    reader.through(tree, (*PROMPT, 50, 51))
    reader.through(tree, (*PROMPT, 70))
    assert tree.kept == 7
    assert [reader.through(tree, (*PROMPT, *end)) for end in ((50, 51), (70,), (60, 61))] == [0, 0, 2]


def test_what_others_follow_stays_until_they_are_gone(reader: Reader):
    """Of 8 tokens one too many: the leaf goes, although the prompt before it was used no later."""
    tree = tree_of(limit=7)
    for ids in (PROMPT, (*PROMPT, 50), (7, 8, 9)):
        reader.through(tree, ids)
    assert tree.kept == 7
    assert reader.through(tree, (*PROMPT, 50)) == 1


def test_the_tree_holds_no_more_memory_than_that_of_its_tokens(reader: Reader):
    """A part of a tensor holds all of it: here that of the prompt's tokens, which every end was read behind."""
    tree, ends = tree_of(), [(*PROMPT, 50, end) for end in (60, 61, 62)]
    reader.through(tree, (*PROMPT, 50))
    reader.through(tree, *ends)
    paths = tree.read(reader, ends, CPU)
    parts = [part for path in paths for part in path.parts]
    held = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
    assert sum(held.values()) == (5 + 3) * parts[0][:, :, :1].numel() * parts[0].element_size()
    assert all(path.last_H.untyped_storage().nbytes() == path.last_H.nbytes for path in paths)


def test_tokens_whose_past_is_gone_are_not_kept(reader: Reader):
    tree = tree_of()
    reader.through(tree, PROMPT)
    tree.add((*PROMPT, 50, 51), torch.zeros(2, 2, 1, 2, 16))
    assert tree.kept == 4
