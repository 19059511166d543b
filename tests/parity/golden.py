"""What the make_*_golden.py share: the training run whose numbers they record, and its files. Golden files are in tests/data/parity*.

DIR/weights.safetensors   initial parameters under Hugging Face's names, as save_pretrained writes them
DIR/expected.safetensors  tokens, targets [steps, batch, sequence]; loss, norm, lr by step; grad.NAME of the first step; after.NAME
                          at the end. Its metadata holds the configuration and the hyper-parameters.

The golden files were made with --seed 1 by PyTorch 2.15 on one thread; the seed fixes them on one machine.
"""
import argparse
import json
import math
import pathlib
import struct

import torch

# The gradient of a key bias is zero (softmax does not see a constant), so what AdamW gets there is rounding noise of about 1e-9. With
# eps 1e-8 it would turn that noise into steps of the size of lr, different on any two implementations; 1e-6 lets every element be compared.
TRAIN = dict(lr=1e-3, min_lr=1e-4, warmup_steps=2, total_steps=6, weight_decay=0.1, beta1=0.9, beta2=0.95, eps=1e-6, max_norm=1.0)
STEPS, BATCH, SEQUENCE = 5, 4, 14


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


def random_weights(shapes, generator):
    """Random everywhere, biases and norms too: a zero or a one would hide a mistake. Large enough for attention to matter."""
    weights = {}
    for name, shape in shapes.items():
        middle = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0  # a norm
        weights[name] = torch.nn.Parameter(middle + 0.2 * torch.randn(shape, generator=generator))
    return weights


def random_run(config, shapes, seed):
    """Initial weights and the batches of all steps."""
    generator = torch.Generator().manual_seed(seed)
    weights = random_weights(shapes, generator)
    tokens = torch.randint(config["vocab_size"], (STEPS, BATCH, SEQUENCE), generator=generator)
    targets = torch.randint(config["vocab_size"], (STEPS, BATCH, SEQUENCE), generator=generator)
    targets[1:, :, :2] = -100  # ignored, from the second step on
    return weights, tokens, targets


def adamw(parameters, **options):
    return torch.optim.AdamW(parameters, betas=(TRAIN["beta1"], TRAIN["beta2"]), eps=TRAIN["eps"], weight_decay=TRAIN["weight_decay"], **options)


def train(weights, tokens, targets, forward):
    """5 steps on one process; what was seen, by name. forward(weights, tokens, targets) -> mean loss."""
    optimizer = adamw(weights.values())
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
    return out | {"after." + n: p.detach() for n, p in weights.items()}


def write_run(directory, weights, expected, config, seed, prefix):
    """weights: the initial ones."""
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / "weights.safetensors", {prefix + n: p for n, p in weights.items()}, {"format": "pt"})
    numbers = {key: repr(value) for key, value in (config | TRAIN).items()}
    write_safetensors(directory / "expected.safetensors", expected, numbers | {"torch": torch.__version__, "seed": str(seed)})


def main(config, shapes, forward, prefix=""):
    """Trains the model for 5 steps and writes what was seen."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--out", type=pathlib.Path, required=True)
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    weights, tokens, targets = random_run(config, shapes, args.seed)
    initial = {n: p.detach().clone() for n, p in weights.items()}
    out = train(weights, tokens, targets, forward)
    write_run(args.out, initial, out, config, args.seed, prefix)
    losses, norms = out["loss"].tolist(), out["norm"].tolist()
    print(f"torch {torch.__version__} seed {args.seed}: loss {losses[0]:.5f} -> {losses[-1]:.5f}, gradient norms {[round(n, 3) for n in norms]}")
