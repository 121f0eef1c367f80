"""Short stories about somebody who gains, loses, multiplies and shares things: the language of `word_problems`.

A story is a chain: somebody has a number of things, and every operation changes that number. Clauses are verb phrases,
so that the same clauses make "John has 9 pens, loses 2, and then gives 3 to Mary" and "John has 9 pens. He loses 2.".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from random import Random

SYMBOLS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = _words(
    "Mary Anna Lucy Emma Ruth Nina Sara Julia Kate Alice Clara Maya Rosa Eva Lily Zoe Grace Amy Leah Dora Helen Jane "
    "Laura Mia Nora Olga Sofia Tina Vera Wendy"
)
BOYS = _words(
    "John Kevin Tom Ben Paul Leo Max Sam Peter David Omar Adam Luke Ivan Carl Hugo Noah Jack Ali Eric Felix George "
    "Henry Igor James Mark Oscar Ryan Simon Victor"
)
ITEMS = _words(
    "apples pens books marbles stickers cards coins shells stamps toys pears cookies balloons beads buttons candles "
    "carrots crayons cups eggs flowers lemons muffins nuts oranges peaches pencils photos plums postcards ribbons "
    "rings rocks seeds stones tickets bricks cakes candies caps cherries clips dolls keys kites leaves magnets masks "
    "onions pins plates potatoes puzzles spoons tomatoes"
)
CONTAINERS = {"boxes": "box", "bags": "bag", "baskets": "basket", "jars": "jar", "trays": "tray", "packs": "pack"}

WEIGHTS = {"+": 3, "-": 3, "*": 2, "/": 2}  # weights of the draw among the possible operations

NOW = ("How many {items} does {name} have now?", "How many {items} does {name} have in the end?")
LEFT = (*NOW, "How many are left?", "How many {items} are left?", "How many {items} does {name} have left?")
TOTAL = (*NOW, "How many {items} does {name} have in total?", "How many {items} does {name} have altogether?")


@dataclass(frozen=True)
class Operation:
    """One operation of the chain. `left` is the number of things before it."""

    left: int
    symbol: str  # "+" | "-" | "*" | "/"
    right: int

    @property
    def result(self) -> int:
        """The number of things after the operation."""
        return SYMBOLS[self.symbol](self.left, self.right)


@dataclass(frozen=True)
class Story:
    """A question and the chain of operations that answers it."""

    question: str
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Clause:
    """A verb phrase; {k} is the number of the operation, {a} the number of things before it."""

    text: str
    questions: tuple[str, ...] = NOW
    becomes: str = ""  # "owner": the story continues with {friend}; "items": it continues with {others}
    is_last: bool = False  # no clause can follow


STARTS = (
    "has {a} {items}",
    "starts the day with {a} {items}",
    "owns {a} {items}",
    "buys {a} {items} at the market",
    "collects {a} {items}",
    "brings {a} {items} to school",
)
PRODUCT_STARTS = (
    "packs {a} {boxes} with {k} {items} each",
    "has {a} {boxes} with {k} {items} in each {box}",
    "fills {a} {boxes} with {k} {items} each",
    "buys {a} {boxes} of {items} with {k} in each {box}",
)
CLAUSES = {
    "+": (
        Clause("finds {k} more", TOTAL),
        Clause("finds {k} more {items} on the way home", TOTAL),
        Clause("buys {k} more {items}", TOTAL),
        Clause("gets {k} from {friend}", TOTAL),
        Clause("gets {k} more {items} as a gift", TOTAL),
        Clause("wins {k} more in a game", TOTAL),
        Clause("picks up {k} more {items}", TOTAL),
        Clause("borrows {k} {items} from {friend}", TOTAL),
    ),
    "-": (
        Clause("gives {k} to {friend}", LEFT),
        Clause("gives {k} {items} to {friend}", LEFT),
        Clause("loses {k}", LEFT),
        Clause("loses {k} {items} on the way home", LEFT),
        Clause("sells {k} to {friend}", LEFT),
        Clause("lends {k} {items} to {friend}", LEFT),
        Clause("throws away {k} {items}", LEFT),
        Clause("leaves {k} at school", LEFT),
    ),
    "*": (
        Clause("has {k} times as many {items} as {name}", becomes="owner"),
        Clause("collects {k} times as many {items} as {name} has", becomes="owner"),
        Clause("trades each of the {items} for {k} {others}", becomes="items"),
        Clause("sells all of the {items} for {k} dollars each", ("How many dollars does {name} get?",), is_last=True),
    ),
    "/": (
        Clause("splits all of the {items} into {k} equal piles and keeps only one pile"),
        Clause("divides the {items} equally into {k} {boxes} and keeps only one {box}"),
        Clause(
            "shares all of the {items} equally among {k} friends",
            ("How many {items} does each friend get?", "How many does each of the friends get?"),
            is_last=True,
        ),
        Clause(
            "packs all of the {items} equally into {k} {boxes}", ("How many {items} are in each {box}?",), is_last=True
        ),
    ),
}
# Distractors. A sentence about a person opens the story, where no pronoun can mean somebody else.
PERSONAL = ("{name} is {k} years old.", "{name} has {k} cousins.", "{name} lives {k} blocks from the park.")
AROUND = (
    "There are {k} shops on the street.",
    "There are {k} children in the yard.",
    "The bus ride takes {k} minutes.",
    "It is {k} degrees outside.",
    "The school is {k} years old.",
    "There are {k} trees near the house.",
    "The store opens in {k} minutes.",
)
LINKS = ("{They} ", "Then {they} ", "After that, {they} ", "Later, {they} ", "Next, {they} ", "{name} ")


def make_story(rng: Random, difficulty: int) -> Story:
    """One story of 1 to `difficulty` operations; every intermediate number is whole and in 1..25*difficulty."""
    limit, largest = 25 * difficulty, 5 + 5 * difficulty
    count = rng.randint(1, difficulty)
    product_start = rng.random() < 0.25  # the story opens with a product such as 4 boxes of 6
    value = rng.randint(2, 9) if product_start else rng.randint(4, limit * 3 // 5)
    chain = [Operation(value, "*", rng.randint(2, min(9, limit // value)))] if product_start else []
    while len(chain) < count:
        value = chain[-1].result if chain else value
        choices = {
            "+": range(2, min(largest, limit - value) + 1),
            "-": range(2, min(largest, value - 1) + 1),
            "*": range(2, min(9, limit // value) + 1) if value > 1 else (),
            "/": [k for k in range(2, 10) if value >= 2 * k and value % k == 0],
        }
        weights = [share if choices[symbol] else 0 for symbol, share in WEIGHTS.items()]
        symbol = rng.choices(list(choices), weights)[0]
        chain.append(Operation(value, symbol, rng.choice(choices[symbol])))
    operations = tuple(chain)

    # A clause of each operation, about its owner.
    first, rest = operations[0], operations[1:] if product_start else operations
    clauses: dict[str, list[str]] = {rng.choice(GIRLS + BOYS): []}  # of each owner
    items, boxes = rng.choice(ITEMS), rng.choice(list(CONTAINERS))
    opening = rng.choice(PRODUCT_STARTS if product_start else STARTS)
    questions: tuple[str, ...] = TOTAL if product_start else NOW
    names = _names(rng, clauses, items, boxes)
    clauses[names["name"]].append(opening.format(a=first.left, k=first.right, **names))
    for operation in rest:
        final = operation is rest[-1]
        clause = rng.choice([clause for clause in CLAUSES[operation.symbol] if final or not clause.is_last])
        names = _names(rng, clauses, items, boxes)
        owner = names["friend" if clause.becomes == "owner" else "name"]
        clauses.setdefault(owner, []).append(clause.text.format(k=operation.right, **names))
        items = names["others" if clause.becomes == "items" else "items"]
        questions = clause.questions
    question = rng.choice(questions).format(**_names(rng, clauses, items, boxes))
    # The text in one of three forms, with 0 to 2 distractors.
    form = rng.choice(("list", "sentences", "if"))
    sentences: list[str] = []
    for owner, owner_clauses in clauses.items():
        they = "she" if owner in GIRLS else "he"
        if form == "sentences":
            links = [rng.choice(LINKS).format(They=they.capitalize(), they=they, name=owner) for _ in owner_clauses[1:]]
            sentences += [f"{link}{clause}." for link, clause in zip([f"{owner} ", *links], owner_clauses, strict=True)]
        else:
            comma = "," if len(owner_clauses) > 2 else ""
            *earlier, joined = owner_clauses
            joined = f"{', '.join(earlier)}{comma} and then {joined}" if earlier else joined
            sentences.append(f"{owner} {joined}.")
    if form == "if":
        last = sentences.pop()
        question = f"If {last[:-1]}, {question[0].lower()}{question[1:]}"
    for text in rng.sample(PERSONAL + AROUND, rng.choices((0, 1, 2), (5, 4, 2))[0]):
        where = 0 if text in PERSONAL else rng.randint(0, len(sentences))
        sentences.insert(where, text.format(name=next(iter(clauses)), k=rng.randint(3, 15)))
    return Story(" ".join([*sentences, question]), operations)


def _names(rng: Random, owners: Collection[str], items: str, boxes: str) -> dict[str, str]:
    """The words for the next clause, which is about the last owner."""
    return {
        "name": list(owners)[-1],
        "items": items,
        "boxes": boxes,
        "box": CONTAINERS[boxes],
        "friend": rng.choice([name for name in GIRLS + BOYS if name not in owners]),
        "others": rng.choice([other for other in ITEMS if other != items]),
    }
