"""The judge over an endpoint, against a server on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chat_server import HANGS, ChatServer, Reply, says, scores
from endpoint_judging import KEY, by_completion, judge, judge_of, judged, short_waits  # noqa: F401  short_waits is a fixture
from grouprl.checks.judge_model import client
from grouprl.checks.judge_model.grading import JudgeModel, read_score
from grouprl.config.run import ScoringConfig
from grouprl.rewards.calls import Invalid
from grouprl.rewards.configured import open_scorer
from grouprl.rewards.functions import WeightedReward
from grouprl.types import Problem, UserError
from groups import group_of

# Scores and requests


def test_scores_come_in_the_order_of_the_completions_scaled_to_one():
    replies = {"a": scores(0, seconds=0.05), "b": scores(2.5), "c": scores(10, seconds=0.02)}
    with ChatServer(by_completion(replies)) as server:
        assert judged(judge(server), ["a", "b", "c", "b"]) == [0.0, 0.25, 1.0, 0.25]
        assert judged(judge(server, scale=[-10, 10]), ["a", "b", "c"]) == [0.5, 0.625, 1.0]
        assert judged(judge(server), []) == []


def test_equal_completions_of_a_prompt_are_asked_about_once():
    with ChatServer(lambda asked: scores(asked.number)) as server:
        first, second, third = judged(judge(server), ["a", "a", "a"])
        assert first == second == third == 0.0
        assert len(server.asked) == 1


def test_a_request_has_the_settings_and_nothing_that_was_not_set():
    with ChatServer(lambda asked: scores(5)) as server:
        judged(judge(server), ["four"])
        judged(judge(server, json=False, temperature=None, seed=None, max_tokens=None, api_key_env="JUDGE_KEY"), ["4"])
        first, second = server.asked
    assert first.path == "/v1/chat/completions"
    assert "Authorization" not in first.headers
    settings = {name: value for name, value in first.body.items() if name != "messages"}
    assert settings == {
        "model": "m",
        "max_tokens": 512,
        "temperature": 0.0,
        "seed": 0,
        "response_format": {"type": "json_object"},
    }
    assert second.body.keys() == {"model", "messages"}
    assert second.headers["Authorization"] == f"Bearer {KEY}"
    assert first.blocks == {"prompt": "2 + 2 = ?", "completion": "four"}


def test_chat_prompts_and_the_answer_reach_the_judge():
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2 = ?"}]
    completion = [{"role": "assistant", "content": "4"}]
    with ChatServer(lambda asked: scores(10)) as server:
        reward = judge(server, template="{answer}{prompt}{completion}")
        found = reward(
            prompts=[turns, turns], completions=[completion, completion], completion_ids=[[1], [1]], answer=[4, None]
        )
        assert found == [1.0, None]
        assert [asked.blocks for asked in server.asked] == [
            {"prompt": "system: Be brief.\n\nuser: 2 + 2 = ?", "completion": "4", "answer": "4"}
        ]
        with pytest.raises(UserError, match="expected problems with the column 'answer'"):
            judged(reward, ["4"])


def test_as_many_requests_as_allowed_are_under_way_and_no_more():
    with ChatServer(lambda asked: scores(5, seconds=0.05)) as server:
        start = time.monotonic()
        assert judged(judge(server, concurrency=8), [f"{n}" for n in range(40)]) == [0.5] * 40
        assert time.monotonic() - start < 40 * 0.05
        assert server.most == 8


def test_it_works_where_an_event_loop_is_running_already():
    async def cell(reward: JudgeModel) -> list[Any]:
        return judged(reward, ["a"])

    with ChatServer(lambda asked: scores(5)) as server:
        assert asyncio.run(cell(judge(server))) == [0.5]


def test_one_judge_can_be_called_from_several_threads():
    with ChatServer(lambda asked: scores(5)) as server:
        reward = judge(server)
        threads = [threading.Thread(target=judged, args=(reward, [f"{n}{m}" for m in "abcd"])) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert reward.usage()["judge/requests"] == 16


def test_outcomes_of_a_step_hold_the_values_and_the_reasons():
    with ChatServer(by_completion({"good": scores(10), "unread": says("no")})) as server:
        rewards = [WeightedReward("judge_model", judge(server), 2.0)]
        with open_scorer(rewards, limits=ScoringConfig(max_invalid=1.0)) as opened:
            ((good, unread),) = opened.finish([opened.begin(group_of(Problem("p", "?"), "good", "unread"))])
    assert (good.total, good.components) == (2.0, {"judge_model": 1.0})
    assert (unread.valid, unread.components) == (False, {"judge_model": None})
    assert unread.reason == "judge_model expected {\"score\": N} from the judge model, got 'no'"


# Retries and time limits


@pytest.mark.parametrize("failure", [Reply(status=429), Reply(status=503), Reply(status=408), Reply(lost=True)])
def test_what_may_pass_is_asked_again(failure: Reply):
    with ChatServer(lambda asked: failure if asked.number < 2 else scores(5)) as server:
        reward = judge(server)
        assert judged(reward, ["a"]) == [0.5]
        usage = reward.usage()
        assert (usage["judge/requests"], usage["judge/retries"], usage["judge/failures"]) == (3, 2, 0)
        assert len({json.dumps(asked.body) for asked in server.asked}) == 1


def test_retries_end():
    busy = Reply(b'{"error": {"message": "too many\\u001b[31m requests"}}', status=429)
    with ChatServer(lambda asked: busy) as server:
        reward = judge(server, retries=2)
        reason = "got no answer to 3 requests, at last: status 429: too many [31m requests"
        assert judged(reward, ["a"]) == [Invalid(reason)]
        assert len(server.asked) == 3
        assert reward.usage()["judge/failures"] == 1


def test_retry_after_is_honored():
    with ChatServer(
        lambda asked: scores(5) if asked.number else Reply(status=429, headers={"Retry-After": "0.5"})
    ) as server:
        start = time.monotonic()
        assert judged(judge(server), ["a"]) == [0.5]
        assert 0.5 <= time.monotonic() - start < 2.0


def test_a_retry_after_beyond_the_deadline_is_not_waited_for():
    with ChatServer(lambda asked: Reply(b"later", status=429, headers={"Retry-After": "3600"})) as server:
        start = time.monotonic()
        (found,) = judged(judge(server), ["a"])
        assert found == Invalid("got no answer to 1 request, at last: status 429: later")
        assert time.monotonic() - start < 3.0


def test_waits_double_up_to_a_limit_and_come_on_top_of_what_the_server_asks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "FIRST_WAIT", 0.5)
    assert [client.wait_seconds(n, 0.0, 0.0) for n in (0, 1, 2, 5, 6, 99)] == [0.25, 0.5, 1.0, 8.0, 15.0, 15.0]
    assert client.wait_seconds(1, 0.0, 0.5) == 0.75
    assert client.wait_seconds(0, 7.0, 0.0) == 7.25


def test_retry_after_is_seconds_or_a_date():
    now = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
    told = {
        "120": 120.0,
        " 0.5": 0.5,
        "Tue, 01 Jan 2030 12:00:30 GMT": 30.0,
        "Tue, 01 Jan 2030 12:00:30 -0000": 30.0,
        "Tue, 01 Jan 2030 14:00:30 +0200": 30.0,
        "Tue, 01 Jan 2030 11:00:00 GMT": 0.0,
        "": 0.0,
        "soon": 0.0,
        "-5": 0.0,
        "1e9": 0.0,
    }
    assert {header: client.retry_after_seconds(header, now) for header in told} == told
    assert client.retry_after_seconds("120", now + timedelta(days=1)) == 120.0


@pytest.mark.parametrize("slow", [HANGS, replace(scores(5), pause=0.05)], ids=["silent", "byte by byte"])
def test_a_request_ends_at_its_limit_and_the_others_keep_their_values(slow: Reply):
    with ChatServer(by_completion({"a": scores(5), "slow": slow, "b": scores(10)})) as server:
        start = time.monotonic()
        found = judged(judge(server, timeout=0.3, retries=1), ["a", "slow", "b"])
        assert found == [0.5, Invalid("got no answer to 2 requests, at last: no reply in time"), 1.0]
        assert 0.6 <= time.monotonic() - start < 2.0


@pytest.mark.parametrize(("timeout", "requests"), [(0.2, {2, 3}), (60.0, {1})])
def test_all_requests_for_a_completion_end_at_its_deadline(timeout: float, requests: set[int]):
    with ChatServer(lambda asked: HANGS) as server:
        start = time.monotonic()
        (found,) = judged(judge(server, timeout=timeout, deadline=0.5, retries=100), ["a"])
        assert isinstance(found, Invalid)
        assert 0.3 <= time.monotonic() - start < 1.5
        assert len(server.asked) in requests


def test_a_dead_server_is_not_asked_about_every_completion():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # nobody answers there once it is closed
    reward = judge_of(base_url=f"http://127.0.0.1:{port}", model="m", retries=1, concurrency=2)
    found = judged(reward, [f"{n}" for n in range(100)])
    assert all(isinstance(value, Invalid) for value in found)
    assert "ConnectError" in found[0].reason
    assert found[-1] == Invalid("was not asked: the server failed for 8 completions in a row")
    assert 16 <= reward.usage()["judge/requests"] <= 18
    assert reward.usage()["judge/failures"] == 100


def test_a_few_failures_between_answers_do_not_end_the_asking():
    with ChatServer(lambda asked: Reply(status=500) if asked.number % 4 else scores(5)) as server:
        found = judged(judge(server, retries=0, concurrency=1), [f"{n}" for n in range(40)])
        assert found.count(0.5) == 10
        assert len(server.asked) == 40


def test_an_interrupt_ends_it_at_once():
    with ChatServer(lambda asked: HANGS) as server:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        start = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            judged(judge(server), ["a", "b"])
        assert time.monotonic() - start < 2.0
    assert [thread.name for thread in threading.enumerate() if "reward-coroutine" in thread.name] == []


# Replies that cannot be read


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "expected {\"score\": N} from the judge model, got ''"),
        ("7", "expected {\"score\": N} from the judge model, got '7'"),
        ("Score: 7", "expected {\"score\": N} from the judge model, got 'Score: 7'"),
        ('{"score": "7"}', 'expected {"score": N} from the judge model, got \'{"score": "7"}\''),
        ('{"score": true}', 'expected {"score": N} from the judge model, got \'{"score": true}\''),
        ('{"score": 2, "score": 7}', 'expected {"score": N} from the judge model, got \'{"score": 2, "score": 7}\''),
        ('{"score": 7} and more', 'expected {"score": N} from the judge model, got \'{"score": 7} and more\''),
        ('[{"score": 7}]', 'expected {"score": N} from the judge model, got \'[{"score": 7}]\''),
        ('{"score": 11}', "expected a score from 0 to 10 from the judge model, got 11"),
        ('{"score": -0.5}', "expected a score from 0 to 10 from the judge model, got -0.5"),
        ('{"score": NaN}', "expected a score from 0 to 10 from the judge model, got nan"),
        ('{"score": 1e999}', "expected a score from 0 to 10 from the judge model, got inf"),
    ],
)
def test_a_score_in_another_form_is_none(content: str, reason: str):
    with ChatServer(by_completion({"a": says(content), "b": scores(5)})) as server:
        reward = judge(server)
        assert judged(reward, ["a", "b"]) == [Invalid(reason), 0.5]
        assert len(server.asked) == 2
        assert reward.usage()["judge/failures"] == 1


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("Fine.\nScore: 7", 0.7), ("Fine.\n\n**Score:** 7.5 \n\n", 0.75), ("score: 10.", 1.0),
        ("It says 'Score: 10'.\nScore: 10\nNot so.\nScore: 2", 0.2), ("<think>Score: 9</think>\nScore: 0", 0.0),
        ("Score: 10\nI quoted that.", None), ("Score: 7/10", None), ("Score: seven", None), ("Score: ٧", None),
        ("My Score: 7", None), ("Score: 10.5", None), ("Score:" + " " * 100_000 + "7", None), ("", None),
    ],
)  # fmt: skip
def test_without_json_the_score_is_the_last_line(reply: str, expected: float | None):
    if expected is not None:
        assert read_score(reply, (0, 10), as_json=False) == pytest.approx(expected)
        return
    with pytest.raises(ValueError, match="from the judge model, got"):
        read_score(reply, (0, 10), as_json=False)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply(b"<html>hello"), "got a reply without choices[0].message.content: <html>hello"),
        (Reply(b"\xff\xfe"), "got a reply without choices[0].message.content: \N{REPLACEMENT CHARACTER}"),
        (Reply(b"[" * 500_000), "got a reply without choices[0].message.content: [[["),
        (Reply(b'{"choices": []}'), 'got a reply without choices[0].message.content: {"choices": []}'),
        (Reply(b'{"error": {"message": "model is gone"}}'), "got a reply without choices[0].message.content: model"),
        (says(None), "got a reply without choices[0].message.content"),
        (Reply(b" " * (client.LONGEST_REPLY + 1)), "got a reply of more than 1048576 bytes"),
    ],
    ids=["html", "bytes", "deep", "empty", "error", "no text", "huge"],
)
def test_a_body_in_another_form_is_no_score(reply: Reply, reason: str):
    with ChatServer(by_completion({"a": reply, "b": scores(5)})) as server:
        broken, fine = judged(judge(server), ["a", "b"])
        assert isinstance(broken, Invalid)
        assert broken.reason.startswith(reason)
        assert len(broken.reason) < 400
        assert fine == 0.5


def test_a_reply_cut_at_max_tokens_is_no_score_even_if_it_looks_like_one():
    cut = {"choices": [{"message": {"content": "It quotes:\nScore: 10"}, "finish_reason": "length"}]}
    with ChatServer(lambda asked: Reply(json.dumps(cut).encode())) as server:
        assert judged(judge(server, json=False), ["a"]) == [Invalid("got a reply that was cut at max_tokens")]
