"""An independent forward pass in float64 numpy, written from the papers, one token at a time."""

import numpy as np

from evalkit.bundle import ModelSpec


def forward(spec: ModelSpec, weights, token_ids, positions, segments):
    """Logits [B, L, V] in float64; each argument an int array [B, L], `weights` by Hugging Face names."""
    weights = {name: value.astype(np.float64) for name, value in weights.items()}
    rows = [_row(spec, weights, *row) for row in zip(token_ids, positions, segments, strict=True)]
    return np.stack(rows)


def log_softmax(logits):
    """Along the last axis."""
    centred = logits - logits.max(-1, keepdims=True)
    return centred - np.log(np.exp(centred).sum(-1, keepdims=True))


def _row(spec, w, token_ids, positions, segments):
    length = len(token_ids)
    x = w["model.embed_tokens.weight"][token_ids]
    if spec.positions == "learned":
        x = x + w["model.embed_positions.weight"][positions]
    for layer in range(spec.layers):
        name = f"model.layers.{layer}"
        h = _norm(spec, w, f"{name}.input_layernorm", x)
        queries, keys, values = (
            _linear(w, f"{name}.self_attn.{part}_proj", h).reshape(length, -1, spec.head_size)
            for part in "qkv"
        )
        mixed = np.zeros((length, spec.heads, spec.head_size))
        for i in range(length):
            seen = [j for j in range(length) if _sees(spec, positions, segments, i, j)]
            for head in range(spec.heads):
                shared = head * spec.kv_heads // spec.heads
                q = _rotate(spec, queries[i, head], positions[i])
                scores = np.array([q @ _rotate(spec, keys[j, shared], positions[j]) for j in seen])
                p = np.exp(log_softmax(scores / np.sqrt(spec.head_size)))
                mixed[i, head] = sum(p[n] * values[j, shared] for n, j in enumerate(seen))
        x = x + _linear(w, f"{name}.self_attn.o_proj", mixed.reshape(length, -1))
        h = _norm(spec, w, f"{name}.post_attention_layernorm", x)
        if spec.activation == "swiglu":
            gate = _linear(w, f"{name}.mlp.gate_proj", h)
            inner = gate / (1 + np.exp(-gate)) * _linear(w, f"{name}.mlp.up_proj", h)
        else:
            u = _linear(w, f"{name}.mlp.up_proj", h)
            inner = 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))
        x = x + _linear(w, f"{name}.mlp.down_proj", inner)
    x = _norm(spec, w, "model.norm", x)
    return x @ w["model.embed_tokens.weight" if spec.tied_head else "lm_head.weight"].T


def _sees(spec, positions, segments, i, j):
    distance = positions[i] - positions[j]
    window = spec.attention_window or spec.max_length
    return segments[i] == segments[j] and 0 <= distance < window


def _linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0)


def _norm(spec, w, name, x):
    if spec.norm == "rmsnorm":
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.norm_eps) * w[f"{name}.weight"]
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + spec.norm_eps)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def _rotate(spec, x, position):
    if spec.positions != "rotary":
        return x
    half = len(x) // 2
    angles = position * spec.rope_theta ** (-np.arange(half) / half)
    turned = (x[:half] + 1j * x[half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag])
