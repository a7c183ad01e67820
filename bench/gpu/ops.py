"""PyTorch's side of ops.mjs: python3 ops.py [--only NAME,…] [--json FILE]. The same rows by the same names, timed in the same way."""
import argparse, json
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--only")
parser.add_argument("--json")
options = parser.parse_args()
only = options.only.split(",") if options.only else None
results = {}


def measure(run, calls):
    start, end = torch.cuda.Event(True), torch.cuda.Event(True)
    start.record()
    for _ in range(calls):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def row(name, run, bytes=0, flops=0, rounds=20):
    """As in ops.mjs: so many calls between two events that the host's part of the first one does not count."""
    if only and not any(part in name for part in only):
        return
    measure(run, 3)
    calls = max(2, min(50, -int(-2 // measure(run, 3))))
    ms = sorted(measure(run, calls) for _ in range(rounds))[rounds // 2]
    result = {"ms": round(ms, 4)}
    if bytes:
        result["GBps"] = round(bytes / ms / 1e6, 1)
    if flops:
        result["TFLOPs"] = round(flops / ms / 1e9, 1)
    results[name] = result
    print(name.ljust(44), "  ".join(f"{key} {value}" for key, value in result.items()), flush=True)


dtypes = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
randn = lambda shape, dtype="f32": torch.randn(shape, device="cuda", dtype=dtypes[dtype])
BIG = 2**28


def streaming():
    x, y = randn(BIG), randn(BIG)
    unary = {"exp": torch.exp, "gelu": lambda t: F.gelu(t, approximate="tanh"), "geluErf": F.gelu, "silu": F.silu, "sqrt": torch.sqrt, "tanh": torch.tanh, "sin": torch.sin}
    row("memcpy f32 256M", x.clone, BIG * 8)
    row("affine f32 256M", lambda: torch.add(1.0, x, alpha=2.0), BIG * 8)
    for name, op in unary.items():
        row(f"{name} f32 256M", lambda: op(x), BIG * 8)
    row("cast f32->bf16 256M", lambda: x.to(torch.bfloat16), BIG * 6)
    row("sum all f32 256M", x.sum, BIG * 4)
    row("add f32 256M", lambda: x + y, BIG * 12)
    row("lt f32 256M", lambda: x < y, BIG * 9)
    condition = x < y
    row("where f32 256M", lambda: torch.where(condition, x, y), BIG * 13)
    h, other = x.to(torch.bfloat16), y.to(torch.bfloat16)
    del x, y, condition
    for name in ("exp", "gelu", "geluErf", "sin"):
        row(f"{name} bf16 256M", lambda: unary[name](h), BIG * 4)
    row("add bf16 256M", lambda: h + other, BIG * 6)
    row("cast bf16->f32 256M", h.float, BIG * 6)


def rows_of(dtype):
    rows, columns = 65536, 4096
    x, up, w = randn((rows, columns), dtype), randn((rows, columns), dtype), randn(columns, dtype)
    bytes = x.numel() * x.element_size()
    ids = torch.randint(0, rows, (rows,), device="cuda")
    row(f"rms_norm {dtype} 65536x4096", lambda: F.rms_norm(x, (columns,), w, 1e-5), 2 * bytes)
    row(f"layer_norm {dtype} 65536x4096", lambda: F.layer_norm(x, (columns,), w, w), 2 * bytes)
    row(f"softmax {dtype} 65536x4096", lambda: x.softmax(-1), 2 * bytes)
    row(f"silu_mul {dtype}", lambda: F.silu(x) * up, 3 * bytes)
    row(f"sum last {dtype}", lambda: x.sum(-1), bytes)
    row(f"max last {dtype}", lambda: x.amax(-1), bytes)
    row(f"argmax last {dtype}", lambda: x.argmax(-1), bytes)
    row(f"sum first {dtype}", lambda: x.sum(0), bytes)
    row(f"transpose copy {dtype}", lambda: x.t().contiguous(), 2 * bytes)
    row(f"index_select rows {dtype}", lambda: x.index_select(0, ids), 2 * bytes)


def rotations():
    q = randn((8, 32, 2048, 128), "bf16")
    angle = randn((2048, 64))
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()

    def rope():
        a, b = q.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    row("rope bf16 8x32x2048x128", rope, q.numel() * 4)
    row("rope bf16 8x32x2048x128 compiled", torch.compile(rope), q.numel() * 4)


def attention():
    for b, h, kv, t, d in ((4, 32, 8, 4096, 128), (4, 32, 8, 4096, 64), (1, 32, 8, 16384, 128)):
        q, k, v = randn((b, h, t, d), "bf16"), randn((b, kv, t, d), "bf16"), randn((b, kv, t, d), "bf16")
        row(f"sdpa causal bf16 {b}x{h}/{kv}x{t}x{d}", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), flops=2 * b * h * t * t * d)
    for d in (128, 64):
        q, k, v, mask = *(randn((4, 32, 4096, d), "bf16") for _ in range(3)), randn((4096, 4096), "bf16")
        row(f"sdpa masked bf16 4x32x4096x{d}", lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), flops=4 * 4 * 32 * 4096 * 4096 * d)
    q, k, v = randn((8, 32, 1, 128), "bf16"), randn((8, 8, 8192, 128), "bf16"), randn((8, 8, 8192, 128), "bf16")
    row("sdpa decode bf16 8x32/8 kv 8192x128", lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), k.numel() * 4)


def products():
    for n, dtype in ((8192, "bf16"), (8192, "f16"), (4096, "f32")):
        a = randn((n, n), dtype)
        row(f"matmul {dtype} {n}", lambda: a @ a, flops=2 * n**3)
    # Weights that the cache does not hold.
    a, weights = randn((1, 4096), "bf16"), [randn((14336, 4096), "bf16") for _ in range(8)]
    turn = iter(range(1 << 30))
    row("matvec bf16 14336x4096", lambda: a @ weights[next(turn) % 8].t(), weights[0].numel() * 2)
    x = randn((4096, 4096))
    row("argsort rows f32 4096x4096", lambda: x.argsort(-1), x.numel() * 8)
    x, w = randn((16, 256, 64, 64), "f16"), randn((256, 256, 3, 3), "f16")
    row("conv2d f16 16x256x64x64 k3", lambda: F.conv2d(x, w, padding=1), flops=2 * 16 * 256 * 64 * 64 * 256 * 9)


print(f"{torch.cuda.get_device_name()}: PyTorch {torch.__version__}")
if only != ["sdpa"]:
    streaming()
    for dtype in ("f32", "bf16"):
        rows_of(dtype)
    rotations()
    products()
if not only or "sdpa" in only:
    attention()
if options.json:
    with open(options.json, "w") as file:
        json.dump(results, file, indent=1)
