"""The reference of bench/gpu/accuracy.mjs once more, by PyTorch in f64: python3 bench/gpu/accuracy.py FOLDER [--device cpu]

FOLDER is what --dump wrote: per type the dequantized weights and the logits. Prints the logits' relative errors.
"""
import argparse
import json
import pathlib

import torch
from safetensors.torch import load_file


def rms_norm(x, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def rotate(x, theta):
    """Pairs (i, i + d/2) of x (batch, heads, length, d), by position."""
    length, half = x.shape[2], x.shape[3] // 2
    frequencies = theta ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = torch.arange(length, dtype=torch.float64, device=x.device)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Llama:
    def __init__(self, folder, device):
        self.config = json.loads((folder / "config.json").read_text())
        self.folder = folder
        self.device = device

    def matrix(self, name):
        return load_file(self.folder / f"{name}.safetensors")[name].to(self.device).double()

    def attention(self, x, layer):
        c = self.config
        batch, length, _ = x.shape
        heads, kv, width = c["heads"], c["kvHeads"], c["headDim"]
        sizes = [heads * width, kv * width, kv * width]
        q, k, v = (rms_norm(x, c["normEps"]) @ self.matrix(f"q.k.v.{layer}").T).split(sizes, -1)
        q, k, v = (t.view(batch, length, -1, width).transpose(1, 2) for t in (q, k, v))
        q, k = rotate(q, c["rope"]["theta"]), rotate(k, c["rope"]["theta"])
        # Head by head: scores of all heads in f64 would be large.
        mask = torch.full((length, length), float("-inf"), dtype=torch.float64, device=self.device).triu(1)
        out = torch.empty_like(q)
        for h in range(heads):
            own = h // (heads // kv)
            scores = q[:, h] @ k[:, own].transpose(1, 2) * c["attentionScale"] + mask
            out[:, h] = scores.softmax(-1) @ v[:, own]
        return out.transpose(1, 2).reshape(batch, length, -1) @ self.matrix(f"o.{layer}").T

    def mlp(self, x, layer):
        gate, up = (rms_norm(x, self.config["normEps"]) @ self.matrix(f"gate.up.{layer}").T).chunk(2, -1)
        return (torch.nn.functional.silu(gate) * up) @ self.matrix(f"down.{layer}").T

    def logits(self, ids):
        x = self.matrix("embedding")[ids.long()] * self.config["embeddingScale"]
        for layer in range(self.config["layers"]):
            x = x + self.attention(x, layer)
            x = x + self.mlp(x, layer)
        return rms_norm(x, self.config["normEps"]) @ self.matrix("head").T


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    for folder in sorted(path for path in options.folder.iterdir() if path.is_dir()):
        stored = load_file(folder / "logits.safetensors")
        llama = Llama(folder, options.device)
        ids = {way: stored.pop(name).to(options.device) for way, name in (("prompt", "prompt"), ("decode", "texts"))}
        want = {"prompt": llama.logits(ids["prompt"])[0], "decode": llama.logits(ids["decode"])[:, -1]}
        lines = {}
        for name, got in stored.items():
            dtype, way, rows = name.split()
            reference = want[way][: int(rows)]
            error = (got.to(options.device).double() - reference).norm() / reference.norm()
            lines.setdefault((way, dtype), []).append((int(rows), error.item()))
        for (way, dtype), errors in sorted(lines.items()):
            print(folder.name, dtype, way, "  ".join(f"{rows}: {error:.1e}" for rows, error in sorted(errors)))


if __name__ == "__main__":
    main()
