"""The sampler's step as a CUDA graph: one launch instead of some ten a layer, which a small step would wait for."""

import torch
from torch import Tensor

from tepo.sampling.embedded.decode_forward import Stepper


class StaticStep:
    """A `Stepper` whose inputs lie in buffers, the column too:
    every step of its window is the same operations on the same memory.

    The same arithmetic as `Stepper.step`, and what a graph of it can hold;
    only the place of the column is found on the device.
    """

    def __init__(self, stepper: Stepper):
        self.stepper, self.rows, self.window = stepper, stepper.rows, stepper.window
        device = stepper.mask.device
        self.tokens, self.column = (
            torch.zeros(self.rows, dtype=torch.int64, device=device),
            torch.zeros(1, dtype=torch.int64, device=device),
        )
        self.layers = stepper.cache.data[:, : self.rows, :, : self.window].unbind(
            0
        )  # each [rows, kv_heads, window, 2, head_dim]
        self.new = stepper.new.unsqueeze(2)

    def step(self, tokens: Tensor, column: int) -> Tensor:
        """See `Stepper.step`."""
        self.tokens.copy_(tokens)
        self.column.fill_(column)
        return self._run()

    def _run(self) -> Tensor:
        stepper = self.stepper
        stepper.mask.index_fill_(-1, self.column, 0)
        turns = stepper.turns.index_select(0, stepper.position + self.column)
        return stepper.forward(
            self.tokens, turns, lambda index: self.layers[index].index_copy_(2, self.column, self.new)
        )


class GraphedStep(StaticStep):
    """Its first step runs as it is, which readies cuBLAS;
    the second is captured, and from then on the graph is replayed.

    A step writes the same values where it is run twice, so capturing between two of them disturbs nothing.
    One such graph lives at a time: a torch of 2026 that ends one frees cuBLAS's workspace of the capture stream, also
    where another graph was captured with it (pytorch issue 193402).
    """

    def __init__(self, stepper: Stepper):
        super().__init__(stepper)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warm = False

    def _run(self) -> Tensor:
        if not self.warm:
            self.warm = True
            return super()._run()
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                self.graph, capture_error_mode="thread_local"
            ):  # NCCL's own thread may ask for its events meanwhile
                self.hidden = super()._run()
        self.graph.replay()
        return self.hidden
