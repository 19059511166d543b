"""GPT-2 and Llama as torch.nn modules that PyTorch's wrappers can take apart: every projection is an nn.Linear of its own, every stage of a
pipeline a Stage. The numbers are those of make_gpt2_golden.py and make_llama_golden.py; each family converts Hugging Face's tensors
(parameters, gradients) into those of its modules, and back.
"""
import math
import re

import torch
import torch.nn.functional as F
from torch import nn


def attention(q, k, v, dim):
    """Causal, grouped queries; [batch, length, heads * dim], with as many heads as this rank has. Rotation is done before."""
    batch, length, _ = q.shape
    q, k, v = (x.view(batch, length, -1, dim).transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(dim) + torch.full((length, length), -math.inf, dtype=q.dtype).triu(1)
    return (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)


class Family:
    """What the modes need to know of a model: classes, which projections are cut by columns and by rows, and Hugging Face's names."""
    tied = False

    def hugging_face_name(self, name):
        for pattern, new in self.names:
            name = re.sub(pattern, new, name)
        return name

    def turned(self, name, tensor):
        return tensor

    def to_module(self, name, tensors):
        """What the module's parameter `name` is among Hugging Face's tensors: one of them, or a part of one."""
        whole = self.turned(name, tensors[self.hugging_face_name(name)])
        return whole.chunk(3)["qkv".index(name.split(".")[-2])] if name.split(".")[-2] in "qkv" else whole

    def from_modules(self, tensors):
        parts = {}
        for name, tensor in tensors.items():
            parts.setdefault(self.hugging_face_name(name), []).append(tensor)
        return {name: self.turned(name, torch.cat(pieces)) for name, pieces in parts.items()}


class Gpt2Embedding(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(c["vocab_size"], c["n_embd"]), nn.Embedding(c["n_positions"], c["n_embd"])

    def forward(self, tokens):
        return self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))


class Gpt2Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d = c["n_embd"]
        self.dim = d // c["n_head"]
        self.ln_1, self.ln_2 = (nn.LayerNorm(d, c["layer_norm_epsilon"]) for _ in range(2))
        self.q, self.k, self.v, self.attn_out = (nn.Linear(d, d) for _ in range(4))
        self.mlp_in, self.mlp_out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.attn_out(attention(self.q(h), self.k(h), self.v(h), self.dim))
        return x + self.mlp_out(F.gelu(self.mlp_in(self.ln_2(x)), approximate="tanh"))


class Gpt2(Family):
    Embedding, Block, tied, prefix = Gpt2Embedding, Gpt2Block, True, "transformer."
    table, norms = "embed.wte", ("ln_1", "ln_2")
    columns, rows = ("q", "k", "v", "mlp_in"), ("attn_out", "mlp_out")
    names = ((r"^embed\.", ""), (r"^layers\.", "h."), (r"^norm\.", "ln_f."), (r"\.[qkv]\.", ".attn.c_attn."), (r"\.attn_out\.", ".attn.c_proj."),
             (r"\.mlp_in\.", ".mlp.c_fc."), (r"\.mlp_out\.", ".mlp.c_proj."))

    def __init__(self, config):
        self.config, self.layers, self.vocab, self.width = config, config["n_layer"], config["vocab_size"], config["n_embd"]

    def norm(self):
        return nn.LayerNorm(self.width, self.config["layer_norm_epsilon"])

    def turned(self, name, tensor):  # Conv1D of Hugging Face: [in, out]
        return tensor.T if tensor.dim() == 2 and name.startswith(("h.", "layers.")) else tensor


class LlamaEmbedding(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])

    def forward(self, tokens):
        return self.tokens(tokens)


class LlamaBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, inner, self.dim, self.base = c["hidden_size"], c["intermediate_size"], c["head_dim"], c["rope_theta"]
        q, kv = c["num_attention_heads"] * self.dim, c["num_key_value_heads"] * self.dim
        self.input_layernorm, self.post_attention_layernorm = (nn.RMSNorm(d, c["rms_norm_eps"]) for _ in range(2))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, n, bias=False) for n in (q, kv, kv))
        self.o_proj, self.down_proj = nn.Linear(q, d, bias=False), nn.Linear(inner, d, bias=False)
        self.gate_proj, self.up_proj = (nn.Linear(d, inner, bias=False) for _ in range(2))

    def rotate(self, x):
        batch, length, width = x.shape
        x = x.view(batch, length, -1, self.dim)
        frequencies = 1.0 / self.base ** (torch.arange(0, self.dim, 2, dtype=torch.float32) / self.dim)
        angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)[:, None, :]
        first, second = x.chunk(2, dim=-1)
        return (x * angles.cos() + torch.cat((-second, first), dim=-1) * angles.sin()).view(batch, length, width).to(x.dtype)

    def forward(self, x):
        h = self.input_layernorm(x)
        x = x + self.o_proj(attention(self.rotate(self.q_proj(h)), self.rotate(self.k_proj(h)), self.v_proj(h), self.dim))
        h = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(Family):
    Embedding, Block, prefix = LlamaEmbedding, LlamaBlock, ""
    table, norms = "embed.tokens", ("input_layernorm", "post_attention_layernorm")
    columns, rows = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), ("o_proj", "down_proj")
    names = ((r"^embed\.tokens\.", "model.embed_tokens."), (r"^(layers|norm)\.", r"model.\1."), (r"^head\.", "lm_head."),
             (r"\.([qkvo]_proj)", r".self_attn.\1"), (r"\.((gate|up|down)_proj)", r".mlp.\1"))

    def __init__(self, config):
        self.config, self.layers, self.vocab, self.width = config, config["num_hidden_layers"], config["vocab_size"], config["hidden_size"]

    def norm(self):
        return nn.RMSNorm(self.width, self.config["rms_norm_eps"])


class Stage(nn.Module):
    """Layers [first, last) with the embedding before the first one and norm and head after the last one; the whole model if it has all."""

    def __init__(self, family, first, last):
        super().__init__()
        self.embed = family.Embedding(family.config) if first == 0 else None
        self.layers = nn.ModuleDict({str(i): family.Block(family.config) for i in range(first, last)})
        self.norm = self.head = None
        if last == family.layers:
            self.norm, self.head = family.norm(), nn.Linear(family.width, family.vocab, bias=False)
        self.tie(family)

    def tie(self, family):
        """A stage with one end only has a copy of a tied table: the mode sums its gradients."""
        if family.tied and self.embed and self.head:
            self.head.weight = self.get_submodule(family.table).weight

    def forward(self, x):
        x = self.embed(x) if self.embed else x
        for layer in self.layers.values():
            x = layer(x)
        return self.head(self.norm(x)) if self.head else x

    def load(self, tensors, family):
        tied = {"head.weight": family.table + ".weight"} if family.tied else {}
        self.load_state_dict({name: family.to_module(tied.get(name, name), tensors) for name in self.state_dict()})
