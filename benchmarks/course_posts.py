"""Writes posts to summarize, in the form of those of the Hugging Face course's GRPO exercise, which is not copied here.

    python benchmarks/course_posts.py posts        # posts/train.jsonl with 256 prompts, posts/test.jsonl with 64

A post is a place, a title, four sentences about somebody and a question, and ends in "TL;DR:", where the policy goes
on; 107 to 137 tokens of SmolLM2's tokenizer. The same posts every time; no post of one split is in the other.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from random import Random

COUNTS = {"train": 256, "test": 64}
PEOPLE = ("my roommate", "my sister", "my neighbor", "my best friend", "my coworker", "my cousin", "my landlord")
PLACES = {
    "r/advice": (
        "borrowed my bicycle without asking",
        "keeps playing loud music after midnight",
        "has not paid back the money for the concert tickets",
        "told everybody about the job interview that I wanted to keep secret",
        "lets the dog sleep on my side of the couch",
        "eats the lunch that I cook for the whole week",
    ),
    "r/work": (
        "took credit for the report that I wrote",
        "wants me to cover every second weekend",
        "leaves the hardest customers to me",
        "answers my messages only when the manager reads along",
        "moved my desk next to the printer",
        "changed the schedule while I was away",
    ),
    "r/travel": (
        "canceled our trip to the lake two days before",
        "booked a hotel that is an hour away from the beach",
        "wants to bring three more people along",
        "lost the car keys on the second morning",
        "refuses to share the cost of the fuel",
        "planned every hour of the holiday without me",
    ),
}
SINCE = (
    "It started about three months ago, right after I came back from a long visit to my parents.",
    "This has been going on since last summer, and at first I thought that it would stop on its own.",
    "The first time it happened I laughed about it, because we have known each other for nine years.",
    "I noticed it on a Tuesday, when I was late for class and already in a bad mood.",
)
TRIED = (
    "I wrote a friendly note, then a less friendly one, and in the end I talked to {who} in the kitchen.",
    "So far I have tried to be polite, to be clear, and to say nothing at all for a whole week.",
    "I offered to split the costs, to change my own plans, and to find somebody who can help us.",
    "My first idea was to ask a friend who knows both of us, but that only made the whole thing bigger.",
)
ANSWER = (
    "The answer was that I am too sensitive and that nobody else has ever complained.",
    "I was promised that it would never happen again, and it happened again four days later.",
    "We had a long talk, both of us apologized, and nothing has changed since then.",
    "I got a shrug, a slice of cold pizza, and the advice to relax a little.",
)
NOW = (
    "Now we barely speak, and I find reasons to stay out of the house until late in the evening.",
    "Next month there is a birthday party, and all of our friends expect both of us to be there.",
    "I do not want to lose a person who helped me a lot when I was sick two winters ago.",
    "I have started to look for another place, although I cannot really afford to move this year.",
)
QUESTION = (
    "How do I end this without a fight?",
    "Am I wrong to be this angry about it?",
    "What would you do in my place?",
    "Is there a way to say no and still be friends?",
)


def post(split: str, index: int) -> str:
    """One prompt."""
    draw = Random(f"{split}/{index}")
    place = draw.choice(sorted(PLACES))
    who, what = draw.choice(PEOPLE), draw.choice(PLACES[place])
    told = [draw.choice(part) for part in (SINCE, TRIED, ANSWER, NOW)]
    del told[draw.randrange(len(told))]
    body = (*told, draw.choice(QUESTION))
    text = " ".join((f"{who.capitalize()} {what}.", *body)).format(who=who)
    return f"SUBREDDIT: {place}\n\nTITLE: {who.capitalize()} {what}\n\nPOST: {text}\n\nTL;DR:"


def posts() -> dict[str, list[str]]:
    """The prompts of each split, all different."""
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for split, count in COUNTS.items():
        found[split] = []
        index = 0
        while len(found[split]) < count:
            one, index = post(split, index), index + 1
            if one not in seen:
                seen.add(one)
                found[split].append(one)
    return found


def write(folder: Path) -> None:
    """Writes a file for each split."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, prompts in posts().items():
        lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Writes them into the folder that is named."""
    if sys.argv[1:] == ["--smoke"]:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            print(post("train", 0))
        return
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    write(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
