"""The operators of the module longspan_ops against plain PyTorch.

ops_test.py MODULE LIBTORCH PAGE [unittest's options]

LIBTORCH is the library that MODULE was built with, PAGE the documentation whose Python
is run too. Exit code 77: this Python has not that PyTorch.
"""

import math
import os
import re
import sys
import unittest

MODULE, LIBTORCH, PAGE = sys.argv[1:4]


def skip(reason):
    print(f"skipped: {sys.executable}: {reason}")
    sys.exit(77)


try:
    import torch
except ImportError as error:
    skip(error)


def folder_of_libtorch():
    with open("/proc/self/maps") as lines:
        for line in lines:
            found = re.search(r"\S*/libtorch_cpu\.so\S*", line)
            if found:
                return os.path.dirname(os.path.realpath(found[0]))


if folder_of_libtorch() != os.path.dirname(os.path.realpath(LIBTORCH)):
    skip(f"its LibTorch is in {folder_of_libtorch()}, the module was built with {LIBTORCH}")

torch.ops.load_library(MODULE)
longspan = torch.ops.longspan
HAS_COMPILE = int(torch.__version__.split(".")[0]) >= 2
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
INFINITY = math.inf


def numbers(*sizes, seed=0, dtype=torch.double, grad=False):
    generator = torch.Generator().manual_seed(1000 * seed + sum(sizes))
    x = torch.randn(*sizes, generator=generator, dtype=torch.double).to(dtype)
    return x.requires_grad_(grad)


def qkv(n, m=None, *, heads=2, key_heads=None, width=6, value_width=5, **options):
    m, key_heads = m or n, key_heads or heads
    return (
        numbers(2, heads, n, width, seed=1, **options),
        numbers(2, key_heads, m, width, seed=2, **options),
        numbers(2, key_heads, m, value_width, seed=3, **options),
    )


