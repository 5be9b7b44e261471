"""A reward for saying it shortly: 1 up to 20 characters, 0 from 60 on, and 0 without an answer in a box."""


def reward(problem, response):
    if "\\boxed{" not in response:
        return 0.0
    return min(1.0, max(0.0, (60 - len(response)) / 40))
