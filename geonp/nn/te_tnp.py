"""TE-TNP and TE-PT-TNP: translation-equivariant transformer neural processes (Ashman et al., ICML 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.distributions import Normal, StudentT

from geonp.nn.attention import dense_attention, te_attention
from geonp.nn.bias import KernelDictionary
from geonp.nn.blocks import BLOCKS
from geonp.nn.drift import Covariates
from geonp.nn.drift_head import KRIGING_HEADS, Prepared, drift_head
from geonp.nn.heads import KrigingHead, VarianceHead
from geonp.nn.layers import MLP, PairMLP, drop_masked, in_chunks, masked_mean, origin, split_heads, with_unknown_targets
from geonp.nn.statistics import context_statistics, moments

Keys = tuple[Tensor, Tensor, Tensor]
"""Tokens, locations and mask of the keys of one layer."""


class TEBlock(nn.Module):
    """Translation-equivariant attention block: updates the tokens of its queries and moves their locations.

    Attention by equations 7 and 8, locations by equation 10, with a layer norm shared by queries and keys, skip
    connections, and a feed-forward network of one hidden layer. This is the published code; the text has two hidden
    layers, and one location factor for each head instead of each coordinate.
    """

    def __init__(
        self, dim: int, heads: int, d_x: int, move: bool = True, max_pairs: int = 2**20, pair_dim: int = 0
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"dim must be a multiple of heads, got {dim} and {heads} heads")
        self.heads, self.max_pairs = heads, max_pairs
        width = pair_dim or dim
        self.norm_attention, self.norm_ff = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.to_out = nn.Linear(dim, dim)
        self.rho = PairMLP(d_x + heads, width, width, heads)
        self.phi = PairMLP(heads, width, width, d_x) if move else None
        self.ff = MLP(dim, dim, dim, relu=True)

    def forward(self, zq: Tensor, xq: Tensor, zk: Tensor, xk: Tensor, key_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Update the queries: tokens ``(batch, n_q, dim)`` and locations ``(batch, n_q, d_x)``."""
        normed = self.norm_attention(zk)
        q, k, v = split_heads(self.heads, self.to_q(self.norm_attention(zq)), self.to_k(normed), self.to_v(normed))
        out, step = te_attention(q, k, v, xq, xk, self.rho, self.phi, key_mask, max_pairs=self.max_pairs)
        zq = zq + self.to_out(out.transpose(1, 2).flatten(2))
        return zq + self.ff(self.norm_ff(zq)), xq + step


class PseudoLocations(nn.Module):
    """Initial locations of the pseudo-tokens (equation 11): a learned offset plus an average of the context locations.

    With ``attention=True``, as in the paper, the average is weighted by softmax attention of the pseudo-tokens to the
    context tokens, averaged over heads with learned weights. Otherwise it is the mean (the ablation in section F.5).
    """

    def __init__(self, n_pseudo: int, dim: int, heads: int, d_x: int, attention: bool = True) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.randn(n_pseudo, d_x))
        self.heads, self.attention = heads, attention
        if attention:
            self.to_q, self.to_k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
            self.mixture = nn.Parameter(torch.zeros(heads))

    def forward(self, u: Tensor, zc: Tensor, xc: Tensor, context_mask: Tensor) -> Tensor:
        """Pseudo-tokens ``(n_pseudo, dim)`` and tokens, locations and mask of a context: ``(batch, n_pseudo, d_x)``."""
        if not self.attention:
            return self.offset + masked_mean(xc, context_mask)[:, None]
        q = self.to_q(u).unflatten(-1, (self.heads, -1)).expand(len(zc), -1, -1, -1)
        k = self.to_k(zc).unflatten(-1, q.shape[-2:])
        # one head at a time: the attention weights of all heads would be the largest tensor of the model
        averages = [
            dense_attention(q[:, None, :, i], k[:, None, :, i], xc[:, None], None, context_mask)[:, 0]
            for i in range(self.heads)
        ]
        return self.offset + torch.einsum("h,hbmd->bmd", self.mixture.softmax(0), torch.stack(averages))


