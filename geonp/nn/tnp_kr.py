"""TNP-KR: transformer neural process with kernel regression (arXiv 2411.12502)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal, StudentT

from geonp.nn.attention import dense_attention, orthogonal_features, performer_attention
from geonp.nn.bias import DictionaryBias, KernelDictionary, RBFBias, dictionary_bias, rbf_bias, shared_bias
from geonp.nn.drift import Covariates
from geonp.nn.drift_head import KRIGING_HEADS, drift_head
from geonp.nn.heads import GaussianHead, KrigingHead
from geonp.nn.layers import (
    MLP,
    Attend,
    DeepKernelAttention,
    KRBlock,
    MultiHeadAttention,
    drop_masked,
    origin,
    plain_attention,
    with_unknown_targets,
)
from geonp.nn.nearby import NearbyCorrection
from geonp.nn.scan import scan_attention
from geonp.nn.statistics import context_means, context_statistics, moments

ATTENTIONS = ("scan", "dka", "performer", "full")
"""Attention variants of TNP-KR."""


class TNPKR(nn.Module):
    """TNP-KR: context and targets attend to the context, with scores biased by kernels of distance.

    Tokens are ``LayerNorm(MLP([e, x, y]))`` (equation 2 of v2), where e is a learned embedding of whether the point is
    observed. They pass through `blocks` KR blocks (algorithm 2 of v1) whose scores have a kernel bias (equation 4); a
    head turns them into a distribution. With ``embed_x=False`` locations enter through their differences only, and the
    model is translation invariant.

    The shipped model ``tnpkr-sa`` is such a transformer with ``head="kriging"``: the network reads a covariance from
    the context, a few steps of Fisher scoring sharpen it, and the prediction is that of a local Gaussian process with
    this covariance, corrected by the network (:class:`~geonp.nn.heads.KrigingHead`).

    `attention` is the variant:

    * ``"scan"`` (SA): softmax attention with the kernel bias. It runs as scan attention (equations 6 to 8), in memory
      that does not grow with the number of pairs. With `kernels` ``"dictionary"`` and at most ``2 block_size^2`` pairs,
      it runs as dense attention with the same bias, which is faster, as in all fills with the shipped model.
    * ``"dka"``: :class:`~geonp.nn.layers.DeepKernelAttention` of one head.
    * ``"performer"`` (PERF, "Fast" in v1): :func:`~geonp.nn.attention.performer_attention` with `n_features` fixed
      random features for each layer. The published widths are ``v_dim=128, v_hidden=0, embed_hidden=(512, 128)``.
    * ``"full"``: softmax attention without bias ("Full" in v1).

    All but the first need coordinates in the tokens (``embed_x=True``), so they are not translation invariant.

    Deviations from the paper, each an option that defaults to the paper:

    * `kernels` ``"dictionary"``: fixed kernels shared by heads and layers, some of them directional
      (:class:`~geonp.nn.bias.KernelDictionary`), with learned amplitudes for each head and layer.
    * `statistics`: tokens also contain the density of the observations around them and, in the context, the variogram
      around them, for each kernel. A network can't compute the variogram of a smooth field from its own inputs.
    * `means`: tokens also contain the mean of the values around them, for each kernel.
    * `head` ``"kriging"``; or ``"drift"``, which reads covariates too (:class:`~geonp.nn.drift_head.DriftKrigingHead`).

    * `outliers`: only observations that contradict the others are noisier than the process (kriging heads with
      `scoring_steps`).

    * `thinned_steps`: scoring steps before the others that read a part of the context (kriging heads with
      `scoring_steps`).

    * `nearby`: the head fills small gaps with readings of other tiles (:class:`~geonp.nn.nearby.NearbyCorrection`).

    * `scales` with `kernels` ``"rbf"``: widths from which the radial basis functions start, one for each.
    * `unit`: coordinates are divided by it, to bring numbers of cells to the order of one.

    The RBF bias starts with distinct widths (:class:`~geonp.nn.bias.RBFBias`), and the embedding e with a standard
    deviation of 1 (published code: 0.5). The embedding and the widths of ``"full"`` are those of v2.
    """

    features: Tensor

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        attention: str = "scan",
        dim: int = 64,
        heads: int = 4,
        blocks: int = 6,
        qk_dim: int = 128,
        v_dim: int = 64,
        v_hidden: int = 128,
        ff_dim: int = 256,
        embed_hidden: tuple[int, ...] = (256, 128),
        embed_x: bool = True,
        n_features: int = 128,
        kernels: str = "rbf",
        scales: tuple[float, ...] = (),
        directional_scales: tuple[float, ...] = (),
        statistics: bool = False,
        means: bool = False,
        head: str = "gaussian",
        n_refine: int = 128,
        refine_steps: int = 3,
        whole_steps: int = 0,
        scoring_steps: int = 0,
        thinned_steps: int = 0,
        nearby: bool = False,
        outliers: bool = False,
        min_scale: float = 0.0,
        block_size: int = 1024,
        unit: float = 1.0,
    ) -> None:
        super().__init__()
        _check_attention(attention, embed_x)
        _check_kernels_and_head(kernels, scales, statistics or means, head)
        _check_scoring(head, scoring_steps, outliers or thinned_steps > 0)
        self.attention, self.embed_x, self.statistics, self.means = attention, embed_x, statistics, means
        self.block_size, self.unit = block_size, unit
        self.dictionary = KernelDictionary(d_x, scales, directional_scales) if kernels == "dictionary" else None
        n_kernels = 0 if self.dictionary is None else self.dictionary.size
        extra = 2 * n_kernels * statistics
        self.observed = nn.Embedding(2, 4)
        self.embed = MLP(4 + d_x * embed_x + d_y + extra + d_y * n_kernels * means, *embed_hidden, dim)
        self.norm_in = nn.LayerNorm(dim, eps=1e-6)
        widths = qk_dim, v_dim, v_hidden
        modules: list[nn.Module] = [
            DeepKernelAttention(dim, d_x, qk_dim) if attention == "dka" else MultiHeadAttention(dim, heads, *widths)
            for _ in range(blocks)
        ]
        self.blocks = nn.ModuleList(KRBlock(dim, ff_dim, module) for module in modules)
        self.biases = nn.ModuleList(
            RBFBias(heads, widths=scales) if self.dictionary is None else DictionaryBias(heads, self.dictionary)
            for _ in range(blocks * (attention == "scan"))
        )
        random = [orthogonal_features(n_features, qk_dim // heads) for _ in range(blocks * (attention == "performer"))]
        self.register_buffer("features", torch.stack(random) if random else None)
        self.norm_out = nn.LayerNorm(dim, eps=1e-6)
        arguments = dim, d_x, d_y, 128, extra, n_refine, refine_steps, whole_steps, scoring_steps
        self.head = _head(head, arguments, min_scale, nearby=nearby, outliers=outliers, thinned_steps=thinned_steps)

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
        """Predict targets from context.

        Raises ValueError for covariates or errors that the head cannot use.

        Parameters
        ----------
        xc, yc : Tensor
            Context locations ``(batch, n_c, d_x)`` and standardised values ``(batch, n_c, d_y)``.
        xt : Tensor
            Target locations ``(batch, n_t, d_x)``.
        context_mask : Tensor, optional
            ``(batch, n_c)``, True where observed. Masked entries of the context, NaN included, have no effect.
        covariates : Covariates, optional
            Co-located fields at context and targets; for ``head="drift"``.
        errors : Tensor, optional
            Known standard errors of the context values, ``(batch, n_c)``; for ``head="drift"``.
        scattered : bool, optional
            Whether points may be far closer to each other than the cells of a raster, on which the weights were
            trained. A kriging head with scoring steps then looks for noise between them.
        estimated : bool, optional
            Whether context values with errors may be estimates from their neighbours, as those of values at bounds. The
            network sees them then, whatever their errors.

        Returns
        -------
        torch.distributions.Normal or StudentT
            Of shape ``(batch, n_t, d_y)``: marginal distributions of new measurements at the targets.
        """
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        if not self.embed_x:
            # relative to the context, so that other targets do not change its rounding
            start = origin(xt, xc)
            xc, xt = xc - start, xt - start
        if self.unit != 1:
            xc, xt = xc / self.unit, xt / self.unit
        n_t = xt.shape[1]
        if covariates is not None or errors is not None:
            return self._with_drift(xc, yc, xt, context_mask, covariates, errors, scattered, estimated)
        tokens, summary = self._features(xc, yc, xt, context_mask)
        if isinstance(self.head, GaussianHead):
            return self.head.forward(tokens[:, :n_t])
        return self.head.forward(tokens[:, :n_t], tokens[:, n_t:], xt, xc, yc, context_mask, summary, scattered)

    def _with_drift(
        self,
        xc: Tensor,
        yc: Tensor,
        xt: Tensor,
        mask: Tensor,
        covariates: Covariates | None,
        errors: Tensor | None,
        scattered: bool,
        estimated: bool,
    ) -> StudentT:
        head, n_t = drift_head(self.head), xt.shape[1]
        prepared = head.prepare(xc, yc, mask, n_t, covariates, errors)
        tokens, summary = self._features(
            xc, prepared.remainder, xt, prepared.seen_mask(mask, estimated), prepared.embedding
        )
        return head.drift_forward(tokens[:, :n_t], tokens[:, n_t:], xt, xc, mask, summary, prepared, scattered)

    def _features(self, *points: Tensor) -> tuple[Tensor, Tensor]:
        """:meth:`_trunk`, on a CPU without gradients one task at a time."""
        # the biases of several tasks do not fit the cache
        if torch.is_grad_enabled() or points[0].device.type != "cpu":
            return self._trunk(*points)
        tasks = zip(*(t.split(1) for t in points), strict=True)
        tokens, summary = (torch.cat(t) for t in zip(*(self._trunk(*task) for task in tasks), strict=True))
        return tokens, summary

    def _trunk(
        self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor, embedding: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Features of targets and context ``(batch, n_t + n_c, dim)`` and statistics of the whole context.

        `embedding` ``(batch, n_t + n_c, dim)`` is added to that of each point.
        """
        n_t, xq = xt.shape[1], torch.cat([xt, xc], 1)
        biases, sums = self._dense_biases(xq, xc, yc, context_mask)
        # bfloat16 would round coordinates to whole cells and small differences of values to zero
        with torch.autocast(xc.device.type, enabled=False):
            with torch.no_grad():
                local, summary = self._statistics(xq, xc, yc, context_mask, sums)
            tokens = self._embed(xq, yc, local, embedding)
        for i, block in enumerate(self.blocks):
            tokens = block(tokens, n_t, *self._attend(i, xq, xc, biases, context_mask))
        return self.norm_out(tokens), summary

    def _dense_biases(
        self, xq: Tensor, xc: Tensor, yc: Tensor, mask: Tensor
    ) -> tuple[tuple[Tensor, ...] | None, Tensor | None]:
        """Bias of each layer and the sums of the statistics if dense attention is used, else None."""
        if self.dictionary is None or self.attention != "scan" or xq.shape[1] * xc.shape[1] > 2 * self.block_size**2:
            return None, None
        device = xc.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else xc.dtype
        amplitudes = torch.stack([bias.amplitudes for bias in self.biases if isinstance(bias, DictionaryBias)])
        with torch.autocast(device, enabled=False):
            biases, sums = shared_bias(self.dictionary, xq, xc, amplitudes, moments(yc, mask), dtype)
        return biases.unbind(1), sums

    def _attend(
        self, i: int, xq: Tensor, xk: Tensor, biases: tuple[Tensor, ...] | None, mask: Tensor
    ) -> tuple[Attend] | tuple[Tensor, Tensor, Tensor]:
        """Arguments of the attention module of layer `i` after queries and keys."""
        if self.attention == "dka":
            return xq, xk, mask
        if self.attention == "performer":
            features = self.features[i]
            return (lambda q, k, v: performer_attention(q, k, v, features, mask),)
        return (plain_attention(mask) if self.attention == "full" else self._scan(i, xq, xk, biases, mask),)

    def _scan(self, i: int, xq: Tensor, xk: Tensor, biases: tuple[Tensor, ...] | None, mask: Tensor) -> Attend:
        """Attention with the bias of layer `i`: dense if the biases are given, else scan attention."""
        if biases is not None:
            return lambda q, k, v: dense_attention(q, k, v, biases[i], mask)
        bias, size = self.biases[i], self.block_size
        if isinstance(bias, DictionaryBias):
            dictionary, parameters = self.dictionary, (bias.amplitudes,)
            assert dictionary is not None

            def block_bias(xq: Tensor, xk: Tensor, amplitudes: Tensor) -> Tensor:
                return dictionary_bias(dictionary(xq, xk), amplitudes)
        else:
            assert isinstance(bias, RBFBias)
            block_bias, parameters = rbf_bias, (bias.a, bias.b, bias.c)  # type: ignore[assignment]
        return lambda q, k, v: scan_attention(q, k, v, xq, xk, block_bias, parameters, mask, block_q=size, block_k=size)

    def _embed(self, xq: Tensor, yc: Tensor, local: Tensor, embedding: Tensor | None) -> Tensor:
        values, flags = with_unknown_targets(yc, xq.shape[1] - yc.shape[1])
        parts = [self.observed(flags), *([xq] if self.embed_x else []), values, local]
        embedded = self.embed(torch.cat(parts, -1))
        tokens: Tensor = self.norm_in(embedded if embedding is None else embedded + embedding)
        return tokens

    def _statistics(
        self, xq: Tensor, xc: Tensor, yc: Tensor, mask: Tensor, sums: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Statistics of each point and of the whole context, with zero features if the model uses none."""
        local, summary = xq.new_zeros(*xq.shape[:2], 0), xq.new_zeros(xq.shape[0], 0)
        if self.dictionary is None or not (self.statistics or self.means):
            return local, summary
        if sums is None:
            sums = self.dictionary.sums(xq, xc, moments(yc, mask))
        if self.statistics:
            local, summary = context_statistics(sums, yc, mask)
        return torch.cat([local, context_means(sums)], -1) if self.means else local, summary


def _head(
    name: str, arguments: tuple[int, ...], min_scale: float, *, nearby: bool, outliers: bool, thinned_steps: int
) -> GaussianHead | KrigingHead:
    """The head of this name, with the arguments of a kriging head."""
    if name not in KRIGING_HEADS:
        dim, _, d_y, *_ = arguments
        return GaussianHead(dim, 256, d_y, min_scale)
    head = KRIGING_HEADS[name](*arguments)  # type: ignore[arg-type]
    head.nearby = NearbyCorrection() if nearby else None
    head.outliers, head.thinned_steps = outliers, thinned_steps
    return head


def _check_attention(attention: str, embed_x: bool) -> None:
    if attention not in ATTENTIONS or not (embed_x or attention == "scan"):
        variants = ", ".join(ATTENTIONS)
        raise ValueError(f"attention must be one of {variants}, got {attention!r}; all but scan need embed_x=True")


def _check_scoring(head: str, scoring_steps: int, needed: bool) -> None:
    if needed and not (head in KRIGING_HEADS and scoring_steps):
        raise ValueError(
            f"outliers and thinned_steps need a kriging head with scoring_steps, got {head!r} with {scoring_steps}"
        )


def _check_kernels_and_head(kernels: str, scales: tuple[float, ...], uses_statistics: bool, head: str) -> None:
    if kernels not in ("rbf", "dictionary") or (kernels == "dictionary" and not scales):
        raise ValueError(
            f'kernels must be "rbf", or "dictionary" with scales, got {kernels!r} and scales={tuple(scales)}'
        )
    if uses_statistics and kernels != "dictionary":
        raise ValueError('statistics and means need the kernels of a dictionary: set kernels="dictionary" and scales')
    if head not in ("gaussian", *KRIGING_HEADS):
        raise ValueError(f'head must be "gaussian", "kriging" or "drift", got {head!r}')
