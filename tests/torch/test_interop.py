"""To and from torch's own BSR tensors, without copying values."""

import pytest
import torch

from bsparse_torch import BlockSparseLinear, InvalidArgument, Unsupported

pytestmark = pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta state:UserWarning")


def test_to_torch_bsr_shares_the_values():
    layer = BlockSparseLinear(48, 32, block=(16, 8))
    bsr = layer.to_torch_bsr()
    assert bsr.layout is torch.sparse_bsr
    assert bsr.values().data_ptr() == layer.values.data_ptr()
    assert torch.equal(bsr.to_dense(), layer.to_dense())


def test_from_torch_bsr_shares_the_values():
    dense = torch.randn(32, 48) * torch.eye(2, 3).repeat_interleave(16, 0).repeat_interleave(16, 1)
    bsr, bias = dense.to_sparse_bsr((16, 16)), torch.randn(32)
    layer = BlockSparseLinear.from_torch_bsr(bsr, bias)
    assert layer.values.data_ptr() == bsr.values().data_ptr()
    assert layer.bias.data_ptr() == bias.data_ptr()
    assert layer.values.requires_grad
    assert torch.equal(layer.to_dense(), dense)
    x = torch.randn(3, 48)
    torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, dense, bias))


def test_round_trip():
    layer = BlockSparseLinear(48, 32, block=16, bias=False)
    again = BlockSparseLinear.from_torch_bsr(layer.to_torch_bsr())
    assert again.pattern == layer.pattern
    assert again.bias is None
    assert again.values.data_ptr() == layer.values.data_ptr()


def test_ragged_features_have_no_torch_bsr():
    with pytest.raises(Unsupported, match=r"30 x 48 is not a multiple of block 16 x 16; use to_dense\(\)"):
        BlockSparseLinear(48, 30, block=16).to_torch_bsr()


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (torch.ones(3), r"bias has shape \[3\]; the layer's is \[4\]"),
        (torch.ones(4).int(), "bias has dtype torch.int32; it must be torch.float32"),
        ([1.0], "bias is a list; it must be a tensor"),
    ],
)
def test_a_wrong_bias(bias, message):
    with pytest.raises(InvalidArgument, match=message):
        BlockSparseLinear.from_torch_bsr(torch.ones(4, 4).to_sparse_bsr((2, 2)), bias)


def test_integer_values():
    with pytest.raises(InvalidArgument, match="values has dtype torch.int32; it must be torch.float32"):
        BlockSparseLinear.from_torch_bsr(torch.ones(4, 4).int().to_sparse_bsr((2, 2)))


def test_what_is_no_tensor():
    with pytest.raises(InvalidArgument, match="bsr is a list; it must be a tensor"):
        BlockSparseLinear.from_torch_bsr([[1.0]])


@pytest.mark.parametrize("tensor", [torch.ones(4, 4), torch.eye(4).to_sparse_coo()])
def test_other_layouts_are_refused_with_the_cure(tensor):
    with pytest.raises(InvalidArgument, match="it must be 2-D torch.sparse_bsr: pass dense.to_sparse_bsr"):
        BlockSparseLinear.from_torch_bsr(tensor)
