"""PyTorch's side of conv.mjs: python3 conv.py OUT.json [float16|bfloat16|float32], microseconds in both memory formats."""
import json, os, sys
import torch, torch.nn.functional as F

torch.backends.cudnn.benchmark = True
dtype = getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "float16")
CALLS = 10


def time(run):
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    times = []
    for _ in range(9):
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / CALLS)
    return sorted(times)[4]


results = {}
for case in json.load(open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "conv-cases.json"))):
    shape, outs, groups, turned = case["x"], case["outs"], case.get("groups", 1), case.get("transposed", False)
    weights = [shape[1], outs // groups] if turned else [outs, shape[1] // groups]
    x = torch.randn(shape, device="cuda", dtype=dtype)
    w = torch.randn(weights + case["kernel"], device="cuda", dtype=dtype) * 0.05
    op = F.conv_transpose2d if turned else F.conv2d
    options = {key: case[key] for key in ("stride", "padding", "dilation") if key in case}
    found = {}
    for name, form in (("NCHW", torch.contiguous_format), ("channels_last", torch.channels_last)):
        a, b = x.contiguous(memory_format=form), w.contiguous(memory_format=form)
        with torch.no_grad():
            found[name] = time(lambda: op(a, b, groups=groups, **options))
    results[case["name"]] = found
    print(case["name"], {key: round(us, 1) for key, us in found.items()}, flush=True)
    json.dump(results, open(sys.argv[1], "w"))
