"""DistributedDataParallel over gloo, in one process and in two."""

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from bsparse_torch import BlockSparseLinear


def start(rank, world, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)


def batch():
    return torch.randn(8, 45, generator=torch.Generator().manual_seed(3))


def train(model, x):
    """Three steps of Adam on the mean square output."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(3):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def make(seed=0):
    torch.manual_seed(seed)
    return BlockSparseLinear(45, 70, block=16, pattern="random")


def test_one_process(tmp_path):
    start(0, 1, tmp_path)
    try:
        layer, other = make(), make()
        train(DistributedDataParallel(layer), batch())
        train(other, batch())
    finally:
        dist.destroy_process_group()
    assert torch.equal(layer.values, other.values)


def worker(rank, world, folder, seeds):
    torch.set_num_threads(1)
    start(rank, world, folder)
    layer = make(seeds[rank])
    model = DistributedDataParallel(layer)
    train(model, batch().chunk(world)[rank])
    torch.save({"values": layer.values.detach(), "y": model(batch()).detach()}, f"{folder}/{rank}.pt")
    dist.barrier()  # gloo's threads may abort a process whose peer has gone first
    dist.destroy_process_group()


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["same pattern", "other pattern"])
def test_two_processes_take_the_pattern_of_the_first(tmp_path, seeds):
    mp.spawn(worker, args=(2, str(tmp_path), seeds), nprocs=2)
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    layer = make()
    train(layer, batch())
    for rank in ranks:
        torch.testing.assert_close(rank["values"], layer.values.detach())
        torch.testing.assert_close(rank["y"], layer(batch()).detach())