class TETNP(nn.Module):
    """TE-TNP: context and targets attend to the context through a network of coordinate differences.

    Tokens are ``MLP([y, target?])``. Locations enter through their differences in `blocks` blocks (:class:`TEBlock`),
    which also move them unless ``move_locations=False``. Context and targets share the weights of a block and attend to
    the context as it was before it, as in the code of the paper's submission. The model is translation equivariant.
    Costs ``O(n_c^2 + n_c n_t)``.

    Deviations: all targets start with the same token, as in the code, instead of random ones, as in the text. The last
    block moves no locations, as they would not be used.
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
        start = origin(xc, xt)
        xc, yc, context_mask = drop_masked(xc - start, yc, context_mask)
        z, x, keys = self.embed(_with_flag(yc, 0.0)), xc, []
        for i, block in enumerate(self.blocks):
            keys.append((z, x, context_mask))
            if i + 1 < len(self.blocks):
                z, x = block(z, x, z, x, context_mask)
        return _decode(xt - start, self.blocks, keys, self.embed, self.head, yc.shape[-1])


class TEPTTNP(nn.Module):
    """TE-PT-TNP: TE-TNP through `n_pseudo` pseudo-tokens that have locations, at a cost linear in all points.

    In each layer (as in induced sets) the pseudo-tokens attend to the context, then the context and the targets to the
    updated pseudo-tokens; each of the three has its own weights. All locations move (equation 10) unless
    ``move_locations=False``. The pseudo-tokens start at averages of the context locations (equation 11,
    :class:`PseudoLocations`; plain means with ``locate=False``). The model is translation equivariant. Costs
    ``O(n_pseudo (n_c + n_t))``. Targets pass in chunks, so in inference the memory beyond inputs and outputs does not
    grow with them.

    Deviation: updates that would not be used are omitted, that of the context and the step of the targets in the last
    layer.

    The shipped model ``te-pt-tnp`` is such a transformer with ``head="kriging"``: the prediction is that of a local
    Gaussian process whose covariance the network reads from the context (:class:`~geonp.nn.heads.KrigingHead`). This
    head is for a bounded context, and with it

    * the last layer updates the context tokens, which the head reads;
    * tokens contain :func:`~geonp.nn.statistics.context_statistics`, as in :class:`~geonp.nn.tnp_kr.TNPKR`. Embedding,
      norms and head are the same as there, so their weights can be transferred;
    * the blocks start as the identity;
    * `lengths` are the length scales that its kernels start from, in the units of the coordinates. A learned factor of
      at most 20, up or down, follows.

    Two more options are not in the paper: `unit` divides coordinates in cells, to bring them to the order of one, and
    `pair_dim` is the width of the networks rho and phi, if it is not `dim`.
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
        kriging = head in KRIGING_HEADS
        if not (kriging or head == "variance") or kriging != bool(scales):
            raise ValueError(
                f'head must be "variance", or "kriging" or "drift" with scales, got {head!r} and scales={scales}'
            )
        self.unit = unit
        layer = (dim, heads, d_x, move_locations, max_pairs, pair_dim)
        self.pseudo = nn.Parameter(torch.randn(n_pseudo, dim))
        self.locate = PseudoLocations(n_pseudo, dim, heads, d_x, locate)
        self.gather = nn.ModuleList(TEBlock(*layer) for _ in range(blocks))
        # the kriging head reads the last context tokens; their last locations are not used
        self.spread = _layers(blocks, *layer) if kriging else nn.ModuleList(TEBlock(*layer) for _ in range(blocks - 1))
        self.read = _layers(blocks, *layer)
        self.head: VarianceHead | KrigingHead
        if kriging:
            self.dictionary = KernelDictionary(d_x, scales, directional_scales)
            extra = 2 * self.dictionary.size
            self.observed = nn.Embedding(2, 4)
            self.embed = MLP(4 + d_y + extra, *embed_hidden, dim)
            self.norm_in, self.norm_out = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
            self.head = KRIGING_HEADS[head](
                dim, d_x, d_y, 128, extra, n_refine, refine_steps, 0, scoring_steps, lengths
            )
            for block in (*self.gather, *self.spread, *self.read):
                nn.init.zeros_(block.to_out.weight)
                nn.init.zeros_(block.ff[-1].weight)
        else:
            self.embed = MLP(d_y + 1, dim, dim, dim, relu=True)
            self.head = VarianceHead(dim, d_y, min_scale=min_scale)

    def forward(
        self,
        xc: Tensor,
        yc: Tensor,
        xt: Tensor,
        context_mask: Tensor | None = None,
        covariates: Covariates | None = None,
        errors: Tensor | None = None,
        scattered: bool = False,
        estimated: bool = False,
    ) -> Normal | StudentT:
        """Predict targets from context: arguments and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`."""
        start = origin(xc, xt)
        xc, yc, context_mask = drop_masked(xc - start, yc, context_mask)
        xt = xt - start
        if covariates is not None or errors is not None:
            prepared = drift_head(self.head).prepare(xc, yc, context_mask, xt.shape[1], covariates, errors)
            seen_mask = prepared.seen_mask(context_mask, estimated)
            return self._krige(xc, prepared.remainder, xt, context_mask, scattered, prepared, seen_mask)
        if isinstance(self.head, KrigingHead):
            return self._krige(xc, yc, xt, context_mask, scattered)
        _, keys = self._encode(self.embed(_with_flag(yc, 0.0)), xc / self.unit, context_mask)
        return _decode(xt / self.unit, self.read, keys, self.embed, self.head, yc.shape[-1])

    def _encode(self, z: Tensor, x: Tensor, context_mask: Tensor) -> tuple[Tensor, list[Keys]]:
        """Tokens and locations of the context to its last tokens and to the keys of the targets in each layer."""
        v = self.locate(self.pseudo, z, x, context_mask)
        u = self.pseudo.expand(len(x), -1, -1)
        unmasked = torch.ones(u.shape[:2], dtype=torch.bool, device=u.device)
        keys = []
        for i, gather in enumerate(self.gather):
            u, v = gather(u, v, z, x, context_mask)
            keys.append((u, v, unmasked))
            if i < len(self.spread):
                z, x = self.spread[i](z, x, u, v, unmasked)
        return z, keys

    def _krige(
        self,
        xc: Tensor,
        yc: Tensor,
        xt: Tensor,
        mask: Tensor,
        scattered: bool,
        prepared: Prepared | None = None,
        seen_mask: Tensor | None = None,
    ) -> StudentT:
        n_t, seen_mask = xt.shape[1], mask if seen_mask is None else seen_mask
        # bfloat16 would round coordinates to whole cells and small differences of values to zero
        with torch.autocast(xc.device.type, enabled=False):
            x = torch.cat([xt, xc], 1)
            with torch.no_grad():
                sums = self.dictionary.sums(x, xc, moments(yc, seen_mask))
                local, summary = context_statistics(sums, yc, seen_mask)
            values, flags = with_unknown_targets(yc, n_t)
            embedded = self.embed(torch.cat([self.observed(flags), values, local], -1))
            tokens = self.norm_in(embedded if prepared is None else embedded + prepared.embedding)
            zc, keys = self._encode(tokens[:, n_t:], xc / self.unit, seen_mask)
            zt = _read(self.read, keys, tokens[:, :n_t], xt / self.unit)
            targets, context = self.norm_out(zt), self.norm_out(zc)
        if prepared is not None:
            return drift_head(self.head).drift_forward(targets, context, xt, xc, mask, summary, prepared, scattered)
        assert isinstance(self.head, KrigingHead)
        return self.head.forward(targets, context, xt, xc, yc, mask, summary, scattered)