def plain_attention(q, k, v, seen=None, bias=None, scale=None):
    """`seen` and `bias` can be broadcast to [B, H, N, M]."""
    k, v = (x.repeat_interleave(q.size(1) // x.size(1), 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or q.size(-1) ** -0.5)
    if bias is not None:
        scores = scores + bias
    if seen is not None:
        scores = scores.masked_fill(~seen, -INFINITY)
    return torch.softmax(scores, -1).nan_to_num(0) @ v, torch.logsumexp(scores, -1)


def distances(n, m):
    """Of the position of query i, i + m - n, from key j."""
    return torch.arange(n)[:, None] + m - n - torch.arange(m)


class Case(unittest.TestCase):
    def same(self, got, expected, tolerance=1e-10):
        for one, other in zip(got, expected):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)

    def same_with_gradients(self, inputs, got, expected):
        """Both are tuples of results that depend on `inputs`."""
        self.same(got, expected)

        def gradients(results):
            total = sum(
                (x.masked_fill(x.isinf(), 0) * numbers(*x.shape, seed=9)).sum()
                for x in results
            )
            return torch.autograd.grad(total, inputs)

        self.same(gradients(got), gradients(expected))


class BlockAttention(Case):
    def check(self, inputs, seen=None, bias=None, **options):
        got = longspan.block_attention(*inputs[:3], **options)
        expected = plain_attention(*inputs[:3], seen, bias, options.get("scale"))
        self.same_with_gradients(inputs, got, expected)

    def test_every_pair(self):
        self.check(qkv(70, 130, grad=True))
        self.check(qkv(5, 5, heads=4, key_heads=2, grad=True), scale=0.3)

    def test_causal_ends_with_the_last_key(self):
        for n, m in (1, 1), (70, 70), (3, 130), (130, 70):
            seen = distances(n, m) >= 0
            self.check(qkv(n, m, grad=True), seen, causal=True)

    def test_window(self):
        for n, m in (140, 140), (10, 140):
            apart = distances(n, m)
            inputs = qkv(n, m, grad=True)
            self.check(inputs, (apart <= 9) & (apart >= -4), window=[9, 4])
            self.check(inputs, (apart <= 9) & (apart >= 0), window=[9, 4], causal=True)
            seen = (apart <= 27) & (apart >= -12) & (apart % 3 == 0)
            self.check(inputs, seen, window=[9, 4, 3])

    def test_spans(self):
        n, m = 75, 130
        generator = torch.Generator().manual_seed(1)
        spans = torch.randint(-9, m + 9, (n, 3, 2), generator=generator)
        spans[7] = 0  # sees nothing
        key = torch.arange(m)
        seen = ((key >= spans[..., :1]) & (key < spans[..., 1:])).any(1)
        inputs = qkv(n, m, grad=True)
        for kind in torch.int32, torch.int64:
            self.check(inputs, seen, spans=spans.to(kind))
        out, lse = longspan.block_attention(*inputs, spans=spans)
        self.assertTrue((out[:, :, 7] == 0).all() and (lse[:, :, 7] == -INFINITY).all())
        seen = seen & (distances(n, m) >= 0) & (distances(n, m) <= 40)
        self.check(inputs, seen, spans=spans, causal=True, window=[40, 9])

    def test_spans_of_heads_and_of_groups_of_queries(self):
        n, m, heads, shared = 75, 130, 2, 8
        groups = (n + shared - 1) // shared
        generator = torch.Generator().manual_seed(1)
        spans = torch.randint(-9, m + 9, (heads, groups, 3, 2), generator=generator)
        inputs = qkv(n, m, heads=heads, grad=True)
        for _ in range(2):  # the second finds no layout of the first
            key = torch.arange(m)
            seen = ((key >= spans[..., :1]) & (key < spans[..., 1:])).any(2)
            seen = seen.repeat_interleave(shared, 1)[:, :n]
            self.check(inputs, seen, spans=spans, span_queries=shared)
            self.check(inputs, seen[1], spans=spans[1], span_queries=shared)
            spans[1, 2] += 5

    def test_intervals_of_keys(self):
        n, m = 70, 90
        inputs = qkv(n, m, grad=True)
        lengths = torch.tensor([90, 33])
        keep = torch.arange(m) < lengths[:, None, None]  # [B, 1, M]
        key_to = keep * m
        self.check(inputs, keep[:, :, None], key_to=key_to)
        key_from = torch.arange(m)
        seen = keep[:, :, None] & (distances(n, m) >= 0)
        self.check(inputs, seen, key_from=key_from, key_to=key_to)
        positions = torch.arange(n) * 2
        seen = positions[:, None] >= key_from
        self.check(inputs, seen, key_from=key_from, query_positions=positions)

    def test_buckets(self):
        n, m = 70, 90
        query_buckets, key_buckets = torch.arange(n) % 3, torch.arange(m) % 4
        seen = query_buckets[:, None] == key_buckets
        self.check(
            qkv(n, m, grad=True), seen, query_buckets=query_buckets, key_buckets=key_buckets
        )

    def test_rows(self):
        n = 70
        q, k, v = qkv(n, grad=True)
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1))
        place = order.argsort()
        seen = (place[:, None] - place).abs() <= 4
        options = dict(query_rows=order, key_rows=order, window=[4, 4])
        self.check((q, k, v), seen, **options)

    def test_biases(self):
        n, m = 20, 70
        q, k, v = inputs = qkv(n, m, grad=True)
        apart = distances(n, m)

        def with_bias(name, tensor, bias, **options):
            tensor.requires_grad_()
            self.check((*inputs, tensor), None, bias(tensor), **{name: tensor}, **options)

        with_bias("column_bias", numbers(2, 1, m), lambda x: x[:, :, None])
        with_bias("dense_bias", numbers(1, 2, n, m), lambda x: x)
        with_bias("slopes", numbers(2), lambda x: -x[:, None, None] * apart.abs())
        entry = (apart + 6).clamp(0, 12)
        with_bias("table", numbers(2, 13), lambda x: x[:, entry], table_first=-6)

        vectors, offset = numbers(2, 13, 6, grad=True), numbers(2, 6, grad=True)

        def scores(x):
            shifted = q + offset[:, None]
            return (shifted @ x.transpose(1, 2)).gather(
                3, entry.expand(2, 2, n, m)
            ) * 6**-0.5

        options = dict(vectors=vectors, offset=offset, table_first=-6)
        self.check((*inputs, vectors, offset), None, scores(vectors), **options)

        positions = torch.randint(0, 99, (2, 1, m), generator=torch.Generator())
        bias = -0.5 * (torch.arange(n)[:, None] - positions[:, :, None]).abs()
        options = dict(query_positions=torch.arange(n), key_positions=positions)
        slopes = torch.tensor([0.5], dtype=torch.double)
        self.check(inputs, None, bias, slopes=slopes, **options)

    def test_dropout(self):
        n, p = 256, 0.3
        q, k, _ = qkv(n)
        eye = torch.eye(n, dtype=torch.double).expand(2, 2, n, n).contiguous()
        eye.requires_grad_()
        weights, lse = longspan.block_attention(q, k, eye)
        dropped, dropped_lse = longspan.block_attention(q, k, eye, dropout=p, seed=4)
        again, _ = longspan.block_attention(q, k, eye, dropout=p, seed=4)
        other, _ = longspan.block_attention(q, k, eye, dropout=p, seed=5)
        self.assertTrue(torch.equal(dropped, again))
        self.assertFalse(torch.equal(dropped, other))
        self.same([dropped_lse], [lse])
        kept = dropped != 0
        self.same([dropped], [weights * kept / (1 - p)])
        count = kept.numel()
        self.assertLess(
            abs(kept.double().sum() / count - (1 - p)), 5 * (p * (1 - p) / count) ** 0.5
        )
        (slope,) = torch.autograd.grad(dropped.sum(), eye)
        self.same([slope[..., 0]], [dropped.sum(-2)])

    def test_short_types(self):
        inputs = qkv(70, dtype=torch.bfloat16)
        exact, exact_lse = plain_attention(*(x.double() for x in inputs))
        plain, _ = plain_attention(*inputs)
        out, lse = longspan.block_attention(*inputs)
        self.assertEqual((out.dtype, lse.dtype), (torch.bfloat16, torch.float))
        error = (out.double() - exact).abs().max()
        self.assertLessEqual(error, 2 * (plain.double() - exact).abs().max())
        self.same([lse], [exact_lse.float()], 1e-2)
        for kind in torch.half, torch.bfloat16:
            short = [x.to(kind).requires_grad_() for x in inputs]
            out, _ = longspan.block_attention(*short, causal=True)
            out.sum().backward()
            self.assertEqual((out.dtype, short[0].grad.dtype), (kind, kind))

    def test_only_wanted_gradients(self):
        q, k, v = qkv(9)
        k.requires_grad_()
        table = numbers(1, 5, grad=True)
        out, _ = longspan.block_attention(q, k, v, table=table, column_bias=k[..., 0])
        out.square().sum().backward()
        self.assertTrue(k.grad.abs().sum() > 0 and table.grad.abs().sum() > 0)
        self.assertIsNone(q.grad)

    def test_gradcheck(self):
        slopes, table = numbers(2, seed=5, grad=True), numbers(1, 4, seed=6, grad=True)

        def run(q, k, v, slopes, table):
            return longspan.block_attention(
                q, k, v, slopes=slopes, table=table, table_first=-1, causal=True,
                dropout=0.2, seed=1,
            )  # fmt: skip

        torch.autograd.gradcheck(run, (*qkv(5, 7, grad=True), slopes, table))
        torch.autograd.gradcheck(
            lambda *x: longspan.block_attention(*x, window=[9, 3]),
            qkv(67, grad=True), fast_mode=True,
        )  # fmt: skip


