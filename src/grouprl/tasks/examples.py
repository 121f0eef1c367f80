"""Worked examples before each prompt (few-shot prompting, arXiv:2005.14165): turns of a chat, or text before a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from grouprl.tasks.base import Split, Task, derived, each, solution
from grouprl.tasks.files import column, read_rows, text_or_messages
from grouprl.types import Message, Problem, UserError


def with_examples(task: Task, examples: int | str) -> Task:
    """The task with worked examples in every prompt, the same ones, between its system message and its question.

    Args:
        task: any task with solutions.
        examples: the first problems of the train split with their solutions, which are then trained on no more; or a
            data file with the columns `prompt` and `completion`.

    Raises:
        UserError: there are too few train problems, one has no solution, the file cannot be read, or it shows a
            held-out problem (when this is read).
    """
    if examples == 0:
        return task
    if isinstance(examples, str):
        shown = []
        try:
            for row in read_rows(examples):
                prompt = text_or_messages(row, "prompt")
                if not isinstance(prompt, str) and all(message["role"] == "system" for message in prompt):
                    raise UserError(
                        f"{row[0]}: expected a question in column 'prompt', got a system message alone: add it"
                    )
                shown.append((Problem(row[0], prompt), column(row, "completion")))
        except UserError as error:
            raise UserError(f"task.examples: {error}") from error
    else:
        train = task.problems("train")
        if len(train) <= examples:
            raise UserError(
                f"task.examples: expected fewer than the {len(train)} train problems of {task.name}, got {examples}: "
                "lower it, or name a file with examples"
            )
        shown = [(problem, solution(task, problem, "task.examples")) for problem in train[:examples]]
    questions = {_question(example) for example, _ in shown}

    def problems(split: Split) -> Sequence[Problem]:
        first = examples if split == "train" and isinstance(examples, int) else 0

        def change(problem: Problem) -> Problem:
            if split != "train" and _question(problem) in questions:
                raise UserError(
                    f"task.examples: expected examples that are not evaluated, got one that is {problem.where}: remove "
                    f"{f'it from {examples}, or ' * isinstance(examples, str)}the problem from the {split} split"
                )
            if isinstance(problem.prompt, str):
                texts = []
                for example, solution in shown:
                    has_space = example.prompt_text[-1:].isspace() or solution[:1].isspace()
                    texts.append(f"{example.prompt_text}{'' if has_space else ' '}{solution}")
                return replace(problem, prompt="\n\n".join((*texts, problem.prompt)))
            turns = [message for example, solution in shown for message in _turns(example, solution)]
            first = 1 if problem.prompt[0]["role"] == "system" else 0
            return replace(problem, prompt=(*problem.prompt[:first], *turns, *problem.prompt[first:]))

        return each(task.problems(split), change, first)

    return derived(task, problems)


def _question(problem: Problem) -> str:
    text = problem.prompt if isinstance(problem.prompt, str) else _turns(problem, "")[0]["content"]
    return " ".join(text.split())


def _turns(example: Problem, solution: str) -> list[Message]:
    prompt = example.prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    turns = [message for message in messages if message["role"] != "system"]
    if example.prefill:  # the prompt's last message is the beginning of the solution
        turns, solution = turns[:-1], example.prefill + solution
    return [*turns, {"role": "assistant", "content": solution}]
