"""Context and devices."""

import pytest

import bsparse_core as bc


def test_name_tells_instruction_set_and_threads():
    context = bc.Context("cpu", threads=3, isa="portable")
    assert context.name == "cpu portable, 3 threads"
    assert repr(context) == "<bsparse Context: cpu portable, 3 threads>"
    assert (context.backend, context.device) == (bc.Backend.CPU, 0)


def test_defaults_are_all_cores_and_the_best_instruction_set():
    assert bc.Context().name == bc.Context("cpu", 0, 0, "best").name


def test_is_immutable():
    with pytest.raises(AttributeError, match="name of a Context is fixed"):
        bc.Context().name = "other"


def test_devices():
    assert bc.devices("cpu") == bc.devices(bc.Backend.CPU) == 1
    assert bc.devices("cuda") >= 0


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"backend": "tpu"}, r"backend is 'tpu'; it must be one of cpu, cuda"),
        ({"backend": 1}, r"backend is 1; it must be one of cpu, cuda"),
        ({"device": 1}, r"device is 1; the CPU backend has one device: pass 0"),
        ({"device": "0"}, r"context_desc.device is '0'; it must be an integer"),
        ({"threads": -1}, r"threads is -1; it must be 1 to \d+: pass 0 for one thread per core"),
        ({"threads": 10**6}, r"threads is 1000000; it must be 1 to \d+"),
        ({"threads": 2**31}, r"context_desc.threads is 2147483648; it must fit in 32 bits"),
        ({"threads": 1.5}, r"context_desc.threads is 1.5; it must be an integer"),
        ({"isa": "sse9"}, r"isa is 'sse9'; it must be one of best, portable, avx2, avx512, avx512_bf16"),
    ],
)
def test_refuses(fields, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        bc.Context(**fields)


def test_devices_refuses_an_unknown_backend():
    with pytest.raises(bc.InvalidArgument, match="backend is 'gpu'; it must be one of cpu, cuda"):
        bc.devices("gpu")
