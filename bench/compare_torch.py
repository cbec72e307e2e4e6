"""The operators torch.ops.longspan beside FlexAttention with the same masks, and beside
flash-linear-attention where it is installed, on a GPU.

    python3 bench/compare_torch.py [--module build/cuda/liblongspan_ops.so] [--jobs 8]

Every case is checked before it is timed: results and gradients must agree. Contenders are
timed in turn in one process; numbers are medians over the turns. TFLOP/s count visible
pairs, 4 * pairs * d forward and 10 * pairs * d backward. LibTorch's own attention takes no
part in ours. Compiling FlexAttention takes longest: --jobs compiles in that many processes
before anything is measured, and leaves the results in PyTorch's cache on disk.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time

os.environ["LONGSPAN_TORCH_ATTENTION"] = "0"

import torch

HEADS = 16
TOKENS = 32768  # of all examples: the tensors are larger than the cache
WINDOW, GLOBAL = 256, 16
MOST_ERROR = 2e-2  # of bfloat16, which has 8 bits


class Pattern:
    """Which keys a query sees: for our operator, for FlexAttention, and how many."""

    must, good = 0.0, 0.0  # what to reach beside FlexAttention

    def __init__(self, length):
        self.length = length

    def options(self):
        return {}

    def mask(self):
        return None

    def block_mask(self):
        if self.mask() is None:
            return None
        return flex.create_block_mask(
            self.mask(), None, None, self.length, self.length, device="cuda"
        )

    def pairs(self):
        """Of all heads."""
        return HEADS * self.length**2


class Dense(Pattern):
    pass


class Causal(Pattern):
    def options(self):
        return {"causal": True}

    def mask(self):
        return lambda b, h, q, k: q >= k

    def pairs(self):
        return HEADS * self.length * (self.length + 1) // 2


class Window(Pattern):
    must, good = 1.5, 2.0

    def options(self):
        return {"window": [WINDOW, WINDOW]}

    def mask(self):
        return lambda b, h, q, k: (q - k).abs() <= WINDOW

    def pairs(self):
        at = torch.arange(self.length)
        seen = (at + WINDOW).clamp(max=self.length - 1) - (at - WINDOW).clamp(min=0) + 1
        return HEADS * int(seen.sum())


class Longformer(Pattern):
    """A window, and first tokens that see and are seen by all."""

    must = 2.0

    def options(self):
        at = torch.arange(self.length, dtype=torch.int32)
        near = torch.stack([at - WINDOW, at + WINDOW + 1], -1)
        near[:GLOBAL] = torch.tensor([0, self.length])
        first = torch.tensor([0, GLOBAL], dtype=torch.int32).expand_as(near)
        return {"spans": torch.stack([near, first], 1)}

    def mask(self):
        return lambda b, h, q, k: ((q - k).abs() <= WINDOW) | (q < GLOBAL) | (k < GLOBAL)

    def pairs(self):
        spans = self.options()["spans"].clamp(0, self.length)
        seen = (spans[..., 1] - spans[..., 0]).sum(1)
        twice = (GLOBAL - spans[:, 0, 0]).clamp(0, GLOBAL)
        return HEADS * int((seen - twice).sum())


class BigBird(Pattern):
    """Blocks: three around, the first and the last, and three at random, others for every
    head; the first and the last see all."""

    must = 2.0
    block = 64

    def __init__(self, length):
        super().__init__(length)
        count = length // self.block
        table = torch.zeros(HEADS, count, count, dtype=torch.bool)
        at = torch.arange(count)
        table[:, (at[:, None] - at).abs() <= 1] = True
        table[:, :, 0] = table[:, :, -1] = True
        generator = torch.Generator().manual_seed(1)
        order = torch.rand(table.shape, generator=generator).masked_fill(table, -1)
        random = order.topk(min(3, count), -1)
        table.scatter_(2, random.indices, table.gather(2, random.indices) | (random.values > 0))
        table[:, 0] = table[:, -1] = True
        self.table = table

    def options(self):
        # A span for every block that is seen, but one for all in rows that see all.
        most = int(self.table[:, 1:-1].sum(-1).max()) if self.table.size(1) > 2 else 1
        spans = torch.zeros(*self.table.shape[:2], most, 2, dtype=torch.int32)
        seen = self.table.int().sort(dim=-1, descending=True, stable=True)
        first = (seen.indices[..., :most] * self.block).int()
        spans[..., 0] = first
        spans[..., 1] = first + seen.values[..., :most] * self.block
        spans[:, [0, -1]] = 0
        spans[:, [0, -1], 0, 1] = self.length
        return {"spans": spans, "span_queries": self.block}

    def mask(self):
        table, block = self.table.cuda(), self.block
        return lambda b, h, q, k: table[h, q // block, k // block]

    def block_mask(self):
        # Head by head, because the mask of all heads would not fit into memory.
        block, parts = self.block, []
        for head in self.table.cuda():
            parts.append(
                flex.create_block_mask(
                    lambda b, h, q, k: head[q // block, k // block],
                    None, None, self.length, self.length, device="cuda",
                )
            )  # fmt: skip
        names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
        lists = [torch.cat([getattr(part, name) for part in parts], 1) for name in names]
        return flex.BlockMask.from_kv_blocks(*lists, mask_mod=self.mask())

    def pairs(self):
        return int(self.table.sum()) * self.block**2


class BigBird128(BigBird):
    """With blocks of the size that FlexAttention works in."""

    block = 128


PATTERNS = {
    "dense": Dense,
    "causal": Causal,
    "window": Window,
    "bigbird": BigBird,
    "bigbird-128": BigBird128,
    "longformer": Longformer,
}


class Timed:
    """Steps, so many in a row that their time can be measured."""

    def __init__(self, step):
        self.step = step
        for _ in range(3):
            step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        host = time.perf_counter() - start
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        whole = time.perf_counter() - start
        self.steps = min(max(math.ceil(4e-3 / whole), 1), 20)
        self.wait = int(2e9 * min(2 * self.steps * host, 0.05))
        self.times = []

    def turn(self):
        """The GPU first waits as long as the host needs to hand it all steps."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(self.wait)
        start.record()
        for _ in range(self.steps):
            self.step()
        end.record()
        end.synchronize()
        self.times.append(start.elapsed_time(end) / 1e3 / self.steps)


