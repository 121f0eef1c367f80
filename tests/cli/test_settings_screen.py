"""`grouprl settings`: every key once, its choices before its meaning, nothing for a default that there is not."""

from grouprl.algorithms.named import NAMED
from grouprl.cli.settings import algorithm_rows, setting_rows


def test_each_key_is_listed_once_and_has_a_meaning() -> None:
    keys = [key for key, _, _ in setting_rows()]
    assert len(keys) == len(set(keys))
    assert [key for key, _, meaning in setting_rows() if not meaning] == []


def test_a_key_that_must_be_given_has_no_default() -> None:
    (shown,) = (default for key, default, _ in setting_rows() if key == "rewards.0.name")
    assert shown == ""


def test_choices_stand_before_the_meaning() -> None:
    meanings = {key: meaning for key, _, meaning in setting_rows()}
    assert meanings["learner.schedule"].startswith("constant | linear | cosine: ")
    # Several kinds of a part, each with one value of its own.
    assert meanings["algorithm.surrogate"].startswith("clip | cispo | plain | sapo | gmpo: ")
    # A part that an algorithm may be without.
    assert meanings["algorithm.critic_kind"].startswith("none | copy | shared: ")
    assert "|" not in meanings["algorithm.clip_high"]


def test_the_value_of_each_algorithm_is_one_of_the_choices() -> None:
    for name, algorithm in NAMED.items():
        for key, value, meaning in algorithm_rows(algorithm):
            if " | " in meaning:
                assert value in meaning.partition(":")[0].split(" | "), (name, key)
