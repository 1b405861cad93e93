"""TE-TNP and TE-PT-TNP: translation-equivariant transformer neural processes (Ashman et al., ICML 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Normal, StudentT

from geonp.nn.attention import dense_attention, te_attention
from geonp.nn.bias import KernelDictionary
from geonp.nn.heads import KrigingHead, VarianceHead
from geonp.nn.layers import MLP, PairMLP, drop_masked, in_chunks, masked_mean, origin
from geonp.nn.statistics import context_statistics

__all__ = ["TEPTTNP", "TETNP", "PseudoLocations", "TEBlock"]

TARGET_CHUNK = 2**14
"""Targets that pass through the layers at a time: they do not see each other."""

State = tuple[Tensor, Tensor, Tensor]
"""Tokens, locations and mask of what is read in one layer."""


class TEBlock(nn.Module):
    """Translation-equivariant attention block: moves the locations of its queries and updates their tokens.

    Equations 7 and 8 (attention), 10 (locations), around which stand a layer norm shared by queries and keys, skip
    connections, and a feed-forward network of one hidden layer, as in the published code (the text has two, and one
    location factor a head instead of one a coordinate).
    """

    def __init__(
        self, dim: int, heads: int, d_x: int, move: bool = True, max_pairs: int = 2**20, pair_dim: int = 0
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim must be a multiple of heads, got {dim} and {heads}")
        self.heads, self.max_pairs = heads, max_pairs
        wide = pair_dim or dim
        self.norm_attention, self.norm_ff = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)
        self.rho = PairMLP(d_x + heads, wide, wide, heads)
        self.phi = PairMLP(heads, wide, wide, d_x) if move else None
        self.ff = MLP(dim, dim, dim, relu=True)

    def forward(self, zq: Tensor, xq: Tensor, zk: Tensor, xk: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens ``(batch, n, dim)`` and locations ``(batch, n, d_x)`` of queries and keys to those of the queries."""
        normed = self.norm_attention(zk)
        q, k, v = (
            t.unflatten(-1, (self.heads, t.shape[-1] // self.heads)).transpose(1, 2)
            for t in (self.to_q(self.norm_attention(zq)), self.to_k(normed), self.to_v(normed))
        )
        out, step = te_attention(q, k, v, xq, xk, self.rho, self.phi, key_mask, max_pairs=self.max_pairs)
        zq = zq + self.to_out(out.transpose(1, 2).flatten(2))
        return zq + self.ff(self.norm_ff(zq)), xq + step


class PseudoLocations(nn.Module):
    """Where pseudo-tokens start (equation 11): a learned offset plus an average of the context locations.

    With ``attention=True``, the paper's, psi weights the context by softmax attention of the pseudo-tokens to its
    tokens, averaged over heads with learned weights; otherwise by ``1 / N``, as the ablation of section F.5 has it.
    """

    def __init__(self, n_pseudo: int, dim: int, heads: int, d_x: int, attention: bool = True) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(n_pseudo, d_x))
        self.heads, self.attention = heads, attention
        if attention:
            self.to_q, self.to_k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
            self.mixture = nn.Parameter(torch.zeros(heads))

    def forward(self, u: Tensor, zc: Tensor, xc: Tensor, context_mask: Tensor) -> Tensor:
        """Pseudo-tokens ``(n_pseudo, dim)``; tokens, places, mask of the context: to ``(batch, n_pseudo, d_x)``."""
        if not self.attention:
            return self.offset + masked_mean(xc, context_mask)[:, None]
        q = self.to_q(u).unflatten(-1, (self.heads, -1)).expand(len(zc), -1, -1, -1)
        k = self.to_k(zc).unflatten(-1, q.shape[-2:])
        # one head at a time: the weights of all of them at once would be the largest tensor of the model
        averages = [
            dense_attention(q[:, None, :, i], k[:, None, :, i], xc[:, None], None, context_mask)[:, 0]
            for i in range(self.heads)
        ]
        return self.offset + torch.einsum("h,hbmd->bmd", self.mixture.softmax(0), torch.stack(averages))


class TETNP(nn.Module):
    """TE-TNP: every context and target point attends to the context through a network of coordinate differences.

    Tokens start from values alone, ``MLP([y, target?])``; locations enter through their differences in `blocks` blocks
    (:class:`TEBlock`), each of which also moves them unless ``move_locations=False``. Context and targets share the
    weights of a block and read the context as it was before it, as in the code of the paper's submission. The model is
    translation equivariant. Costs ``O(n_c^2 + n_c n_t)``.

    Deviations: all targets start with the same token, as in the code, not with random ones as in the text; the last
    block moves no locations, which nothing would read.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        dim: int = 128,
        heads: int = 8,
        blocks: int = 5,
        move_locations: bool = True,
        min_scale: float = 0.0,
        max_pairs: int = 2**20,
    ) -> None:
        super().__init__()
        self.embed = MLP(d_y + 1, dim, dim, dim, relu=True)
        self.blocks = _layers(blocks, dim, heads, d_x, move_locations, max_pairs)
        self.head = VarianceHead(dim, d_y, min_scale=min_scale)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        # only differences matter: these keep float32 exact far from the coordinates' own origin
        first = origin(xc, xt)
        xc, yc, context_mask = drop_masked(xc - first, yc, context_mask)
        z, x, states = self.embed(_with_flag(yc, 0.0)), xc, []
        for i, block in enumerate(self.blocks):
            states.append((z, x, context_mask))
            if i + 1 < len(self.blocks):
                z, x = block(z, x, z, x, context_mask)
        return _decode(xt - first, list(self.blocks), states, self.embed, self.head, yc.shape[-1])


class TEPTTNP(nn.Module):
    """TE-PT-TNP: TE-TNP through `n_pseudo` pseudo-tokens with locations of their own, at a cost linear in all points.

    In each layer (induced-set style) the pseudo-tokens read the context, then the context and the targets read the
    updated pseudo-tokens; all locations move along (equation 10) unless ``move_locations=False``. The pseudo-locations
    start at data-dependent places (equation 11, :class:`PseudoLocations`; ``locate=False`` for their plain mean). Each
    of the three has its own weights in each layer. The model is translation equivariant. Costs
    ``O(n_pseudo (n_c + n_t))``; targets pass in chunks, so that memory beyond inputs and outputs does not grow with
    them in inference.

    Deviations: what nothing reads does not exist, the last layer's update of the context and step of the targets.

    For rasters there are three switches, all off by default as the paper has none of them. `unit` divides coordinates
    in cells to the paper's order of one. `pair_dim` is the width of rho and phi, if not `dim`. ``head="kriging"``
    replaces the normal distribution by :class:`~geonp.nn.heads.KrigingHead`, for a bounded context, and with it

    * the head reads the context's tokens too, so the last layer updates them;
    * tokens start from :func:`~geonp.nn.statistics.context_statistics` beside value and flag, as in
      :class:`~geonp.nn.tnp_kr.TNPKR`, whose embedding, norms and head these are, so that their weights can be taken
      over; they are functions of differences, and the model stays translation equivariant;
    * the blocks start as the identity;
    * `lengths` are those that its kernels start from, in the units of the coordinates: a learned factor of up to 20
      (up or down) follows.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        dim: int = 128,
        heads: int = 8,
        blocks: int = 5,
        n_pseudo: int = 32,
        move_locations: bool = True,
        locate: bool = True,
        min_scale: float = 0.0,
        max_pairs: int = 2**20,
        pair_dim: int = 0,
        unit: float = 1.0,
        head: str = "variance",
        embed_hidden: tuple[int, ...] = (256, 128),
        scales: tuple[float, ...] = (),
        directional_scales: tuple[float, ...] = (),
        n_refine: int = 128,
        refine_steps: int = 3,
        scoring_steps: int = 0,
        lengths: tuple[float, ...] = (3.0, 24.0),
    ) -> None:
        super().__init__()
        if head not in ("variance", "kriging") or (head == "kriging") != bool(scales):
            raise ValueError(f'head must be "variance", or "kriging" with scales, got {head!r} and scales={scales}')
        self.unit = unit
        kriging = head == "kriging"
        layer = (dim, heads, d_x, move_locations, max_pairs, pair_dim)
        self.pseudo = nn.Parameter(torch.randn(n_pseudo, dim))
        self.locate = PseudoLocations(n_pseudo, dim, heads, d_x, locate)
        self.gather = nn.ModuleList(TEBlock(*layer) for _ in range(blocks))
        # the kriging head reads the context's last tokens, but nothing their last locations
        self.spread = _layers(blocks, *layer) if kriging else nn.ModuleList(TEBlock(*layer) for _ in range(blocks - 1))
        self.read = _layers(blocks, *layer)
        self.head: VarianceHead | KrigingHead
        if kriging:
            self.dictionary = KernelDictionary(d_x, scales, directional_scales)
            extra = 2 * self.dictionary.size
            self.observed = nn.Embedding(2, 4)
            self.embed = MLP(4 + d_y + extra, *embed_hidden, dim)
            self.norm_in, self.norm_out = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
            self.head = KrigingHead(dim, d_x, d_y, 128, extra, n_refine, refine_steps, 0, scoring_steps, lengths)
            for block in (*self.gather, *self.spread, *self.read):
                nn.init.zeros_(block.to_out.weight)
                nn.init.zeros_(block.ff[-1].weight)
        else:
            self.embed = MLP(d_y + 1, dim, dim, dim, relu=True)
            self.head = VarianceHead(dim, d_y, min_scale=min_scale)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal | StudentT:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        # only differences matter: these keep float32 exact far from the coordinates' own origin
        first = origin(xc, xt)
        xc, yc, context_mask = drop_masked(xc - first, yc, context_mask)
        xt = xt - first
        if isinstance(self.head, KrigingHead):
            return self._krige(self.head, xc, yc, xt, context_mask)
        _, states = self._read_context(self.embed(_with_flag(yc, 0.0)), xc / self.unit, context_mask)
        return _decode(xt / self.unit, list(self.read), states, self.embed, self.head, yc.shape[-1])

    def _read_context(self, z: Tensor, x: Tensor, context_mask: Tensor) -> tuple[Tensor, list[State]]:
        """Tokens and locations of the context to its last tokens and to what targets read, layer by layer."""
        v = self.locate(self.pseudo, z, x, context_mask)
        u = self.pseudo.expand(len(x), -1, -1)
        every = torch.ones(u.shape[:2], dtype=torch.bool, device=u.device)
        states = []
        for i, gather in enumerate(self.gather):
            u, v = gather(u, v, z, x, context_mask)
            states.append((u, v, every))
            if i < len(self.spread):
                z, x = self.spread[i](z, x, u, v, every)
        return z, states

    def _krige(self, head: KrigingHead, xc: Tensor, yc: Tensor, xt: Tensor, mask: Tensor) -> StudentT:
        n_t = xt.shape[1]
        # In bfloat16 coordinates would be rounded to cells and small differences of values to nothing.
        with torch.autocast(xc.device.type, enabled=False):
            every = torch.cat([xt, xc], 1)
            with torch.no_grad():
                local, summary = context_statistics(self.dictionary, every, xc, yc, mask)
            values = torch.cat([yc.new_zeros(len(yc), n_t, yc.shape[2]), yc], 1)
            flags = (torch.arange(every.shape[1], device=xc.device) >= n_t).long().expand(every.shape[:2])
            tokens = self.norm_in(self.embed(torch.cat([self.observed(flags), values, local], -1)))
            zc, states = self._read_context(tokens[:, n_t:], xc / self.unit, mask)
            zt = _through(self.read, states, tokens[:, :n_t], xt / self.unit)
            targets, context = self.norm_out(zt), self.norm_out(zc)
        return head.forward(targets, context, xt, xc, yc, mask, summary)


