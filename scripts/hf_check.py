#!/usr/bin/env python3
"""hf_check.py DTRUN WORKER LOGITS: dtrun and Hugging Face's transformers read each other's models.

There: GPT-2, Llama and a Llama with a tied table, trained a few steps by dtrun on two ranks, converted (whole, in parts, saved as a directory), load with
from_pretrained() without a missing or unexpected tensor and give dtrun's logits to 1e-4 (LOGITS is tests/parity/logits.cpp).
Back: a random GPT-2 and a random Llama of save_pretrained() train on under fsdp=2, from the directory and from a checkpoint made of it; the first loss is
transformers' to 1e-5.

Run by $DTRUN_TORCH_PYTHON, or the one that scripts/setup_torch.sh installs; exit code 77 (skipped) where there is none with transformers.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

PYTHON = os.environ.get("DTRUN_TORCH_PYTHON", os.path.expanduser("~/.cache/dtrun-torch/bin/python"))
SIZES = ["--layers", "2", "--hidden", "48", "--heads", "4", "--seq-len", "24", "--batch-size", "2"]


def use_torch_python():
    """Goes on in the Python that has transformers."""
    if os.environ.get("DTRUN_HF_CHECK") == "1":
        return
    found = os.access(PYTHON, os.X_OK) and subprocess.run([PYTHON, "-c", "import transformers"], capture_output=True).returncode == 0
    if not found:
        print(f"skipped: no Python with transformers at {PYTHON} (scripts/setup_torch.sh installs one)")
        sys.exit(77)
    os.environ.update(DTRUN_HF_CHECK="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    os.execv(PYTHON, [PYTHON, *sys.argv])


use_torch_python()

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


def run(*words):
    words = [str(word) for word in words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Check:
    def __init__(self, dtrun, worker, logits, directory):
        self.dtrun, self.worker, self.logits, self.directory = dtrun, worker, logits, directory

    def train(self, *options):
        """On two ranks; the report."""
        report = self.directory / "report.json"
        run(self.dtrun, "--nproc-per-node=2", "worker", "train", "--report", report, "--log-dir", self.directory / "logs", *options)
        return json.loads(report.read_text())

    def convert(self, source, name, *options):
        run(self.worker, "convert", "--from", source, "--to", self.directory / name, *options)
        return self.directory / name

    def compare_logits(self, what, path, dtype=torch.float32, most=1e-4):
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True)
        for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if loading[kind]:
                sys.exit(f"{what}: {kind} {loading[kind]}")
        generator = torch.Generator().manual_seed(7)
        tokens = torch.randint(model.config.vocab_size, (3, 24), generator=generator)
        save_file({"tokens": tokens.to(torch.int32)}, self.directory / "tokens.safetensors")
        run(self.logits, path, self.directory / "tokens.safetensors", self.directory / "logits.safetensors")
        ours = load_file(self.directory / "logits.safetensors")["logits"]
        with torch.no_grad():
            theirs = model.float().eval()(tokens).logits
        difference = (ours - theirs).abs().max().item()
        print(f"{what}: logits up to {theirs.abs().max():.3f}, largest difference {difference:.2e}")
        if not difference <= most:
            sys.exit(f"{what}: logits differ by {difference}, expected {most} at most")

    def there(self, name, *model):
        checkpoints, saved = self.directory / f"{name}_checkpoints", self.directory / f"{name}_saved"
        self.train(*SIZES, *model, "--parallel", "fsdp=2", "--steps", "4", "--lr", "1e-2", "--checkpoint-dir", checkpoints, "--save", f"{saved}/")
        self.compare_logits(f"{name}, converted", self.convert(checkpoints, f"{name}_hf"))
        self.compare_logits(f"{name}, in parts", self.convert(checkpoints, f"{name}_parts", "--max-shard-size", "40KB"))
        self.compare_logits(f"{name}, bf16", self.convert(checkpoints, f"{name}_bf16", "--dtype", "bf16"), torch.bfloat16)
        self.compare_logits(f"{name}, saved as a directory", saved)

    def back(self, name, model):
        """Two sequences are one step of two ranks, in any order."""
        path, length = self.directory / f"{name}_theirs", 24
        model.save_pretrained(path)
        tokens = torch.randint(model.config.vocab_size, (2 * length + 1,), generator=torch.Generator().manual_seed(3))
        data = self.directory / "tokens.bin"
        data.write_bytes(tokens.to(torch.int16).numpy().tobytes())
        with torch.no_grad():
            logits = model.eval()(tokens[:-1].view(2, length)).logits
        expected = torch.nn.functional.cross_entropy(logits.view(2 * length, -1), tokens[1:]).item()
        options = ["--model", path, "--data", data, "--seq-len", length, "--batch-size", "1", "--parallel", "fsdp=2", "--steps", "3"]
        runs = {"directory": options, "checkpoint": [*options, "--resume", self.convert(path, f"{name}_start")]}
        for kind, words in runs.items():
            report = self.train(*words)
            difference = abs(report["loss_first"] - expected)
            print(f"{name} of transformers, from the {kind}: first loss {report['loss_first']:.6f}, difference {difference:.2e}, last {report['loss_last']:.6f}")
            if not (difference <= 1e-5 and report["loss_last"] < report["loss_first"]):
                sys.exit(f"{name}: the first loss is {report['loss_first']}, expected {expected} and less at the end")


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    torch.manual_seed(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="dtrun-hf-") as directory:
        check = Check(*sys.argv[1:], pathlib.Path(directory))
        check.there("GPT-2")
        check.there("Llama", "--model", "llama", "--kv-heads", "2")
        llama = transformers.LlamaConfig(vocab_size=256, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                         tie_word_embeddings=True, rope_theta=5000.0)
        llama.save_pretrained(check.directory / "tied")
        check.there("tied Llama", "--model", check.directory / "tied")
        check.back("GPT-2", transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=301, n_positions=32, n_embd=48, n_layer=2, n_head=4)))
        check.back("Llama", transformers.LlamaForCausalLM(llama))
    print(f"transformers {transformers.__version__}, PyTorch {torch.__version__}: all agree")


if __name__ == "__main__":
    main()
