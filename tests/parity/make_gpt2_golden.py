#!/usr/bin/env python3
"""make_gpt2_golden.py --out DIR [--seed N]: trains a tiny GPT-2 in PyTorch for 5 steps and writes what it saw.

DIR/weights.safetensors   initial parameters under Hugging Face's names, with the "transformer." prefix of save_pretrained
DIR/expected.safetensors  tokens, targets [steps, batch, sequence]; loss, norm, lr by step; grad.NAME of the first step; after.NAME
                          at the end. Its metadata holds the configuration and the hyper-parameters.

The files in tests/data/parity were made with --seed 1 by PyTorch 2.15 on one thread; the seed fixes them on one machine.
The model is GPT2LMHeadModel of Hugging Face written out in plain torch (no dropout), so that no further package is needed.
"""
import argparse
import json
import math
import pathlib
import struct

import torch
import torch.nn.functional as F

CONFIG = dict(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3, layer_norm_epsilon=1e-5)
# The gradient of a key bias is zero (softmax does not see a constant), so what AdamW gets there is rounding noise of about 1e-9. With
# eps 1e-8 it would turn that noise into steps of the size of lr, different on any two implementations; 1e-6 lets every element be compared.
TRAIN = dict(lr=1e-3, min_lr=1e-4, warmup_steps=2, total_steps=6, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-6, max_norm=1.0)
STEPS, BATCH, SEQUENCE = 5, 4, 14


def make_weights(generator):
    d, config = CONFIG["n_embd"], CONFIG
    shapes = {"wte.weight": (config["vocab_size"], d), "wpe.weight": (config["n_positions"], d)}
    for i in range(config["n_layer"]):
        shapes |= {
            f"h.{i}.ln_1.weight": (d,), f"h.{i}.ln_1.bias": (d,),
            f"h.{i}.attn.c_attn.weight": (d, 3 * d), f"h.{i}.attn.c_attn.bias": (3 * d,),
            f"h.{i}.attn.c_proj.weight": (d, d), f"h.{i}.attn.c_proj.bias": (d,),
            f"h.{i}.ln_2.weight": (d,), f"h.{i}.ln_2.bias": (d,),
            f"h.{i}.mlp.c_fc.weight": (d, 4 * d), f"h.{i}.mlp.c_fc.bias": (4 * d,),
            f"h.{i}.mlp.c_proj.weight": (4 * d, d), f"h.{i}.mlp.c_proj.bias": (d,),
        }
    shapes |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    # Random everywhere, biases and norms too: a zero or a one would hide a mistake. Large enough for attention to matter.
    weights = {}
    for name, shape in shapes.items():
        middle = 1.0 if ".ln_" in f".{name}" and name.endswith("weight") else 0.0
        weights[name] = torch.nn.Parameter(middle + 0.2 * torch.randn(shape, generator=generator))
    return weights


def forward(w, tokens, targets):
    d, heads = CONFIG["n_embd"], CONFIG["n_head"]
    batch, length = tokens.shape
    mask = torch.full((length, length), -math.inf).triu(1)

    def norm(x, name):
        return F.layer_norm(x, (d,), w[name + ".weight"], w[name + ".bias"], CONFIG["layer_norm_epsilon"])

    def linear(x, name):  # Conv1D of Hugging Face: weight [in, out]
        return x @ w[name + ".weight"] + w[name + ".bias"]

    x = w["wte.weight"][tokens] + w["wpe.weight"][:length]
    for i in range(CONFIG["n_layer"]):
        q, k, v = (part.view(batch, length, heads, d // heads).transpose(1, 2)
                   for part in linear(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn").split(d, dim=2))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // heads) + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, d)
        x = x + linear(mixed, f"h.{i}.attn.c_proj")
        hidden = F.gelu(linear(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc"), approximate="tanh")
        x = x + linear(hidden, f"h.{i}.mlp.c_proj")
    logits = norm(x, "ln_f") @ w["wte.weight"].T
    return F.cross_entropy(logits.view(-1, CONFIG["vocab_size"]), targets.reshape(-1))


def learning_rate(step):
    t = TRAIN
    if step < t["warmup_steps"]:
        return t["lr"] * (step + 1) / t["warmup_steps"]
    progress = min(1.0, (step - t["warmup_steps"]) / (t["total_steps"] - t["warmup_steps"]))
    return t["min_lr"] + (t["lr"] - t["min_lr"]) * 0.5 * (1 + math.cos(math.pi * progress))


def write_safetensors(path, tensors, metadata):
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().contiguous()
        blob = tensor.numpy().tobytes()
        dtype = {torch.float32: "F32", torch.int32: "I32"}[tensor.dtype]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(args.seed)
    weights = make_weights(generator)
    args.out.mkdir(parents=True, exist_ok=True)
    write_safetensors(args.out / "weights.safetensors", {"transformer." + n: p.clone() for n, p in weights.items()}, {"format": "pt"})

    tokens = torch.randint(CONFIG["vocab_size"], (STEPS, BATCH, SEQUENCE), generator=generator)
    targets = torch.randint(CONFIG["vocab_size"], (STEPS, BATCH, SEQUENCE), generator=generator)
    targets[1:, :, :2] = -100  # ignored, from the second step on
    optimizer = torch.optim.AdamW(weights.values(), betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"],
                                  weight_decay=TRAIN["weight_decay"])
    out = {"tokens": tokens.to(torch.int32), "targets": targets.to(torch.int32)}
    losses, norms, rates = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = forward(weights, tokens[step], targets[step])
        loss.backward()
        if step == 0:
            out |= {"grad." + n: p.grad.clone() for n, p in weights.items()}
        norms.append(torch.nn.utils.clip_grad_norm_(weights.values(), TRAIN["max_norm"]).item())
        losses.append(loss.item())
        rates.append(learning_rate(step))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        optimizer.step()
    out |= {"loss": torch.tensor(losses), "norm": torch.tensor(norms), "lr": torch.tensor(rates)}
    out |= {"after." + n: p for n, p in weights.items()}
    numbers = {key: repr(value) for key, value in (CONFIG | TRAIN).items()}
    write_safetensors(args.out / "expected.safetensors", out, numbers | {"torch": torch.__version__, "seed": str(args.seed)})
    print(f"torch {torch.__version__} seed {args.seed}: loss {losses[0]:.5f} -> {losses[-1]:.5f}, gradient norms {[round(n, 3) for n in norms]}")


if __name__ == "__main__":
    main()