def _layers(n: int, dim: int, heads: int, d_x: int, move: bool, max_pairs: int, pair_dim: int = 0) -> nn.ModuleList:
    """Blocks the last of which moves nothing."""
    return nn.ModuleList(TEBlock(dim, heads, d_x, move and i + 1 < n, max_pairs, pair_dim) for i in range(n))


def _with_flag(values: Tensor, flag: float) -> Tensor:
    return torch.cat([values, torch.full_like(values[..., :1], flag)], -1)


def _decode(
    xt: Tensor,
    blocks: Sequence[nn.Module],
    states: Sequence[State],
    embed: nn.Module,
    head: VarianceHead,
    d_y: int,
) -> Normal:
    """Targets read, layer by layer, the tokens and locations that `states` holds, and are decoded."""

    def decode(x: Tensor) -> Tensor:
        z = embed(_with_flag(x.new_zeros(*x.shape[:2], d_y), 1.0))
        out: Tensor = head.mlp(_through(blocks, states, z, x))
        return out

    return head(in_chunks(decode, xt, TARGET_CHUNK))  # type: ignore[no-any-return]


def _through(blocks: Iterable[nn.Module], states: Sequence[State], z: Tensor, x: Tensor) -> Tensor:
    """Tokens of targets at `x` after they have read, layer by layer, what `states` holds."""
    for block, state in zip(blocks, states, strict=True):
        z, x = block(z, x, *state)
    return z
