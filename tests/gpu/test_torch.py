"""BlockSparseLinear on the device: the same numbers as on the CPU, in every way that torch runs it."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bsparse_torch import BlockPattern, BlockSparseLinear
from bsparse_torch import functional as F

pytestmark = [
    pytest.mark.usefixtures("cuda"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning"),  # inductor's own
    pytest.mark.filterwarnings("ignore:.*TensorFloat32 tensor cores:UserWarning"),  # inductor's advice
]

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
CLOSE = {torch.bfloat16: 2e-2, torch.float16: 3e-3, torch.float32: 1e-5}  # of the largest number: a few roundings
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(dtype=torch.bfloat16, block=(64, 64), shape=(512, 384), activation="gelu", device="cuda", density=0.4):
    layer = BlockSparseLinear(*shape, density=density, block=block, pattern="random", activation=activation)
    return layer.to(device, dtype)


def batch(dtype=torch.bfloat16, tokens=(3, 70), features=512):
    return torch.randn(*tokens, features, dtype=dtype, device="cuda")


def results(model, x):
    """The output and all gradients."""
    x = x.detach().requires_grad_()
    y = model(x)
    grads = torch.autograd.grad(y.float().square().mean(), [x, *model.parameters()])
    return [y.detach(), *grads]


def assert_close(ours, theirs, dtype):
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        a, b = a.double().cpu(), b.double().cpu()
        off = float((a - b).detach().abs().max() / b.detach().abs().max().clamp_min(1e-30))
        assert off <= CLOSE[dtype], f"result {number} is off by {off:.2e} of the largest number, allowed {CLOSE[dtype]}"


def assert_equal(ours, theirs):
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@dtypes
@pytest.mark.parametrize("block", [(128, 64), (64, 64), (32, 32), (16, 16)], ids=str)
@pytest.mark.parametrize("tokens", [(1,), (16,), (3, 70)], ids=str)
def test_equals_the_cpu(dtype, block, tokens):
    layer, x = make(dtype, block), batch(dtype, tokens)
    assert_close(results(layer, x), results(copy.deepcopy(layer).cpu(), x.cpu()), dtype)


def test_names_its_kernels():
    kernels = make().report(tokens=512)["kernels"]
    assert all(name.startswith("cuda.bsr_") for name in kernels.values()), kernels


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(low):
    layer, x = make(torch.float32), batch(torch.float32)
    with torch.autocast("cuda", dtype=low):
        y = layer(x)
    y.float().square().mean().backward()
    assert y.dtype is low
    assert layer.values.grad.dtype is torch.float32
    assert_close([y], [copy.deepcopy(layer).to(low)(x.to(low))], low)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled(dynamic):
    torch.compiler.reset()
    model = torch.nn.Sequential(make(), torch.nn.SiLU(), make(shape=(384, 512), activation=None))
    fast = torch.compile(model, fullgraph=True, dynamic=dynamic)
    for tokens in ((3, 70), (5, 16)):
        x = batch(tokens=tokens)
        assert_close(results(fast, x), results(model, x), torch.bfloat16)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # one that torch makes to keep its pool
def test_compiled_with_cuda_graphs():
    torch.compiler.reset()
    layer, x = make(), batch()
    fast = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            assert_close([fast(x)], [layer(x)], torch.bfloat16)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")
def test_layers_compiled_one_by_one_with_cuda_graphs():
    """Their patterns differ, but their code is compiled twice only: each has a CUDA graph of its own all the same."""
    torch.compiler.reset()
    layers, x = [make(density=0.25) for _ in range(4)], batch()
    with torch.no_grad():
        expected = [layer(x) for layer in layers]
        for layer in layers:
            layer.compile(mode="reduce-overhead", fullgraph=True)
        for _ in range(4):
            for layer, y in zip(layers, expected, strict=True):
                torch.compiler.cudagraph_mark_step_begin()
                assert_close([layer(x)], [y], torch.bfloat16)


# torch says so of a leaf that got a gradient on one stream and gets the next on another, as when a graph is captured.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
@dtypes
def test_graphed_callable(dtype):
    layer, x = make(dtype), batch(dtype)
    expected = results(layer, x)
    graphed = torch.cuda.make_graphed_callables(layer, (torch.randn_like(x).requires_grad_(),))
    assert_equal(results(graphed, x), expected)
    assert_equal(results(graphed, 2 * x)[:1], [layer.forward(2 * x).detach()])


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_a_whole_step_in_one_graph():
    layer, x = make(activation="silu"), batch()
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        layer(x).float().square().mean().backward()
        optimizer.step()

    before, side = copy.deepcopy(layer), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()
    twin = torch.optim.AdamW(before.parameters(), lr=1e-2, capturable=True)
    for _ in range(6):
        twin.zero_grad(set_to_none=True)
        before(x).float().square().mean().backward()
        twin.step()
    assert_close([layer.values], [before.values], torch.bfloat16)


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty:UserWarning")  # it is: the capture was given up
def test_a_plan_cannot_be_made_during_a_capture():
    layer, x = make(), batch()
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="once before the capture"), torch.cuda.graph(graph), torch.no_grad():
        layer(2 * x)
    torch.cuda.synchronize()
    assert layer(x).isfinite().all()  # and the device goes on


def test_gradients_accumulate():
    layer, parts = make(activation=None), [batch() for _ in range(3)]
    for x in parts:
        layer(x).sum().backward()
    whole = copy.deepcopy(layer)
    whole.zero_grad()
    whole(torch.cat(parts)).sum().backward()
    assert_close([layer.values.grad, layer.bias.grad], [whole.values.grad, whole.bias.grad], torch.bfloat16)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_distributed_data_parallel(tmp_path, backend):
    if not dist.is_backend_available(backend):
        pytest.skip(f"this torch has no {backend}")
    layer, x = make(), batch()
    alone = copy.deepcopy(layer)
    dist.init_process_group(backend, init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        DistributedDataParallel(layer, device_ids=[0])(x).float().square().mean().backward()
    finally:
        dist.destroy_process_group()
    alone(x).float().square().mean().backward()
    assert_close([layer.values.grad], [alone.values.grad], torch.bfloat16)


def test_streams_share_a_layer():
    """One layer and one plan on several streams at once; each has its own scratch memory."""
    layer, inputs = make(), [batch() for _ in range(4)]
    with torch.no_grad():
        expected = [layer(x) for x in inputs]
        torch.cuda.synchronize()
        streams, found = [torch.cuda.Stream() for _ in inputs], [[] for _ in inputs]
        for _ in range(10):
            for x, stream, outs in zip(inputs, streams, found, strict=True):
                with torch.cuda.stream(stream):
                    outs.append(layer(x))
    torch.cuda.synchronize()
    for outs, y in zip(found, expected, strict=True):
        assert_equal(outs, [y] * 10)


def test_a_schedule_is_not_reused_while_another_stream_reads_it():
    """The pattern dies with its plan while a stream is still busy; what is allocated then must not hit its schedule."""
    stream, x = torch.cuda.Stream(), batch(tokens=(4096,))
    layer = make(shape=(512, 512), block=16, activation=None, density=0.31)
    kept = layer.values, layer.bias
    with torch.no_grad():
        expected = layer(x)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            y = layer(x)
        del layer
        waste = [torch.full((size,), 0x7F, dtype=torch.uint8, device="cuda") for size in (1 << n for n in range(9, 22))]
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
    assert kept
    assert waste


def test_moves_between_devices():
    layer = make(torch.float32, device="cpu")
    x = batch(torch.float32)
    on_device = copy.deepcopy(layer).to("cuda")
    assert on_device.pattern.device.type == "cuda"
    assert_close([on_device(x)], [layer(x.cpu())], torch.float32)
    assert torch.equal(on_device.cpu().values, layer.values)


def test_copies_and_saves(tmp_path):
    layer, x = make(), batch()
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = make(density=0.1)
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert_equal([other(x), copy.deepcopy(layer)(x)], [layer(x)] * 2)


def test_a_new_pattern():
    layer, x = make(activation=None), batch()
    layer(x)
    layer.set_pattern(BlockPattern.random(layer.pattern.shape, 0.7, 64))
    dense = torch.nn.functional.linear(x.float(), layer.to_dense().float(), layer.bias.float())
    assert_close([layer(x)], [dense], torch.bfloat16)


def test_operands_as_slices():
    layer, wide = make(activation=None), batch(features=1200)
    for x in (wide[..., 100:612], wide[:, ::2, :512], wide[..., :512].transpose(0, 1)):
        assert_close(results(layer, x), results(layer, x.contiguous()), torch.bfloat16)


def test_tf32_follows_torch():
    layer, x = make(torch.float32, activation=None), batch(torch.float32)
    exact = torch.nn.functional.linear(x.double(), layer.to_dense().double(), layer.bias.double())
    errors = {}
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            errors[precision] = float((layer(x) - exact).detach().norm() / exact.detach().norm())
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert errors["ieee"] <= 1e-6
    assert errors["tf32"] <= 1e-3


def test_dense_backend():
    layer, x = make(), batch()
    expected = results(layer, x)
    layer.backend = "dense"
    assert_close(results(layer, x), expected, torch.bfloat16)


def test_float64_is_refused_and_auto_computes_it_dense():
    layer = make(torch.float64)
    x = batch(torch.float64)
    with pytest.raises(NotImplementedError, match="f64"):
        layer(x)
    layer.backend = "auto"
    assert layer.report()["dense_path"]
    assert layer(x).dtype is torch.float64


def test_no_tokens():
    layer = make()
    assert results(layer, batch(tokens=(0,)))[0].shape == (0, 384)


def test_memory_of_training():
    """Values, gradient and AdamW's state at 0.25 take at most 0.27 of dense, and nothing dense is ever allocated."""
    size, tokens = 4096, 64

    def peak(layer):
        """Bytes after a training step, and the most meanwhile, above what x and the activations take."""
        x = torch.randn(tokens, size, device="cuda", dtype=torch.bfloat16)
        optimizer = torch.optim.AdamW(layer.parameters())
        for _ in range(2):
            torch.cuda.reset_peak_memory_stats()
            layer(x).float().square().mean().backward()
            most = torch.cuda.max_memory_allocated()
            optimizer.step()
        return torch.cuda.memory_allocated(), most

    weight = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    torch.nn.functional.linear(weight, weight)  # cuBLAS takes its workspace now, and not from the dense layer's account
    start = torch.cuda.memory_allocated()
    sparse = BlockSparseLinear(size, size, False, "cuda", torch.bfloat16, density=0.25, block=64)
    held, most = (found - start for found in peak(sparse))
    del sparse
    start = torch.cuda.memory_allocated()
    dense = torch.nn.Linear(size, size, False, "cuda", torch.bfloat16)
    dense_held, dense_most = (found - start for found in peak(dense))
    activations = 8 * tokens * size * 2  # x, y and what the loss makes of it, in two or four bytes
    assert held <= 0.27 * dense_held + activations, (held, dense_held)
    assert most <= 0.27 * dense_most + activations, (most, dense_most)


def test_functional_on_two_patterns_of_one_shape():
    patterns = [BlockPattern.random((384, 512), 0.3, 64, device="cuda") for _ in range(2)]
    x = batch()
    for pattern in patterns:
        values = torch.randn(pattern.values_shape, dtype=torch.bfloat16, device="cuda")
        dense = torch.nn.functional.linear(x.float(), F.unpack(values, pattern).float())
        assert_close([F.block_sparse_linear(x, values, pattern)], [dense], torch.bfloat16)
