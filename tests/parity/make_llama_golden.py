#!/usr/bin/env python3
"""make_llama_golden.py --out DIR [--seed N] [--tied] [--scaled] [--check]: trains a tiny Llama in PyTorch for 5 steps and writes what it saw (golden.py).

The model is LlamaForCausalLM of Hugging Face written out in plain torch, so that no further package is needed; with --check, which needs
`transformers`, its loss and gradients are compared with Hugging Face's own on the same weights, and nothing is written.
"""
import math
import sys

import golden
import torch
import torch.nn.functional as F

# Grouped queries, heads that are wider than their share of the model, and sizes that divide no vector.
CONFIG = dict(vocab_size=61, hidden_size=18, intermediate_size=37, num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=2,
              head_dim=6, rope_theta=500.0, rms_norm_eps=1e-5, tie_word_embeddings=0,
              factor=1.0, low_frequency=1.0, high_frequency=4.0, original_positions=64.0)


def shapes():
    d, inner, head = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["head_dim"]
    q, kv = CONFIG["num_attention_heads"] * head, CONFIG["num_key_value_heads"] * head
    result = {"model.embed_tokens.weight": (CONFIG["vocab_size"], d)}
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}"
        result |= {
            f"{at}.input_layernorm.weight": (d,),
            f"{at}.self_attn.q_proj.weight": (q, d), f"{at}.self_attn.k_proj.weight": (kv, d),
            f"{at}.self_attn.v_proj.weight": (kv, d), f"{at}.self_attn.o_proj.weight": (d, q),
            f"{at}.post_attention_layernorm.weight": (d,),
            f"{at}.mlp.gate_proj.weight": (inner, d), f"{at}.mlp.up_proj.weight": (inner, d), f"{at}.mlp.down_proj.weight": (d, inner),
        }
    result["model.norm.weight"] = (d,)
    if not CONFIG["tie_word_embeddings"]:
        result["lm_head.weight"] = (CONFIG["vocab_size"], d)
    return result


def forward(w, tokens, targets):
    heads, kv_heads, dim = CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"], CONFIG["head_dim"]
    batch, length = tokens.shape
    mask = torch.full((length, length), -math.inf).triu(1)
    frequencies = 1.0 / CONFIG["rope_theta"] ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if CONFIG["factor"] != 1:  # "llama3"
        length_of_wave = 2 * math.pi / frequencies
        low, high = CONFIG["original_positions"] / CONFIG["low_frequency"], CONFIG["original_positions"] / CONFIG["high_frequency"]
        kept = (CONFIG["original_positions"] / length_of_wave - CONFIG["low_frequency"]) / (CONFIG["high_frequency"] - CONFIG["low_frequency"])
        between = (1 - kept) * frequencies / CONFIG["factor"] + kept * frequencies
        frequencies = torch.where(length_of_wave > low, frequencies / CONFIG["factor"], torch.where(length_of_wave < high, frequencies, between))
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()

    def norm(x, name):
        return w[name + ".weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + CONFIG["rms_norm_eps"]))

    def linear(x, name):
        return x @ w[name + ".weight"].T

    def split(x, count):
        return x.view(batch, length, count, dim).transpose(1, 2)

    def rotate(x):
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    x = w["model.embed_tokens.weight"][tokens]
    for i in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{i}"
        h = norm(x, f"{at}.input_layernorm")
        q = rotate(split(linear(h, f"{at}.self_attn.q_proj"), heads))
        k = rotate(split(linear(h, f"{at}.self_attn.k_proj"), kv_heads)).repeat_interleave(heads // kv_heads, dim=1)
        v = split(linear(h, f"{at}.self_attn.v_proj"), kv_heads).repeat_interleave(heads // kv_heads, dim=1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(dim) + mask
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, heads * dim)
        x = x + linear(mixed, f"{at}.self_attn.o_proj")
        h = norm(x, f"{at}.post_attention_layernorm")
        gated = F.silu(linear(h, f"{at}.mlp.gate_proj")) * linear(h, f"{at}.mlp.up_proj")
        x = x + linear(gated, f"{at}.mlp.down_proj")
    head = "model.embed_tokens" if CONFIG["tie_word_embeddings"] else "lm_head"
    logits = linear(norm(x, "model.norm"), head)
    return F.cross_entropy(logits.view(-1, CONFIG["vocab_size"]), targets.reshape(-1))


def check():
    import transformers

    generator = torch.Generator().manual_seed(7)
    weights = golden.random_weights(shapes(), generator)
    tokens, targets = (torch.randint(CONFIG["vocab_size"], (4, 14), generator=generator) for _ in range(2))
    # Newer versions take the base of the rotary frequencies as a parameter among others, older ones as a field.
    rope = dict(rope_type="default", rope_theta=CONFIG["rope_theta"])
    if CONFIG["factor"] != 1:
        rope |= dict(rope_type="llama3", factor=CONFIG["factor"], low_freq_factor=CONFIG["low_frequency"],
                     high_freq_factor=CONFIG["high_frequency"], original_max_position_embeddings=int(CONFIG["original_positions"]))
    sizes = {key: CONFIG[key] for key in CONFIG if "size" in key or key.startswith("num_") or key in ("head_dim", "rms_norm_eps")}
    config = transformers.LlamaConfig(**sizes, tie_word_embeddings=bool(CONFIG["tie_word_embeddings"]), rope_parameters=rope,
                                      max_position_embeddings=128, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config)
    missing, unexpected = model.load_state_dict({name: p.detach() for name, p in weights.items()}, strict=False)
    assert not unexpected and all(name == "lm_head.weight" and CONFIG["tie_word_embeddings"] for name in missing), (missing, unexpected)
    logits = model(input_ids=tokens).logits
    theirs = F.cross_entropy(logits.view(-1, CONFIG["vocab_size"]), targets.reshape(-1))
    ours = forward(weights, tokens, targets)
    theirs.backward()
    ours.backward()
    of_model = dict(model.named_parameters())
    worst = max(((of_model[n].grad - p.grad).abs().max() / p.grad.abs().max()).item() for n, p in weights.items())
    print(f"transformers {transformers.__version__}: loss {theirs.item():.7f}, here {ours.item():.7f}; largest difference of gradients {worst:.1e}")
    return 0 if abs(theirs.item() - ours.item()) < 2e-6 and worst < 1e-5 else 1


if __name__ == "__main__":
    if "--tied" in sys.argv:
        sys.argv.remove("--tied")
        CONFIG["tie_word_embeddings"] = 1
    if "--scaled" in sys.argv:
        sys.argv.remove("--scaled")
        CONFIG["factor"] = 8.0
    if "--check" in sys.argv:
        sys.exit(check())
    golden.main(CONFIG, shapes(), forward)
