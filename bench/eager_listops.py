"""Time of a training step of configs/lra/listops/dense-paper.yaml in eager PyTorch.

What `longspan train -c configs/lra/listops/dense-paper.yaml --device cuda` is compared
with: the same model, batch and optimizer, with scaled_dot_product_attention, autocast
to bfloat16 and fused AdamW, on random tokens. Lengths are those of the data in --data,
batches are put together as longspan does. It prints one line of JSON; longspan writes
tokens_per_second and peak_bytes to metrics.jsonl.

    python3 bench/eager_listops.py --data listops
    python3 bench/eager_listops.py --data listops --mask none  # padding is seen as well
"""

import argparse
import json
import math
import os
import time

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    def __init__(self, width, heads, inner, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.mixer_norm = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-6)
        self.inner_in = nn.Linear(width, inner)
        self.inner_out = nn.Linear(inner, width)

    def dropped(self, x):
        return functional.dropout(x, self.dropout, self.training)

    def forward(self, x, mask):
        examples, tokens, width = x.shape
        heads = self.qkv(self.mixer_norm(x)).view(examples, tokens, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            q, k, v, mask, self.dropout if self.training else 0.0)
        mixed = self.out(mixed.transpose(1, 2).reshape(examples, tokens, width))
        x = x + self.dropped(mixed)
        inner = functional.gelu(
            self.inner_in(self.feed_forward_norm(x)), approximate="tanh")
        return x + self.dropped(self.inner_out(self.dropped(inner)))


class Classifier(nn.Module):
    def __init__(self, options):
        super().__init__()
        width = options.width
        self.dropout = options.dropout
        self.embedding = nn.Embedding(options.ids, width)
        self.cls = nn.Parameter(torch.zeros(width))
        self.register_buffer("positions", sinusoids(options.longest + 1, width))
        self.blocks = nn.ModuleList(
            Block(width, options.heads, options.inner, options.dropout)
            for _ in range(options.layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.hidden = nn.Linear(width, options.inner)
        self.answer = nn.Linear(options.inner, options.classes)

    def forward(self, ids, mask):
        x = self.embedding(ids)
        x = torch.cat([self.cls.expand(x.shape[0], 1, -1), x], 1)
        x = x + self.positions[: x.shape[1]]
        x = functional.dropout(x, self.dropout, self.training)
        for block in self.blocks:
            x = block(x, mask)
        return self.answer(functional.relu(self.hidden(self.norm(x)[:, 0])))


def sinusoids(count, width):
    at = torch.arange(count, dtype=torch.float64)[:, None]
    rate = torch.exp(-torch.arange(0, width, 2, dtype=torch.float64)
                     * math.log(10000.0) / width)
    return torch.stack([torch.sin(at * rate), torch.cos(at * rate)], 2).view(
        count, width).float()


def batch_of(options, lengths):
    """Ids with 0 as padding, labels, and the number of real tokens."""
    ids = torch.randint(1, options.ids, (len(lengths), int(lengths.max())))
    ids[torch.arange(ids.shape[1])[None] >= lengths[:, None]] = 0
    labels = torch.randint(0, options.classes, (len(lengths),))
    return ids.pin_memory(), labels.pin_memory(), int(lengths.sum())


def lengths_of(options):
    """Tokens of every expression; round brackets are none."""
    if not options.data:
        return torch.randint(options.shortest, options.longest + 1, (100000,))
    with open(os.path.join(options.data, "basic_train.tsv")) as file:
        next(file)
        words = (line.split("\t")[0].split() for line in file)
        counts = [sum(word not in "()" for word in line) for line in words]
    return torch.tensor(counts).clamp_max(options.longest)


def batches_of(options):
    """`bucket` batches are sorted by length together, then shuffled."""
    lengths = lengths_of(options)
    count, together = options.steps + options.warmup, options.bucket * options.batch
    made = []
    while len(made) < count:
        some = lengths[torch.randint(len(lengths), (together,))].sort().values
        some = some.view(options.bucket, options.batch)
        made += [batch_of(options, some[i]) for i in torch.randperm(options.bucket)]
    return made[:count]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"layers": 6, "width": 512, "heads": 8, "inner": 2048, "ids": 17,
                        "classes": 10, "batch": 32, "shortest": 500, "longest": 2000,
                        "bucket": 8, "steps": 50, "warmup": 10}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--data", default="",
                        help="folder of the ListOps files; without, any lengths")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--mask", choices=["padding", "none"], default="padding")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = Classifier(options).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.98),
                                  eps=1e-9, weight_decay=0.1, fused=True)
    batches = batches_of(options)

    def step(ids, labels):
        ids = ids.to("cuda", non_blocking=True)
        labels = labels.to("cuda", non_blocking=True)
        mask = None
        if options.mask == "padding":
            seen = functional.pad(ids > 0, (1, 0), value=True)
            mask = seen[:, None, None, :]
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(ids, mask)
        loss = functional.cross_entropy(logits.float(), labels)
        loss.backward()
        norm = torch.stack(torch._foreach_norm([p.grad for p in model.parameters()]))
        optimizer.step()
        # As longspan does, to stop where a loss or gradient is not finite.
        return torch.stack([loss.detach(), norm.norm()]).tolist()

    for ids, labels, _ in batches[: options.warmup]:
        step(ids, labels)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    for ids, labels, _ in batches[options.warmup:]:
        loss, norm = step(ids, labels)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    tokens = sum(real for _, _, real in batches[options.warmup:])
    print(json.dumps({
        "torch": torch.__version__, "device": torch.cuda.get_device_name(),
        "mask": options.mask, "parameters": sum(p.numel() for p in model.parameters()),
        "loss": loss, "gradient_norm": norm,
        "steps_per_second": options.steps / seconds,
        "tokens_per_second": tokens / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated()}))


if __name__ == "__main__":
    main()