def in_turn(steps, turns):
    """The median times, and medians of the times of the others over the first's."""
    timed = [Timed(step) for step in steps]
    for _ in range(turns):
        for one in timed:
            one.turn()
    seconds = [statistics.median(one.times) for one in timed]
    ratios = [
        statistics.median(b / a for a, b in zip(timed[0].times, one.times)) for one in timed
    ]
    return seconds, ratios


def error(ours, theirs):
    """Relative, of results or gradients."""
    return max(
        ((a.float() - b.float()).norm() / b.float().norm()).item() for a, b in zip(ours, theirs)
    )


def steps_of(attention, inputs, slope):
    """Forward, and backward with the forward pass done once."""

    def forward():
        with torch.no_grad():
            return (attention(*inputs),)

    learned = [x.detach().requires_grad_() for x in inputs]
    out = attention(*learned)
    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(out, learned, slope, retain_graph=True),
    }


def random_inputs(length, width):
    torch.manual_seed(1)
    shape = (max(TOKENS // length, 1), HEADS, length, width)
    return [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4)]


def flex_steps(pattern, inputs, slope):
    mask = pattern.block_mask()
    return steps_of(lambda q, k, v: compiled_flex(q, k, v, block_mask=mask), inputs, slope)


def report(args, line):
    if args.json:
        print(json.dumps(line), flush=True)
        return
    other = line["reference"]
    if "refused" in line:
        print(f"{line['case']:44} {other}: {line['refused']}", flush=True)
        return
    low, good = line["ratio"] < line["must"], line["good"] and line["ratio"] >= line["good"]
    rate = f"{line['tflops']:9.1f}" if line["tflops"] else f"{'-':>9}"
    print(
        f"{line['case']:44}{1e3 * line['seconds']:10.3f}{rate}"
        f"{1e3 * line['reference_seconds']:12.3f}  {other:12}{line['ratio']:7.2f}x"
        f"{'!' if low else '+' if good else ' '}{line['error']:10.1e}",
        flush=True,
    )


def compare(args, case, ours, theirs, reference, flop, pattern=Pattern):
    """Checks both directions first, so that nothing wrong is timed."""
    common = {"case": case, "reference": reference}
    errors = {way: error(ours[way](), theirs[way]()) for way in ours}
    for way, amount in errors.items():
        if not amount < MOST_ERROR:
            sys.exit(f"{case} {way}: differs from {reference} by {amount} of its size")
    for way, factor in ("forward", 4), ("backward", 10):
        if way not in ours:
            continue
        seconds, ratios = in_turn([ours[way], theirs[way]], args.turns)
        report(
            args,
            common
            | {
                "case": f"{case} {way}",
                "seconds": seconds[0],
                "reference_seconds": seconds[1],
                "ratio": ratios[1],
                "tflops": flop and factor * flop / seconds[0] / 1e12,
                "must": pattern.must,
                "good": pattern.good,
                "error": errors[way],
            },
        )


def first_line(error):
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def softmax_attention(args, name, length, width):
    pattern = PATTERNS[name](length)
    *inputs, slope = random_inputs(length, width)
    case = f"{name} b {inputs[0].size(0)} n {length} d {width}"
    options = pattern.options()
    ours = steps_of(
        lambda q, k, v: torch.ops.longspan.block_attention(q, k, v, **options)[0], inputs, slope
    )
    try:
        theirs = flex_steps(pattern, inputs, slope)
        for step in theirs.values():
            step()
    except Exception as refusal:
        line = {"case": case, "reference": "FlexAttention", "refused": first_line(refusal)}
        report(args, line)
        return
    flop = inputs[0].size(0) * pattern.pairs() * width
    compare(args, case, ours, theirs, "FlexAttention", flop, pattern)


def linear_attention(args, length):
    """Causal, 64 features and 64 values; divided by the weights."""
    try:
        from fla.ops.linear_attn import chunk_linear_attn
    except ImportError:
        return
    *inputs, slope = random_inputs(length, 64)
    inputs[:2] = [x.abs() for x in inputs[:2]]

    def theirs(q, k, v):
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        out = chunk_linear_attn(q, k, v, normalize=True)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    case = f"linear 64x64 b {inputs[0].size(0)} n {length}"
    ours = steps_of(
        lambda q, k, v: torch.ops.longspan.linear_attention(q, k, v, causal=True)[0],
        inputs,
        slope,
    )
    name = "fla"
    compare(args, case, ours, steps_of(theirs, inputs, slope), name, 0)


def compile_only(length, width, name):
    *inputs, slope = random_inputs(length, width)
    for step in flex_steps(PATTERNS[name](length), inputs, slope).values():
        step()
    torch.cuda.synchronize()


def compile_first(args, cases):
    waiting, running = list(cases), []
    while waiting or running:
        while waiting and len(running) < args.jobs:
            words = [str(word) for word in waiting.pop(0)]
            command = [sys.executable, __file__, "--compile-only", *words]
            command += ["--autotune"] if args.autotune else []
            running.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        time.sleep(0.1)
        running = [process for process in running if process.poll() is None]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(word) for word in text.split(",")]
    parser.add_argument("--module", default="build/cuda/liblongspan_ops.so")
    parser.add_argument("--lengths", type=numbers, default=[16384, 2048])
    parser.add_argument("--widths", type=numbers, default=[64, 128])
    parser.add_argument("--patterns", type=lambda text: text.split(","), default=list(PATTERNS))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="a line of JSON for each case")
    parser.add_argument(
        "--autotune", action="store_true", help="let FlexAttention try more kernels"
    )
    parser.add_argument("--compile-only", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    for name in args.patterns:
        if name not in PATTERNS:
            parser.error(f"no pattern '{name}'; there are {', '.join(PATTERNS)}")

    global flex, compiled_flex
    import torch.nn.attention.flex_attention as flex
    from torch._functorch import config

    config.donated_buffer = False  # backward runs many times
    torch._dynamo.config.recompile_limit = 256
    mode = "max-autotune-no-cudagraphs" if args.autotune else None
    compiled_flex = torch.compile(flex.flex_attention, dynamic=False, mode=mode)
    if args.compile_only:
        length, width, name = args.compile_only
        compile_only(int(length), int(width), name)
        return

    torch.ops.load_library(args.module)
    cases = [(n, d, name) for n in args.lengths for d in args.widths for name in args.patterns]
    if args.jobs > 0:
        compile_first(args, cases)
    if not args.json:
        print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, bfloat16")
        print("ratio: how many times faster than the reference; !: too little, +: good")
        print(
            f"\n{'case':44}{'ms':>10}{'TFLOP/s':>9}{'reference ms':>12}  {'reference':12}"
            f"{'ratio':>8} {'error':>10}"
        )
    for length, width, name in cases:
        softmax_attention(args, name, length, width)
        torch.cuda.empty_cache()
    for length in args.lengths:
        linear_attention(args, length)


if __name__ == "__main__":
    main()
