"""The forward pass of the embedded sampler, in buffers and views that are made once and used for many steps.

A step of a small model is a hundred short operations, and making a view costs as much as computing with it.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend

from tepo.sampling.embedded.decoder import Decoder
from tepo.sampling.embedded.kv_cache import Arena, KeyValueCache

MASKED = -1e30  # finite: no row of scores may be without a number
# Without cuDNN's kernels, which torch tries first on Hopper and Blackwell: planning them takes some tenths of a second
# for every new shape, and a step has a new one whenever rows end or the columns looked at grow.
KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Workspace:
    """Buffers for the layers' work on `rows` tokens at a time; `qkv` is [rows, kv_heads, G + 2, head_dim]."""

    def __init__(self, decoder: Decoder, arena: Arena, rows: int):
        arena.reset()
        self.arena = arena
        self.decoder = d = decoder
        self.x, self.square, self.normed = (arena.take(rows, d.hidden_size) for _ in range(3))
        self.scale = arena.take(rows, 1)
        self.mean = torch.full((d.hidden_size, 1), 1 / d.hidden_size, dtype=d.dtype, device=d.device)
        self.eps = torch.full((1,), d.eps, dtype=d.dtype, device=d.device)
        self.qkv = arena.take(rows, d.kv_heads, d.group + 2, d.head_dim)
        self.qkv_flat, self.heads = self.qkv.view(rows, -1), self.qkv[:, :, : d.group + 1]
        self.turned = torch.view_as_complex(self.heads.unflatten(-1, (-1, 2))) if d.dtype == torch.float32 else None
        self.gate_up = arena.take(rows, 2 * d.feed_forward)
        self.gate, self.up = self.gate_up.chunk(2, dim=1)

    def forward(self, tokens: Tensor, turns: Tensor, attend: Callable[[int], Tensor]) -> Tensor:
        """Hidden states [rows, H] of tokens [rows], normed for the output matrix,
        in a buffer that the next call overwrites.

        turns: complex [rows or 1, 1, 1, head_dim / 2].
        `attend(layer index)` reads `self.qkv`, returns [rows, heads * head_dim].
        """
        torch.index_select(self.decoder.embedding, 0, tokens, out=self.x)
        for index, layer in enumerate(self.decoder.layers):
            _project(self._norm(layer.input_norm), layer.qkv, layer.qkv_bias, self.qkv_flat)
            if layer.qk_norm is not None:  # Qwen3
                normed = F.rms_norm(self.heads.float(), self.heads.shape[-1:], None, self.decoder.eps)
                self.heads.copy_(normed.mul_(layer.qk_norm))
            if self.turned is not None:
                self.turned.mul_(turns)
            else:
                turned = torch.view_as_complex(self.heads.float().unflatten(-1, (-1, 2))).mul_(turns)
                self.heads.copy_(torch.view_as_real(turned).flatten(-2))
            self._add(attend(index), layer.out, layer.out_bias)
            _project(self._norm(layer.post_norm), layer.gate_up, layer.gate_up_bias, self.gate_up)
            self._add(F.silu(self.gate, inplace=True).mul_(self.up), layer.down, layer.down_bias)
        return self._norm(self.decoder.final_norm)

    def _norm(self, weight: Tensor | None) -> Tensor:
        if self.turned is None or self.x.is_cuda:
            return F.rms_norm(self.x, self.x.shape[-1:], weight, self.decoder.eps)
        # On the CPU torch composes its operator of more and slower parts than these.
        torch.mul(self.x, self.x, out=self.square)
        torch.addmm(self.eps, self.square, self.mean, out=self.scale)
        torch.mul(self.x, self.scale.rsqrt_(), out=self.normed)
        return self.normed if weight is None else self.normed.mul_(weight)

    def _add(self, y: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """x += y @ weight + bias."""
        self.x.addmm_(y, weight)
        if bias is not None:
            self.x += bias


def _project(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(x, weight, out=out)
    else:
        torch.addmm(bias, x, weight, out=out)


def prefill(decoder: Decoder, arena: Arena, prompts: list[Tensor], turns: Tensor, cache: Tensor) -> Tensor:
    """Read prompts into a part of a cache [layers, P, samples, kv_heads, T, 2, head_dim];
    normed hidden states [P, H] of their last tokens.

    Projections run on the tokens alone; only attention pads, at the end, where causality hides it.
    turns: complex [>= T, 1, 1, head_dim / 2].
    """
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=decoder.device)
    row = torch.repeat_interleave(torch.arange(len(prompts), device=decoder.device), lengths)
    ends = lengths.cumsum(0)
    position = torch.arange(len(row), device=decoder.device) - (ends - lengths)[row]
    work = Workspace(decoder, arena, len(row))
    padded = torch.zeros(len(prompts), cache.shape[4], *work.qkv.shape[1:], dtype=decoder.dtype, device=decoder.device)
    heads = padded.permute(0, 2, 3, 1, 4)  # [P, kv_heads, G + 2, T, head_dim]
    group = decoder.group

    def attend(index: int) -> Tensor:
        padded[row, position] = work.qkv
        cache[index] = heads[:, None, :, group:].transpose(3, 4)
        q, k, v = heads[:, :, :group].flatten(1, 2), heads[:, :, group], heads[:, :, group + 1]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=group > 1)
        return attended.transpose(1, 2)[row, position].flatten(1)

    return work.forward(torch.cat(prompts), turns[position], attend)[ends - 1]