class AttentionWeights(Case):
    def test_are_those_of_block_attention(self):
        n, m, some = 70, 130, [69, 0, 5]
        q, k, v = qkv(n, m, heads=4, key_heads=2, grad=True)
        slopes = numbers(4, grad=True)
        eye = torch.eye(m, dtype=torch.double).expand(2, 2, m, m)
        options = dict(window=[40, 3], causal=True, slopes=slopes, scale=0.3)
        _, lse = longspan.block_attention(q, k, v, **options)
        apart = distances(n, m)
        seen = (apart >= 0) & (apart <= 40)
        bias = -slopes[:, None, None] * apart.abs()
        all_weights, _ = plain_attention(q, k, eye, seen, bias, scale=0.3)
        rows = longspan.row_weights(q, k, lse, some, **options)
        columns = longspan.column_mass(q, k, lse, **options)
        self.assertFalse(rows.requires_grad or columns.requires_grad)
        expected = all_weights[:, :, some], all_weights.sum(2)
        self.same((rows, columns), [x.detach() for x in expected])

    def test_shapes_without_data(self):
        for dtype, lse_dtype in (torch.double, torch.double), (torch.bfloat16, torch.float):
            for operator, arguments, options in constant_examples("cpu", dtype):
                result = operator(*arguments, **options)
                self.assertEqual(result.dtype, lse_dtype)
                given = mapped((arguments, options), lambda x: x.to("meta"))
                there = operator(*given[0], **given[1])
                self.assertTrue(there.is_meta)
                self.assertEqual(form([there]), form([result]))


