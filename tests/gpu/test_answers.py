"""What the CUDA backend answers, with a device and without one."""

import pytest

import bsparse_core as bc

DEVICES = bc.devices("cuda")
with_device = pytest.mark.skipif(DEVICES == 0, reason="no NVIDIA device here")
without_device = pytest.mark.skipif(DEVICES > 0, reason="an NVIDIA device is here")


def pattern():
    return bc.Pattern(64, 64, block=(64, 64), row_offsets=[0, 1], col_indices=[0])


@without_device
def test_a_missing_device_is_named_with_the_cure():
    with pytest.raises(bc.Unsupported, match="context_desc.backend is 2 .*CUDA.*BSPARSE_BACKEND_CPU"):
        bc.Context("cuda")


@with_device
def test_a_context_names_its_device():
    assert ", sm" in bc.Context("cuda", device=DEVICES - 1).name


@with_device
def test_a_device_that_is_not_there_is_named():
    with pytest.raises(bc.InvalidArgument, match=f"device is {DEVICES};.*0 to {DEVICES - 1}"):
        bc.Context("cuda", device=DEVICES)


@with_device
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
def test_f64_is_refused(op):
    with pytest.raises(bc.Unsupported, match="f64.*CPU"):
        bc.Plan(bc.Context("cuda"), pattern(), op=op, dtype="f64")


@with_device
@pytest.mark.parametrize("format", ["semi24", "bsr24"])
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
def test_2_of_4_is_refused(op, format):
    cuda, told = bc.Context("cuda"), f"format is . \\({format}\\), which the CUDA backend does not serve yet: use bsr"
    halves = bc.Pattern(64, 64, row_offsets=[0, 1], col_indices=[0], format=format)
    with pytest.raises(bc.Unsupported, match=told):
        bc.Plan(cuda, halves, op=op, dtype="bf16")
    for function in (bc.pack_values, bc.unpack_values, bc.pack_values_at):
        with pytest.raises(bc.Unsupported, match=told):
            function(cuda, halves, "bf16", dense=1 << 20, ld=64, values=1 << 21, metadata=1 << 22)


@with_device
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
@pytest.mark.parametrize("flags", [0, int(bc.Flags.FORCE_SM80)])
def test_a_plan_names_its_kernel(op, flags):
    plan = bc.Plan(bc.Context("cuda"), pattern(), op=op, dtype="bf16", flags=flags)
    for tokens in (0, 1, 4096):
        assert plan.kernel(tokens).startswith("cuda.bsr_")
        assert not flags or ".sm80" in plan.kernel(tokens)


@with_device
@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
@pytest.mark.parametrize("flags", [0, int(bc.Flags.FORCE_SM80)])
def test_a_kernel_of_tf32_is_named_so(op, flags):
    plan = bc.Plan(bc.Context("cuda"), pattern(), op=op, dtype="f32", flags=flags | int(bc.Flags.ALLOW_TF32))
    assert ".tf32.sm" in plan.kernel(256)


@pytest.mark.parametrize("op", ["spmm", "spmm_t", "sddmm"])
def test_the_cpu_backend_of_the_same_library_serves(op):
    assert bc.Plan(bc.Context("cpu"), pattern(), op=op, dtype="f32").kernel(1).startswith("cpu.")
