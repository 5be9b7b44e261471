"""Short measurements of the code that runs on a GPU: attention, the fused log-prob, updates, the embedded sampler.

Each is a generator of `record.Figure`s, run in a process of its own. `tepo doctor` runs their short form on a GPU and
writes what they find; `python -m perf.gpu` runs the long one. The small one runs on a CPU, for the tests.
"""