def plain_linear(q, k, v, causal=False, log_decay=None, weights=None, state=None):
    """Pair by pair, with the normaliser none: num, den and the state."""
    n, m = q.size(2), k.size(2)
    v1 = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    decay = torch.zeros(1, 1, m).to(q) if log_decay is None else log_decay
    total = decay.cumsum(-1)
    pairs = (q @ k.transpose(-1, -2)) * (
        (total[..., :, None] - total[..., None, :]).tril().exp().tril() if causal else 1
    )
    after = (total[..., -1:] - total).exp()[..., None]
    if weights is not None:
        pairs, k = pairs * weights[..., None, :], k * weights[..., None]
    sums = pairs @ v1
    end = (k * after).transpose(-1, -2) @ v1
    if state is not None:
        sums = sums + q * total.exp()[..., None] @ state
        end = end + total[..., -1:, None].exp() * state
    return sums[..., :-1], sums[..., -1], end


class LinearAttention(Case):
    def features(self, n, m=None, **options):
        q, k, v = qkv(n, m, **options)
        return [x.detach().requires_grad_() for x in (q.abs(), k.abs(), v)]

    def test_every_pair(self):
        inputs = self.features(40, 70)
        weights = numbers(2, 1, 70).abs().requires_grad_()
        num, den, state = plain_linear(*inputs, weights=weights)
        expected = num / den[..., None], den.log(), state
        got = longspan.linear_attention(*inputs, weights=weights)
        self.assertEqual(got[3].shape, (0,))
        self.same_with_gradients((*inputs, weights), got[:3], expected)

    def test_causal_with_decay_and_state(self):
        inputs = self.features(70)
        decay = (-numbers(2, 2, 70).abs() / 9).requires_grad_()
        state = numbers(2, 2, 6, 6, seed=7).abs().requires_grad_()
        num, den, end = plain_linear(*inputs, causal=True, log_decay=decay, state=state)
        expected = num / (den[..., None] + 1e-3), den.log(), end
        got = longspan.linear_attention(
            *inputs, causal=True, log_decay=decay, state=state, normaliser="plus",
            epsilon=1e-3,
        )  # fmt: skip
        self.same_with_gradients((*inputs, decay, state), got[:3], expected)

    def test_state_goes_on(self):
        q, k, v = self.features(30)
        whole = longspan.linear_attention(q, k, v, causal=True)
        parts, options = [], {}
        for some in slice(0, 11), slice(11, 30):
            part = (x[:, :, some] for x in (q, k, v))
            out, _, state, _ = longspan.linear_attention(*part, causal=True, **options)
            parts.append(out)
            options = dict(state=state)
        self.same([torch.cat(parts, 2), state], [whole[0], whole[2]])

    def test_log_features(self):
        inputs = q, k, v = qkv(33, grad=True)
        plain = longspan.linear_attention(q.exp(), k.exp(), v, causal=True)
        *logs, most = longspan.linear_attention(*inputs, causal=True, log_features=True)
        self.assertFalse(most.requires_grad)
        self.same_with_gradients(inputs, logs[:2], plain[:2])
        self.same([logs[2] * most.exp()[..., None, None]], [plain[2]])

    def test_types(self):
        inputs = [x.detach().to(torch.bfloat16) for x in self.features(9)]
        results = longspan.linear_attention(*inputs)
        kinds = [x.dtype for x in results]
        self.assertEqual(kinds, [torch.bfloat16] + 3 * [torch.float])

    def test_gradcheck(self):
        def run(*inputs):
            return longspan.linear_attention(*inputs, causal=True, normaliser="none")[:3]

        torch.autograd.gradcheck(run, self.features(5, heads=2, key_heads=1))


