#!/usr/bin/env python3
"""make_gpt2_golden.py --out DIR [--seed N]: trains a tiny GPT-2 in PyTorch for 5 steps and writes what it saw (golden.py).

The model is GPT2LMHeadModel of Hugging Face written out in plain torch (no dropout), so that no further package is needed.
"""
import math

import golden
import torch
import torch.nn.functional as F

CONFIG = dict(vocab_size=61, n_positions=16, n_embd=24, n_layer=2, n_head=3, layer_norm_epsilon=1e-5)


def shapes():
    d, config = CONFIG["n_embd"], CONFIG
    result = {"wte.weight": (config["vocab_size"], d), "wpe.weight": (config["n_positions"], d)}
    for i in range(config["n_layer"]):
        result |= {
            f"h.{i}.ln_1.weight": (d,), f"h.{i}.ln_1.bias": (d,),
            f"h.{i}.attn.c_attn.weight": (d, 3 * d), f"h.{i}.attn.c_attn.bias": (3 * d,),
            f"h.{i}.attn.c_proj.weight": (d, d), f"h.{i}.attn.c_proj.bias": (d,),
            f"h.{i}.ln_2.weight": (d,), f"h.{i}.ln_2.bias": (d,),
            f"h.{i}.mlp.c_fc.weight": (d, 4 * d), f"h.{i}.mlp.c_fc.bias": (4 * d,),
            f"h.{i}.mlp.c_proj.weight": (4 * d, d), f"h.{i}.mlp.c_proj.bias": (d,),
        }
    result |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    return result


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


if __name__ == "__main__":
    golden.main(CONFIG, shapes(), forward, prefix="transformer.")
