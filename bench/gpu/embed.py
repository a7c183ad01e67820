"""PyTorch's side of embed.mjs: python3 embed.py FOLDER, after it: the same weights and texts, and how far the vectors are apart."""
import json, os, struct, sys, time
import torch, torch.nn.functional as F

folder = sys.argv[1]
COUNT, ROUNDS = int(os.environ.get("TEXTS", 1000)), 10
config = json.load(open(f"{folder}/config.json"))
layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
torch.backends.cuda.matmul.allow_tf32 = False


def read():
    data = open(f"{folder}/model.safetensors", "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    body = torch.frombuffer(bytearray(data[8 + size :]), dtype=torch.float32)
    tensor = lambda entry: body[entry["data_offsets"][0] // 4 : entry["data_offsets"][1] // 4].reshape(entry["shape"])
    return {name: tensor(entry) for name, entry in header.items() if name != "__metadata__"}


def fused(weights, dtype):
    """q, k and v as one product, as Wick has them."""
    own = {name: tensor.to("cuda", dtype) for name, tensor in weights.items()}
    for i in range(layers):
        for kind in ("weight", "bias"):
            parts = [own.pop(f"encoder.layer.{i}.attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            own[f"encoder.layer.{i}.qkv.{kind}"] = torch.cat(parts)
    return own


def forward(w, ids, mask):
    linear = lambda x, name: F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-12)
    b, t = ids.shape
    x = F.embedding(ids, w["embeddings.word_embeddings.weight"])
    x = x + w["embeddings.position_embeddings.weight"][:t] + w["embeddings.token_type_embeddings.weight"][0]
    x = norm(x, "embeddings.LayerNorm")
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        q, k, v = linear(x, f"{layer}.qkv").view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(b, t, -1)
        x = norm(x + linear(y, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        y = linear(F.gelu(linear(x, f"{layer}.intermediate.dense")), f"{layer}.output.dense")
        x = norm(x + y, f"{layer}.output.LayerNorm")
    return F.normalize(x[:, 0].float())


def prepared(texts, batch):
    """Batches on the host, sorted by length, so that there is as little padding as can be; no part of the time."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    batches = []
    for start in range(0, len(order), batch):
        own = [texts[i] for i in order[start : start + batch]]
        longest = len(own[-1])
        ids = torch.tensor([text + [0] * (longest - len(text)) for text in own])
        sizes = torch.tensor([len(text) for text in own])
        mask = None if len(own[0]) == longest else (torch.arange(longest)[None] < sizes[:, None])[:, None, None].pin_memory()
        batches.append((ids.pin_memory(), mask))
    return batches, torch.tensor(order).argsort().cuda()


def embed(w, batches, places):
    cuda = lambda x: None if x is None else x.cuda(non_blocking=True)
    return torch.cat([forward(w, cuda(ids), cuda(mask)) for ids, mask in batches])[places].cpu()


lengths = {"equal": [128] * COUNT, "mixed": [16 + (i * 97) % 225 for i in range(COUNT)]}
weights = read()
for name, dtype in (("f32", torch.float32), ("f16", torch.float16)):
    w = fused(weights, dtype)
    for case, each in lengths.items():
        texts = [[1000 + (i * 7919 + t * 104729) % 29000 for t in range(n)] for i, n in enumerate(each)]
        for batch in (128, 256, 1000):
            times, batches = [], prepared(texts, batch)
            with torch.inference_mode():
                for _ in range(ROUNDS + 2):
                    torch.cuda.synchronize()
                    start = time.perf_counter()
                    found = embed(w, *batches)
                    times.append(time.perf_counter() - start)
            seconds = min(times[2:])
            line = f"{name} {case:6} batches of {batch:4} texts: {COUNT / seconds:7.0f} texts/s, {seconds * 1000:.1f} ms"
            path = f"{folder}/{case}-{name}.f32"
            if os.path.exists(path):
                other = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.float32).view_as(found)
                line += f"; Wick's differ by {(found - other).abs().max():.1e}"
            print(line, flush=True)