class Merge(Case):
    def test_parts_are_the_whole(self):
        q, k, v = inputs = qkv(20, 90, grad=True)
        parts = [
            longspan.block_attention(q, k[:, :, some], v[:, :, some], causal=causal)
            for some, causal in ((slice(0, 64), False), (slice(64, 90), True))
        ]
        merged = longspan.merge(*map(list, zip(*parts)))
        self.same_with_gradients(
            inputs, merged, longspan.block_attention(*inputs, causal=True)
        )

    def test_gradcheck(self):
        outs = [numbers(1, 2, 3, 4, seed=i, grad=True) for i in range(3)]
        lses = [numbers(1, 2, 3, seed=i, grad=True) for i in range(3)]
        torch.autograd.gradcheck(
            lambda *x: longspan.merge(x[:3], x[3:]), (*outs, *lses)
        )


def plain_pool(x, scores, members, how):
    """`members` [G, N] bool."""
    rows, lses = [], []
    for some in members:
        here = x[:, :, some]
        weights = scores[:, :, some]
        lses.append(torch.logsumexp(weights, -1))
        if here.size(2) == 0:
            rows.append(torch.zeros_like(x[:, :, 0]))
        elif how == "softmax":
            rows.append((torch.softmax(weights, -1)[..., None] * here).sum(2))
        else:
            rows.append(getattr(here, "amax" if how == "max" else how)(2))
    out = torch.stack(rows, 2)
    return (out, torch.stack(lses, 2)) if how == "softmax" else (out,)


class Pool(Case):
    def check(self, run, members):
        x, scores = numbers(2, 3, members.size(1), 5), numbers(2, 3, members.size(1))
        keep = torch.arange(members.size(1)) % 5 != 3
        for how in "max", "mean", "sum", "softmax":
            x, scores = (y.detach().requires_grad_() for y in (x, scores))
            given = dict(scores=scores) if how == "softmax" else {}
            inputs = (x, scores) if how == "softmax" else (x,)
            expected = plain_pool(x, scores, members & keep, how)
            out, lse = run(x, how, keep=keep.expand(1, 1, -1), **given)
            got = (out, lse) if how == "softmax" else (out,)
            self.same_with_gradients(inputs, got, expected)
            self.assertEqual(lse.numel() > 0, how == "softmax")

    def test_spans(self):
        spans = torch.tensor([[0, 9], [5, 70], [3, 4], [8, 8], [60, 70]])
        token = torch.arange(70)
        members = (token >= spans[:, :1]) & (token < spans[:, 1:])
        self.check(lambda x, how, **more: longspan.pool_spans(x, spans, how, **more), members)

    def test_prefixes(self):
        token = torch.arange(70)
        for segment in 16, 0:
            start = token - token % (segment or 70)
            members = (token <= token[:, None]) & (token >= start[:, None])
            self.check(
                lambda x, how, **more: longspan.pool_prefixes(x, segment, how, **more),
                members,
            )

    def test_gradcheck(self):
        x, scores = numbers(1, 2, 7, 3, grad=True), numbers(1, 2, 7, grad=True)
        spans = torch.tensor([[0, 4], [2, 7]])
        torch.autograd.gradcheck(
            lambda x, s: longspan.pool_spans(x, spans, "softmax", scores=s), (x, scores)
        )


