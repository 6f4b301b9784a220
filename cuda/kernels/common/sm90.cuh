// Hopper's own instructions: mbarriers, clusters, bulk tensor copies, and what is around them. wgmma is in wgmma.cuh.
// Every shared memory address is the 32-bit one of shared_address().
#pragma once

#include <cstdint>
#include <cuda.h>

namespace bsparse::gpu::sm90 {

__device__ __forceinline__ uint32_t shared_address(const void *pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same number, which the compiler then keeps: it would compute it anew at each use.
__device__ __forceinline__ uint32_t keep(uint32_t number) {
    asm volatile("" : "+r"(number));
    return number;
}

// A thread's number in its block, or in its warp. Read anew at each use: kept, they cost registers across a main loop.
__device__ __forceinline__ int thread_number() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

__device__ __forceinline__ int lane_number() {
    int lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

// Words by address.
__device__ __forceinline__ int load_shared(uint32_t from) {
    int v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(from) : "memory");
    return v;
}

__device__ __forceinline__ int4 load_shared_vector(uint32_t from) {
    int4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t to, int v) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t to, const int4 &v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

// mbarriers --------------------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// After the inits, before the block (or cluster) synchronises: other blocks and the copy engine then see them.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// On the same barrier of another block of the cluster (or of this one: rank may be its own).
__device__ __forceinline__ void arrive_remote(uint32_t barrier, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 remote;\n"
                 "mapa.shared::cluster.u32 remote, %0, %1;\n"
                 "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
                 "}" ::"r"(barrier),
                 "r"(rank)
                 : "memory");
}

// One arrival, and so many more bytes of bulk copies to wait for.
__device__ __forceinline__ void arrive_expect_bytes(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

inline constexpr char kTestWait[] = "test_wait", kTryWait[] = "try_wait";

// Whether the phase of this parity is over.
template <const char *kInstruction> __device__ __forceinline__ bool is_over(uint32_t barrier, uint32_t parity) {
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.%3.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity), "C"(kInstruction)
                 : "memory");
    return done != 0;
}

// test_wait answers at once, try_wait may sleep for a while first.
__device__ __forceinline__ bool test_wait(uint32_t barrier, uint32_t parity) {
    return is_over<kTestWait>(barrier, parity);
}
__device__ __forceinline__ bool try_wait(uint32_t barrier, uint32_t parity) {
    return is_over<kTryWait>(barrier, parity);
}

// A fresh barrier is in its phase of parity 0: waiting for parity 1 passes at once.
__device__ __forceinline__ void wait(uint32_t barrier, uint32_t parity) {
    while (!try_wait(barrier, parity)) {
    }
}

// A ring of stages: which one is next, and the parity of its phase.
struct Ring {
    uint32_t stage, parity;

    template <uint32_t kStages> __device__ __forceinline__ void advance() {
        if (++stage == kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

// clusters and thread groups ---------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

// Without order among memory accesses: enough to know that the others have started.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Barriers 1 to 15 of a block; 0 is __syncthreads().
__device__ __forceinline__ void sync_named(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Registers a thread of this warpgroup; the counts of a block's three warpgroups together must be at most 504 (more
// hangs for ever), each a multiple of 8.
template <int kRegisters> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

template <int kRegisters> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Programmatic dependent launch: waits until the kernels before this one in the stream are done, and lets the next
// start early. Both do nothing in an ordinary launch.
__device__ __forceinline__ void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ __forceinline__ void let_next_kernel_start() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// bulk tensor copies -----------------------------------------------------------------------
// map: a __grid_constant__ parameter; x: first element along the contiguous dimension, y: first line.

__device__ __forceinline__ void prefetch_map(const CUtensorMap *map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], "
                 "[%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}

// Into L2, where all writes meet: allowed while a kernel before this one may still write there.
__device__ __forceinline__ void prefetch_box(const CUtensorMap *map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

// To the same place of every block of the cluster in mask; each one's own barrier counts its bytes.
__device__ __forceinline__ void load_box_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, uint16_t mask,
                                                   int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1, {%4, %5}], [%2], %3;" ::"r"(to),
                 "l"(map), "r"(barrier), "h"(mask), "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
                 "r"(x), "r"(y)
                 : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kPending of this thread's last committed groups still read shared memory.
template <int kPending> __device__ __forceinline__ void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Between ordinary stores to shared memory and a copy or wgmma that reads them: each writing thread, then a barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8x8 matrices of 16-bit elements, each written transposed; lane i holds the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void store_matrices_transposed(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2,
                                                          uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}

__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(m0), "r"(m1),
                 "r"(m2), "r"(m3)
                 : "memory");
}

} // namespace bsparse::gpu::sm90
