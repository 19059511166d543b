#!/usr/bin/env python3
"""step_torch.py [--steps N] [--threads N] [--layers ...]: seconds per training step of a GPT-2 in plain PyTorch, f32, on the CPU; with
--device cuda --dtype bf16 --compile on a GPU, in mixed precision and compiled, and beside it (--gemm N) the rate of bf16 products there.

The yardstick of the worker's step: Hugging Face's GPT-2 architecture (pre-norm, tanh GELU, learned positions, head tied to the token
table, no dropout) from torch modules, scaled_dot_product_attention, cross-entropy, backward and AdamW. Prints one JSON line:
best, median, and CPU seconds of the measured steps, and with --profile where the time goes.
Run it with an interpreter that has PyTorch, such as ~/.cache/dtrun-torch/bin/python.
"""
import argparse
import json
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attn, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.fc, self.out = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time_, hidden = x.shape
        q, k, v = (part.view(batch, time_, self.heads, -1).transpose(1, 2) for part in self.attn(self.ln_1(x)).split(hidden, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, time_, hidden))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, vocab: int, context: int):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, hidden), nn.Embedding(context, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gemm_teraflops(n: int, device: str) -> float:
    """Of n x n bf16 matrices: the best of five runs of ten products."""
    a, b = (torch.randn(n, n, device=device, dtype=torch.bfloat16) for _ in range(2))
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    best = float("inf")
    for _ in range(6):  # the first one warms up
        wait()
        start = time.perf_counter()
        for _ in range(10):
            a @ b
        wait()
        best = min(best, time.perf_counter() - start)
    return 10 * 2 * n**3 / best / 1e12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(layers=4, hidden=256, heads=4, vocab=4096, seq_len=128, batch_size=8, steps=20, warmup=3, threads=1).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="bf16: autocast, parameters stay f32")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--gemm", type=int, default=0, help="size of the matrices whose products are measured; 0: none")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    model = Gpt(args.layers, args.hidden, args.heads, args.vocab, args.seq_len).to(args.device)
    compute = torch.compile(model) if args.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    ids = torch.randint(args.vocab, (args.batch_size, args.seq_len + 1), device=args.device)
    times, cpu = [], 0.0

    def step() -> float:
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = compute(ids[:, :-1], ids[:, 1:].contiguous())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.item()

    for i in range(args.warmup + args.steps):
        start, start_cpu = time.perf_counter(), time.process_time()
        loss = step()
        if i >= args.warmup:
            times.append(time.perf_counter() - start)
            cpu += time.process_time() - start_cpu
    gemm = dict(gemm_teraflops=round(gemm_teraflops(args.gemm, args.device), 3)) if args.gemm else {}
    print(json.dumps(dict(what="torch step", torch=torch.__version__, threads=args.threads, best_ms=round(min(times) * 1e3, 2),
                          median_ms=round(statistics.median(times) * 1e3, 2), cpu_ms=round(cpu / len(times) * 1e3, 2), loss=round(loss, 4), **gemm)))
    if args.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for _ in range(5):
                step()
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=16))


if __name__ == "__main__":
    main()
