// Transposes blocks of f32, tile by tile of 32x32, for spmm_t by wgmma.
#include "../common/sm90.cuh"
#include "sm90_arguments.h"

namespace bsparse::gpu::spmm_sm90 {
namespace {

constexpr int kTile = 32, kThreadRows = 8;

__global__ __launch_bounds__(kTile *kThreadRows) void transpose_kernel(const Transposition task) {
    __shared__ float tile[kTile][kTile + 1];
    sm90::wait_for_previous_kernel();
    const int across = task.cols / kTile;
    const int down = (task.rows + kTile - 1) / kTile;
    const int64_t block = blockIdx.x / (across * down);
    const int row = static_cast<int>(blockIdx.x / across) % down * kTile;
    const int col = static_cast<int>(blockIdx.x) % across * kTile;
    const int64_t first = block * task.rows * task.cols;
    const int x = static_cast<int>(threadIdx.x) % kTile;
#pragma unroll
    for (int y = static_cast<int>(threadIdx.x) / kTile; y < kTile; y += kThreadRows) {
        if (row + y < task.rows) {
            tile[y][x] = task.from[first + (row + y) * task.cols + col + x];
        }
    }
    __syncthreads();
#pragma unroll
    for (int y = static_cast<int>(threadIdx.x) / kTile; y < kTile; y += kThreadRows) {
        if (row + x < task.rows) {
            task.to[first + (col + y) * task.rows + row + x] = tile[x][y];
        }
    }
}

} // namespace

void transpose_blocks(const Launcher &launcher, const Transposition &task, cudaStream_t stream) {
    const int64_t tiles = task.blocks * (task.cols / kTile) * ((task.rows + kTile - 1) / kTile);
    const LaunchShape shape{static_cast<unsigned>(tiles), kTile * kThreadRows, 0, 1, true};
    launcher("the transposition of bsr_spmm_t's blocks", transpose_kernel, shape, stream, task);
}

} // namespace bsparse::gpu::spmm_sm90
