from __future__ import annotations

import time

import pytest

from grouprl.checks.unit_tests import program

RIGHT = "def f(x):\n    return x + 1\n"
WRONG = "def f(x):\n    return 0\n"


def fenced(code: str, opening: str = "```python", closing: str = "```") -> str:
    return f"{opening}\n{code}{closing}\n"


def indented(text: str, by: str) -> str:
    return "".join(f"{by}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n```\nor\n```python\nb\n```\nprints\n```\nc\n```", "b\n"),
        ("```py\na\n```\n```json\n{}\n```", "a\n"),
        ("```\na\n```\n```\nb\n```", "b\n"),
        ("  ```Python  \n  a\n  ```  ", "a\n"),
        ("```python\na\n```\n```python\nnever closed", "a\n"),
        ("```python\nnever closed", "```python\nnever closed"),
        ("```python-repl\n>>> a\n```\n```pycon\n>>> b\n```\n```\nc\n```", "c\n"),
        ("x = 1", "x = 1"),
        ("", ""),
    ],
)
def test_without_the_function_it_is_the_last_closed_block(text: str, code: str):
    assert program(text, "f") == code


@pytest.mark.parametrize(
    "text",
    [
        fenced(RIGHT) + fenced("print(f(1))\n"),
        fenced(RIGHT) + "Prints:\n" + fenced("2\n", "```") + fenced("assert f(1) == 2\n"),
        fenced(RIGHT) + fenced(">>> f(1)\n2\n"),
        fenced(RIGHT) + fenced("def f_test():\n    assert f(1) == 2\n") + fenced("f == 1\nff = f(1)\n"),
        fenced(RIGHT, "```") + "Use:\n" + fenced("from solution import f\nprint(f(1))\n"),
        fenced(WRONG) + "No, better:\n" + fenced(RIGHT),
        fenced(RIGHT) + fenced(WRONG, "```") + fenced(WRONG, "```text"),
    ],
)
def test_the_last_block_that_defines_the_function_is_taken(text: str):
    assert program(text, "f") == RIGHT


@pytest.mark.parametrize(
    "definition",
    ["async def f(x):\n    return x\n", "class f:\n    pass\n", "f = lambda x: x\n", "f: object = abs\n", "f=abs\n"],
)
def test_there_are_several_ways_to_define_a_function(definition: str):
    assert program(fenced(definition) + fenced("print(f(1))\n"), "f") == definition


@pytest.mark.parametrize(
    "text",
    [
        fenced(RIGHT, "~~~python", "~~~"),
        fenced(RIGHT, "````python", "````"),
        fenced(RIGHT, "```python", "`````"),
        fenced(RIGHT, "```python title=a.py"),
        fenced(RIGHT, "```{.python}"),
        fenced(RIGHT, "``` {.python .numberLines}"),
        fenced(RIGHT, "```{python}"),
        fenced(RIGHT, "```python:a.py"),
        fenced(RIGHT, "```Python3.11"),
        "1. So:\n" + indented(fenced(RIGHT), "   ") + "2. Done.",
        "- So:\n\n" + indented(fenced(RIGHT), "\t"),
        "```x``` is how.\n" + fenced(RIGHT),
        "Use ```f(1)``` to call\n" + fenced(RIGHT) + "done",
        "\ufeff" + fenced(RIGHT),
        fenced("\ufeff" + RIGHT),
        "\ufeff" + RIGHT,
    ],
)
def test_fences_of_every_kind_are_read(text: str):
    assert program(text, "f") == RIGHT


def test_a_fence_within_the_program_does_not_close_it():
    code = 'def f(x):\n    """Adds.\n\n    ```\n    f(1)\n    ```\n    ~~~\n    """\n    return x + 1\n'
    assert program(fenced(code), "f") == code
    four = "text = '''\n```\n'''\n" + RIGHT
    assert program(fenced(four, "````python", "````"), "f") == four


def test_lines_end_as_they_did():
    assert program(fenced(RIGHT).replace("\n", "\r\n"), "f") == RIGHT.replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<think>```python\nno\n```</think><answer>```python\nyes\n```</answer>", "yes\n"),
        ("<think>```python\nno\n```</think>```python\nyes\n```", "yes\n"),
        ("<think>~~~python\nno\n~~~</think>\n```python\nyes\n```", "yes\n"),
        ("```python\nno\n```<answer>x = 1</answer>", "x = 1"),
        (f"<answer>{fenced(WRONG)}</answer><answer>\n{fenced(RIGHT)}</answer> so", RIGHT),
        (f"<answer>\n{fenced(RIGHT)}</answer>\n{fenced(WRONG)}", RIGHT),
        (f"Don't guess. <answer>{fenced(RIGHT)}", RIGHT),
        (fenced(f"# <answer>\n{RIGHT}"), f"# <answer>\n{RIGHT}"),
        (fenced(f"T = '<answer>'\n{RIGHT}"), f"T = '<answer>'\n{RIGHT}"),
        (fenced(f'T = "put <answer>"\n{RIGHT}'), f'T = "put <answer>"\n{RIGHT}'),
        (f"<answer>\n{fenced(f'# </answer> {RIGHT}')}</answer>", f"# </answer> {RIGHT}"),
    ],
)
def test_an_answer_is_the_only_place_that_is_looked_at(text: str, code: str):
    assert program(text, "f") == code


@pytest.mark.parametrize(
    "text",
    [
        *("```python\nx\n" * 20_000, "```\ndef f\n" * 20_000, "```a" * 50_000, "\n" * 200_000),
        *("<answer>" * 20_000, "a" * 400_000, "`" * 400_000, "```python" + " " * 400_000),
        *(fenced(f"def{' ' * 400_000}g\n"), fenced(f"f{' ' * 400_000}g\n"), fenced("f:" * 200_000)),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_nothing_takes_long(text: str):
    started = time.perf_counter()
    program(text, "f")
    assert time.perf_counter() - started < 2.0  # what grows with the square takes minutes