class Stepper:
    """One token of each of the first rows of the cache at a time, looking at its first columns.

    work: buffers for these rows. hidden: bool [rows, columns], what a row must not look at; `step` opens the column it
    writes. position: int64 [rows], what makes a position of a column. turns: complex [positions, 1, 1, head_dim / 2].
    """

    def __init__(self, work: Workspace, cache: KeyValueCache, hidden: Tensor, position: Tensor, turns: Tensor):
        decoder, arena = work.decoder, work.arena
        self.rows, self.window = hidden.shape
        self.position, self.turns = position, turns
        self.work, self.scale = work, decoder.head_dim**-0.5
        self.tokens, self.column = (torch.zeros(n, dtype=torch.int64, device=decoder.device) for n in (self.rows, 1))
        self.mask = torch.where(hidden, MASKED, 0.0).to(decoder.dtype)[:, None, None]
        group, kv_heads = decoder.group, decoder.kv_heads
        # of each layer [rows, kv_heads, window, 2, head_dim]
        self.written = cache.data[:, : self.rows, :, : self.window].unbind(0)
        keys, values = ([part[..., side, :] for part in self.written] for side in (0, 1))
        self.new = self.work.qkv[:, :, group:].unsqueeze(2)
        # bfloat16 needs a kernel that keeps the scores in float32; at float32 two products and a softmax are faster.
        self.fused = decoder.dtype != torch.float32
        if self.fused:
            self.q, self.keys, self.values = self.work.qkv[:, :, :group], keys, values
            return
        # MKL multiplies four rows by a small matrix in less time than three; the key head follows its query heads, so
        # letting it ask too (and ignoring the answer) costs no copy.
        asking = group + (kv_heads == 1 and group % 4 == 3)
        self.q = self.work.qkv[:, :, :asking].flatten(0, 1)
        self.keys = [k.flatten(0, 1).transpose(1, 2) for k in keys]
        self.values = [v.flatten(0, 1) for v in values]
        self.mask = self.mask.expand(-1, kv_heads, -1, -1).flatten(0, 1)
        self.scores = arena.take(self.rows * kv_heads, asking, self.window)
        self.attended = arena.take(self.rows * kv_heads, asking, decoder.head_dim)
        self.attended_flat = self.attended.view(self.rows, -1)[:, : decoder.heads * decoder.head_dim]

    def step(self, tokens: Tensor, column: int) -> Tensor:
        """Read tokens [rows], written at `column`; normed hidden states [rows, H] in a buffer that the next step
        overwrites."""
        self.tokens.copy_(tokens)
        self.column.fill_(column)
        return self._run()

    def _run(self) -> Tensor:
        """The same operations on the same memory at each step, which a graph can hold: the place of the column is found
        on the device."""
        self.mask.index_fill_(-1, self.column, 0)
        turns = self.turns.index_select(0, self.position + self.column)

        def attend(index: int) -> Tensor:
            self.written[index].index_copy_(2, self.column, self.new)
            if self.fused:
                return F.scaled_dot_product_attention(
                    self.q, self.keys[index], self.values[index], attn_mask=self.mask
                ).flatten(1)
            torch.baddbmm(self.mask, self.q, self.keys[index], alpha=self.scale, out=self.scores)
            torch.bmm(torch.softmax(self.scores, -1, out=self.scores), self.values[index], out=self.attended)
            return self.attended_flat

        return self.work.forward(self.tokens, turns, attend)


class GraphedStep(Stepper):
    """Its first step runs as it is, which readies cuBLAS;
    the second is captured, and from then on the graph is replayed.

    A step writes the same values where it is run twice, so capturing between two of them disturbs nothing.
    One such graph lives at a time: a torch of 2026 that ends one frees cuBLAS's workspace of the capture stream, also
    where another graph was captured with it (pytorch issue 193402).
    """

    graph: torch.cuda.CUDAGraph | None = None
    warm = False

    def _run(self) -> Tensor:
        if not self.warm:
            self.warm = True
            return super()._run()
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            # of this thread alone: NCCL's own may ask for its events meanwhile
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.hidden = super()._run()
        self.graph.replay()
        return self.hidden
