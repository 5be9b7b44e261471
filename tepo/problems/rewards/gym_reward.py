"""The reward of `data=reasoning_gym:TASK`: the task's own scorer, on what a response boxes, else on its last line."""

from tepo.problems.data_reader import GYM_SIZE
from tepo.problems.rows import last_box


def reward(problem, response):
    """The score in [0, 1]."""
    import reasoning_gym

    task, _, index = problem.id.rpartition("-")
    made = reasoning_gym.create_dataset(task, size=GYM_SIZE, seed=0)
    said = last_box(response) or (response.strip().splitlines() or [""])[-1]
    return float(made.score_answer(said, made[int(index)]))
