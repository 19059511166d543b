#!/usr/bin/env python3
"""make_modes_golden.py gpt2|llama --out DIR [--seed N] [--whole] [--group GROUP]: a tiny model trained for 5 steps by one process of
PyTorch (golden.py) and by every mode of torch_modes.py with 2 and 4 ranks over gloo, from the same weights and batches.

Beside golden.py's tensors, which are of one process, DIR/expected.safetensors gets for every mode MODE/loss and MODE/norm by step,
MODE/grad.NAME of the first step and MODE/after.NAME; of a few parameters, one of each kind, unless --whole asks for all. So that
nothing hides in the others, PyTorch's modes are compared here with its single process, whole: an error ends this program.
"""
import argparse
import datetime
import logging
import os
import pathlib
import sys
import tempfile

import golden
import make_gpt2_golden
import make_llama_golden
import torch
import torch.distributed as dist
import torch_models
import torch_modes
from torch import multiprocessing

golden.SEQUENCE = 16  # PyTorch's sequence parallelism needs equal parts

# Heads for 4 ranks, layers for 4 stages; a vocabulary that neither 2 nor 4 divides.
make_gpt2_golden.CONFIG.update(vocab_size=37, n_embd=16, n_layer=4, n_head=4)
make_llama_golden.CONFIG.update(vocab_size=37, hidden_size=16, intermediate_size=40, num_hidden_layers=4, num_attention_heads=8,
                                num_key_value_heads=4, head_dim=4)
FAMILIES = {"gpt2": (make_gpt2_golden, torch_models.Gpt2), "llama": (make_llama_golden, torch_models.Llama)}
# Table, norm, columns, rows, biases of both.
STORED = {"gpt2": ("wte.weight", "h.0.ln_1.weight", "h.1.attn.c_attn.weight", "h.1.attn.c_attn.bias", "h.2.attn.c_proj.weight", "h.3.mlp.c_proj.bias"),
          "llama": ("lm_head.weight", "model.layers.0.input_layernorm.weight", "model.layers.1.self_attn.k_proj.weight",
                    "model.layers.2.self_attn.o_proj.weight")}


# Of loss, gradients and parameters in bf16: about twice what PyTorch itself is away from its f32 (8 seeds: 4.7e-3, 8.2e-2 of the largest
# element, 3.3e-3). Those of modes_parity.cpp.
BF16_LIMITS = (1e-2, 0.15, 1e-2)


def rank_main(rank, directory, ranks, function):
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)  # that gathering a 2-D layout is not fast
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=ranks, timeout=datetime.timedelta(seconds=60))
    result = function()
    if rank == 0:
        torch.save(result, f"{directory}/result")
    dist.barrier()
    os._exit(0)  # destroy_process_group() aborts at times, after all is done


def on_ranks(ranks, function):
    """What function() returns on rank 0 of that many new processes; theirs is all threading and autograd, so that fork is safe here."""
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.start_processes(rank_main, (directory, ranks, function), nprocs=ranks, start_method="fork")
        return torch.load(f"{directory}/result")


def differences(found, one):
    """Largest ones of the loss, of gradients by the largest element of each tensor, and of parameters."""
    of = lambda kind: [(found[n] - one[n], one[n]) for n in one if n.startswith(kind)]
    return (max(d.abs().max().item() for d, _ in of("loss")), max((d.abs().max() / e.abs().max()).item() for d, e in of("grad.")),
            max(d.abs().max().item() for d, _ in of("after.")))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model", choices=FAMILIES)
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--whole", action="store_true")
    arguments.add_argument("--group", choices={how.group for how in torch_modes.MODES.values()})
    args = arguments.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    script, make_family = FAMILIES[args.model]
    family = make_family(script.CONFIG)
    weights, tokens, targets = golden.random_run(script.CONFIG, script.shapes(), args.seed)
    initial = {n: p.detach().clone() for n, p in weights.items()}
    expected = on_ranks(1, lambda: golden.train(weights, tokens, targets, script.forward))
    one = {n: t for n, t in expected.items() if n == "loss" or n.startswith(("grad.", "after."))}
    bad = 0
    for name, how in torch_modes.MODES.items():
        if args.group not in (None, how.group):
            continue
        found = on_ranks(how.ranks, lambda: torch_modes.train(name, family, initial, tokens, targets))
        loss, gradient, parameter = differences(found, one)
        limits = BF16_LIMITS if how.group == "bf16" else (1e-5, 2e-5, 1e-4)
        good = all(difference < limit for difference, limit in zip((loss, gradient, parameter), limits))
        bad += not good
        print(f"{name:14} {'ok  ' if good else 'FAIL'} from one process of PyTorch: loss {loss:.1e} gradients {gradient:.1e} parameters {parameter:.1e}", flush=True)
        stored = lambda n: args.whole or n in ("loss", "norm") or n.split(".", 1)[1] in STORED[args.model]
        expected |= {f"{name}/{n}": t for n, t in found.items() if stored(n)}
    golden.write_run(args.out, initial, expected, script.CONFIG, args.seed, family.prefix)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