def examples(device, dtype=torch.float):
    """(operator, arguments, options) of every operator with gradients."""

    def some(*sizes):
        return numbers(*sizes, dtype=dtype).to(device).requires_grad_()

    q, k, v = (x.detach().to(device).requires_grad_() for x in qkv(20, 30, dtype=dtype))
    spans = torch.tensor([[0, 4], [2, 30]], device=device)
    dense = dict(
        causal=True, window=[9, 3], slopes=some(2), vectors=some(1, 7, 6), offset=some(1, 6),
        key_to=torch.full((30,), 28, device=device), dropout=0.1, seed=3,
    )  # fmt: skip
    pairs = dict(spans=spans.expand(20, 2, 2), scale=0.5, dense_bias=some(1, 1, 20, 30))
    outs, lses = [some(2, 2, 20, 5), some(2, 2, 20, 5)], [some(2, 2, 20), some(2, 2, 20)]
    return [
        (longspan.block_attention, (q, k, v), dense),
        (longspan.block_attention, (q, k, v), pairs),
        (longspan.linear_attention, (q, k, v), dict(normaliser="none")),
        (longspan.linear_attention, (q, k, v), dict(log_features=True)),
        (longspan.merge, (outs, lses), {}),
        (longspan.pool_spans, (k, spans, "max"), {}),
        (longspan.pool_spans, (k, spans, "softmax"), dict(scores=some(2, 2, 30))),
        (longspan.pool_prefixes, (k, 7, "mean"), {}),
    ]


def constant_examples(device, dtype=torch.float):
    """(operator, arguments, options) of the operators without gradients."""
    q, k, _ = (x.to(device) for x in qkv(20, 30, dtype=dtype, grad=True))
    _, lse = longspan.block_attention(q, k, k, causal=True)
    return [
        (longspan.row_weights, (q, k, lse, [3, 19]), dict(causal=True)),
        (longspan.column_mass, (q, k, lse), dict(causal=True)),
    ]


