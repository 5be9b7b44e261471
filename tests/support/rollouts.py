"""Graded groups and rollouts of made-up responses, for what looks at rewards and lengths alone."""

from collections.abc import Sequence

import numpy as np
import torch

from tepo.problems.problem import Problem
from tepo.sampling.sampler import Response
from tepo.training.rollout_batch import FlatRollout, Group, Prompt


def graded(
    rewards: Sequence[float], lengths: Sequence[int] = (), *, name="", number=0, prompt=1, cut=0, timeouts=0
) -> Group:
    """A group, of two tokens a response unless lengths are given; the length limit stopped the first `cut`. prompt: its
    number of tokens. name: of the problem."""
    responses = [
        Response(np.ones(length, np.int32), np.zeros(length, np.float32), None, place >= cut)
        for place, length in enumerate(lengths or [2] * len(rewards))
    ]
    asked = Prompt(number, Problem(name or str(number), "", ""), [1] * prompt)
    return Group(asked, responses, np.array(rewards, np.float32), timeouts)


def rollout(*groups: Group) -> FlatRollout:
    return FlatRollout(groups, torch.device("cpu"))
