"""Train one policy, then look at its metrics and its scores."""

import tepo

run = tepo.train(["objective=tepo", "seed=3"], evaluate=True)
print(run.metrics()[["critic/score/mean", "actor/entropy", "actor/grad_norm"]])
print(run.scores())
print(f"ended early: {run.ending}" if run.ending else f"weights: {run.weights}")
