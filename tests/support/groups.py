"""Groups of made-up completions. Imported by worker processes: keep it light."""

from grouprl.types import Completion, Group, Problem, StopReason


def group_of(problem: Problem, *texts: str, prompt_ids: tuple[int, ...] = (1,)) -> Group:
    """Completion n of the tokens n and 7."""
    completions = tuple(
        Completion(n, (n, 7), (-1.0, -1.0), (-1.0, -1.0), text, StopReason.END, 0) for n, text in enumerate(texts)
    )
    return Group(problem, prompt_ids, completions)