def _layers(n: int, dim: int, heads: int, d_x: int, move: bool, max_pairs: int, pair_dim: int = 0) -> nn.ModuleList:
    """Blocks, of which the last one moves no locations."""
    return nn.ModuleList(TEBlock(dim, heads, d_x, move and i + 1 < n, max_pairs, pair_dim) for i in range(n))


def _with_flag(values: Tensor, flag: float) -> Tensor:
    return torch.cat([values, torch.full_like(values[..., :1], flag)], -1)


def _decode(
    xt: Tensor, blocks: nn.ModuleList, keys: Sequence[Keys], embed: nn.Module, head: VarianceHead, d_y: int
) -> Normal:
    """Predictions at the targets, which attend to the keys of each layer."""

    def decode(x: Tensor) -> Tensor:
        z = embed(_with_flag(x.new_zeros(*x.shape[:2], d_y), 1.0))
        out: Tensor = head.mlp(_read(blocks, keys, z, x))
        return out

    return head.forward(in_chunks(decode, xt, BLOCKS.targets))


def _read(blocks: nn.ModuleList, keys: Sequence[Keys], z: Tensor, x: Tensor) -> Tensor:
    """Tokens of targets at `x` after they have attended to the keys of each layer."""
    for block, layer_keys in zip(blocks, keys, strict=True):
        z, x = block(z, x, *layer_keys)
    return z