def mapped(value, change):
    """`value` with all tensors in it changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: mapped(one, change) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(one, change) for one in value)
    return value


def form(tensors):
    return [(x.shape, x.dtype, x.stride(), x.requires_grad) for x in tensors]


class Shapes(Case):
    def test_without_data(self):
        for dtype in torch.float, torch.double, torch.bfloat16:
            for operator, arguments, options in examples("cpu", dtype):
                with self.subTest(operator=str(operator), dtype=dtype):
                    self.check(operator, arguments, options)

    def check(self, operator, arguments, options):
        def on_meta(x):
            return torch.empty_like(x, device="meta").requires_grad_(x.requires_grad)

        def run(arguments, options):
            leaves = []
            mapped((arguments, options), lambda x: leaves.append(x) or x)
            results = operator(*arguments, **options)
            sum(x.sum().float() for x in results if x.requires_grad).backward()
            return results, [x.grad for x in leaves if x.requires_grad]

        results, gradients = run(arguments, options)
        results_there, gradients_there = run(*mapped((arguments, options), on_meta))
        self.assertTrue(all(x.is_meta for x in [*results_there, *gradients_there]))
        self.assertEqual(form(results_there), form(results))
        self.assertEqual(form(gradients_there), form(gradients))

    @unittest.skipUnless("cuda" in DEVICES, "there is no GPU")
    def test_other_devices(self):
        for here, there in zip(examples("cpu"), examples("cuda")):
            results = []
            for operator, arguments, options in here, there:
                out = operator(*arguments, **options)[0]
                leaf = arguments[0] if torch.is_tensor(arguments[0]) else arguments[0][0]
                results.append([out, *torch.autograd.grad(out.sum(), leaf)])
            self.same([x.cpu() for x in results[1]], results[0], 1e-4)


class Refusals(Case):
    def test_sentences(self):
        q, k, v = qkv(5, grad=True)
        wide = numbers(2, 2, 5, 9)
        spans = torch.zeros(5, 2)
        attention, linear = longspan.block_attention, longspan.linear_attention
        cases = [
            (lambda: attention(q, wide, v), "keys must be as wide as queries, 6, got 9"),
            (lambda: attention(q, k, v.float()), "k and v must have the type of q"),
            (lambda: attention(q, k, v, window=[3]), "window must be [before, after]"),
            (lambda: attention(q, k, v, window=[3, -1]), "window: before and after must"),
            (lambda: attention(q, k, v, spans=spans), "spans must be [N, S, 2] of int32"),
            (lambda: attention(q, k, v, spans=spans, span_queries=0), "must be 1 or more"),
            (lambda: attention(q, k, v, dropout=1.0), "the dropout probability must be"),
            (lambda: longspan.row_weights(q, k, q[..., 0], [5]), "rows must be between 0"),
            (lambda: longspan.column_mass(q, k, q), "lse must be [2, 2, 5], got"),
            (lambda: linear(q, k, v, normaliser="plu"), "did you mean 'plus'?"),
            (lambda: linear(q, k, v, log_decay=v[..., 0]), "log_decay is for causal only"),
            (lambda: longspan.merge([q], []), "as many lses as outs, got 0 and 1"),
            (lambda: longspan.pool_spans(q, spans.long(), "men"), "did you mean 'mean'?"),
            (lambda: longspan.pool_prefixes(q, -1, "max"), "segments must have 1 token"),
        ]
        for call, words in cases:
            with self.subTest(words=words), self.assertRaises(RuntimeError) as caught:
                call()
            message = str(caught.exception)
            self.assertIn(words, message)
            self.assertNotIn("\n", message)

    def test_second_derivatives(self):
        for operator, arguments, options in examples("cpu"):
            out = operator(*arguments, **options)[0]
            leaf = arguments[0] if torch.is_tensor(arguments[0]) else arguments[0][0]
            with self.assertRaisesRegex(RuntimeError, "no second derivatives"):
                torch.autograd.grad(out.sum(), leaf, create_graph=True)


@unittest.skipUnless(HAS_COMPILE, "torch.compile came with PyTorch 2")
class Compiled(Case):
    @unittest.skipUnless(hasattr(torch.library, "opcheck"), "opcheck came with PyTorch 2.4")
    def test_operators(self):
        for operator, arguments, options in examples("cpu") + constant_examples("cpu"):
            with self.subTest(operator=str(operator)):
                torch.library.opcheck(operator.default, arguments, options)

    def test_layer(self):
        layer = torch.nn.Linear(8, 24, dtype=torch.double)
        def run(x, seed):
            q, k, v = layer(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
            near, near_lse = longspan.block_attention(
                q, k, v, causal=True, window=[5, 0], dropout=0.1, seed=seed
            )
            spans = torch.tensor([[0, 3], [3, 9]])
            few, _ = longspan.pool_spans(k, spans, "mean")
            far, far_lse = longspan.block_attention(q, few, few)
            both, _ = longspan.merge([near, far], [near_lse, far_lse])
            scan = longspan.linear_attention(q.exp(), k.exp(), v, causal=True)[0]
            return both + scan

        parameters = list(layer.parameters())
        from torch._dynamo.testing import CompileCounterWithBackend

        counter = CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(run, backend=counter, fullgraph=True)
        for seed, length in enumerate([9, 9, 12, 15, 15, 70, 71, 72]):
            x = numbers(2, length, 8)
            results = []
            for function in run, compiled:
                out = function(x, seed)
                results.append([out, *torch.autograd.grad(out.sum(), parameters)])
            self.same(*results)
        self.assertLessEqual(counter.frame_count, 4)  # other lengths and seeds are no news


class Page(unittest.TestCase):
    def test_code_runs(self):
        with open(PAGE) as page:
            blocks = re.findall(r"```python\n(.*?)```", page.read(), re.DOTALL)
        self.assertGreater(len(blocks), 4)
        names = {}
        for block in blocks:
            code = re.sub(r'load_library\("[^"]*"\)', f"load_library({MODULE!r})", block)
            exec(compile(code, PAGE, "exec"), names)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
