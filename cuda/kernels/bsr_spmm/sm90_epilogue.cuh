// The two ways of a warpgroup's sums, [64 outputs][tokens] in wgmma's order, to D.
//
// Outgoing packs them to 16 bits in registers at a tile's end, then activates them and gives them to the copy engine, a
// chunk of 64 tokens at a time, while the next tile is multiplied. It knows alpha, bias and activation; what is
// activated is rounded to D's type first, as it is in aux.
//
// finish_staged() takes them through shared memory as f32 to the common epilogue, at once. It knows everything, and any
// alignment.
#pragma once

#include "../common/epilogue.cuh"
#include "../common/sm90.cuh"

namespace bsparse::gpu::spmm_sm90 {

using namespace sm90;

constexpr int kChunk = 64; // tokens stored at once
constexpr int kWarpgroup = 128; // threads
constexpr uint32_t kBoxBytes = kChunk * 64 * 2; // [64 tokens][64 outputs] of 16 bits
constexpr uint32_t kStagingBytes = kChunk * 64 * 4; // of f32; or two boxes

__device__ __forceinline__ uint32_t pack(__nv_bfloat16, float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&both);
}

__device__ __forceinline__ uint32_t pack(__half, float low, float high) {
    const __half2 both = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&both);
}

__device__ __forceinline__ float2 unpack(__nv_bfloat16, uint32_t pair) {
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&pair));
}

__device__ __forceinline__ float2 unpack(__half, uint32_t pair) {
    return __half22float2(*reinterpret_cast<const __half2 *>(&pair));
}

// activate() within 5e-5 of its value, which is little beside the rounding to 16 bits that follows, or to TF32 that
// came before, in a few instructions and without calls, which products in flight would not allow.
template <bsparse_epilogue kActivation> __device__ __forceinline__ float activate_quickly(float x) {
    if constexpr (kActivation == BSPARSE_EPILOGUE_GELU) {
        // x Phi(x) = max(x, 0) - |x| / 2 erfc(|x| / sqrt(2)); erfc(z) = exp(-z^2) Q(1 / (1 + 0.54 z)), Q fitted to the
        // smallest relative error. At 20 it is 0.
        const float size = fminf(fabsf(x), 20.0f);
        const float t = __fdividef(1.0f, fmaf(size, 0.381837662f, 1.0f));
        float q = fmaf(t, -0.08939225f, 0.18424379f);
        q = fmaf(t, q, 0.095282075f);
        q = fmaf(t, q, 0.157825345f);
        q = fmaf(t, q, 0.152021705f);
        return (x < 0 ? 0 : x) - size * __expf(-0.5f * size * size) * (q * t);
    } else if constexpr (kActivation == BSPARSE_EPILOGUE_GELU_TANH) {
        return __fdividef(x, 1 + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    } else if constexpr (kActivation == BSPARSE_EPILOGUE_SILU) {
        return __fdividef(x, 1 + __expf(-x));
    } else {
        return activate(kActivation, x);
    }
}

// Where a warpgroup's sums belong: the first outputs of their two halves of 32, and the first token.
struct Place {
    int output, second, token;

    __device__ __forceinline__ int output_of(int row) const { return (row < 32 ? output : second) + row % 32; }
};

// A thread's place in its warpgroup, and the warpgroup's own part of shared memory and named barrier.
struct Worker {
    int thread; // of the warpgroup
    int barrier; // named
    uint32_t memory; // kStagingBytes, 1024-byte aligned

    __device__ __forceinline__ int warp() const { return thread / 32; }
    __device__ __forceinline__ int lane() const { return thread % 32; }
    __device__ __forceinline__ void sync() const { sync_named(barrier, kWarpgroup); }
};

// Which of the strip's 64 outputs the first (half 0) and second sum of a thread belong to. fold: lines of a piece of S
// that were loaded as one of 128 bytes, see sm90_kernel.cuh; it exchanges lines among neighbours.
__device__ __forceinline__ int exchange_of(int warp, int half, int fold) { return (2 * warp + half) & (fold - 1); }

__device__ __forceinline__ int row_of(int thread, int half, int fold) {
    const int warp = thread / 32;
    return warp * 16 + half * 8 + (thread % 32 / 4 ^ exchange_of(warp, half, fold));
}

// The bias of a thread's two outputs.
struct Bias {
    float of[2];
};

template <int kFold, bool kMerged>
__device__ __forceinline__ Bias load_bias(const Epilogue &e, const Place &place, int outputs) {
    Bias bias{{0, 0}};
    if (e.bias != nullptr) {
        const int thread = thread_number() % kWarpgroup;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int row = row_of(thread, half, kFold);
            const int output = kMerged ? place.output_of(row) : place.output + row;
            if (output < outputs) {
                bias.of[half] = load_as_f32(e.bias, e.bias_dtype, output);
            }
        }
    }
    return bias;
}

template <class T, int kTokens, int kFold, bool kMerged> class Outgoing {
public:
    static constexpr int kChunks = kTokens / kChunk;

    __device__ __forceinline__ bool empty() const { return next_ == kChunks; }

    // Everything before must have gone. written: whether there are sums at all, else they count as 0. Nothing is
    // multiplied meanwhile, so that each case does no more than it must.
    __device__ __forceinline__ void take(const float (&sums)[kTokens / 2], bool written, const Epilogue &e,
                                         const Bias &bias, const Place &place, const Worker &worker) {
        if (!written) {
            const float both[2] = {0.0f * e.alpha + bias.of[0], 0.0f * e.alpha + bias.of[1]};
#pragma unroll
            for (int i = 0; i < kTokens / 4; ++i) {
                pairs_[i] = pack(T{}, both[i % 2], both[i % 2]);
            }
        } else if (e.alpha == 1 && e.bias == nullptr) {
#pragma unroll
            for (int i = 0; i < kTokens / 4; ++i) {
                pairs_[i] = pack(T{}, sums[2 * i], sums[2 * i + 1]);
            }
        } else {
#pragma unroll
            for (int i = 0; i < kTokens / 4; ++i) {
                pairs_[i] =
                    pack(T{}, sums[2 * i] * e.alpha + bias.of[i % 2], sums[2 * i + 1] * e.alpha + bias.of[i % 2]);
            }
        }
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i) {
            if (kFold > 2 || (kFold == 2 && i % 2 == 1)) { // to the thread that holds this row in an ordinary tile
                pairs_[i] = __shfl_xor_sync(~0u, pairs_[i], 4 * exchange_of(worker.warp(), i % 2, kFold));
            }
        }
        place_ = place;
        next_ = 0;
    }

    // Sends the next chunk. D has so many tokens; outputs beyond its own are dropped by the copy engine.
    __device__ __forceinline__ void send(const CUtensorMap *d, int tokens, bsparse_epilogue activation,
                                         const Worker &worker) {
        const uint32_t box = worker.memory + box_;
        box_ ^= kBoxBytes;
        activate_chunk(activation);
        if (thread_number() % kWarpgroup == 0) {
            wait_stores_read<1>(); // what this box held before
        }
        worker.sync();
        send_through(box, d, tokens, worker);
    }

    // Sends all that is left, each chunk through a box of its own from memory on, and so without waiting.
    __device__ __forceinline__ void drain(uint32_t memory, const CUtensorMap *d, int tokens,
                                          bsparse_epilogue activation, const Worker &worker) {
        for (uint32_t box = memory; !empty(); box += kBoxBytes) {
            activate_chunk(activation);
            send_through(box, d, tokens, worker);
        }
    }

private:
    static constexpr int kChunkPairs = kChunk / 4;

    __device__ __forceinline__ void send_through(uint32_t box, const CUtensorMap *d, int tokens, const Worker &worker) {
        const int thread = thread_number() % kWarpgroup;
        const int lane = thread % 32;
        const int warp = thread / 32;
        // A box has lines of the warpgroup's 64 outputs; merged, there is one of 32 for each half.
        constexpr int kLine = kMerged ? 64 : 128; // bytes
        const int token = lane / 16 * 8 + lane % 8; // of each 16
        const int part = (2 * warp + lane / 8 % 2) % (kLine / 16); // 16 bytes of the token's line
        const int swizzle = kMerged ? token / 2 % 4 : token % 8;
        const uint32_t half = kMerged ? warp / 2 * (kBoxBytes / 2) : 0;
        const uint32_t line = box + half + token * kLine + (part ^ swizzle) * 16;
#pragma unroll
        for (int i = 0; i < kChunkPairs; i += 4) { // 16 tokens of the warp's 16 outputs
            store_matrices_transposed(line + i / 4 * 16 * kLine, pairs_[i], pairs_[i + 1], pairs_[i + 2],
                                      pairs_[i + 3]);
        }
        fence_async_proxy();
        worker.sync();
        if (thread == 0) {
            const int first = place_.token + next_ * kChunk;
            if (first < tokens) {
                store_box(d, box, place_.output, first);
                if constexpr (kMerged) {
                    store_box(d, box + kBoxBytes / 2, place_.second, first);
                }
            }
            commit_stores();
        }
        ++next_;
#pragma unroll
        for (int i = 0; i + kChunkPairs < kTokens / 4; ++i) { // registers have no run-time index
            pairs_[i] = pairs_[i + kChunkPairs];
        }
    }

    __device__ __forceinline__ void activate_chunk(bsparse_epilogue activation) {
        switch (activation) {
        case BSPARSE_EPILOGUE_RELU:
            return activate_as<BSPARSE_EPILOGUE_RELU>();
        case BSPARSE_EPILOGUE_GELU:
            return activate_as<BSPARSE_EPILOGUE_GELU>();
        case BSPARSE_EPILOGUE_GELU_TANH:
            return activate_as<BSPARSE_EPILOGUE_GELU_TANH>();
        case BSPARSE_EPILOGUE_SILU:
            return activate_as<BSPARSE_EPILOGUE_SILU>();
        default:
            return;
        }
    }

    template <bsparse_epilogue kActivation> __device__ __forceinline__ void activate_as() {
#pragma unroll
        for (int i = 0; i < kChunkPairs; ++i) {
            const float2 x = unpack(T{}, pairs_[i]);
            pairs_[i] = pack(T{}, activate_quickly<kActivation>(x.x), activate_quickly<kActivation>(x.y));
        }
    }

    uint32_t pairs_[kTokens / 4]; // of neighbouring tokens, the next chunk's first
    Place place_;
    int next_ = kChunks;
    uint32_t box_ = 0; // the box that the chunk before the last had
};

// Where output o of token t lies among the f32 of a chunk: 8 outputs stay together, and the four tokens that a
// warp writes at once fall into different banks.
__device__ __forceinline__ int staged_index(int token, int output) {
    return token * 64 + (output ^ (token / 2 % 4) * 8);
}

template <int kIndex, int kTokens, int kFold>
__device__ __forceinline__ void stage_chunk(float *staging, const float (&sums)[kTokens / 2], bool written,
                                            const Worker &worker) {
    if constexpr (kIndex < kTokens / kChunk) {
#pragma unroll
        for (int i = 0; i < 32; ++i) { // sums[4 j + 2 h + c]: token 8 j + c, from this thread's first
            const int token = i / 4 * 8 + worker.lane() % 4 * 2 + i % 2;
            const int output = row_of(worker.thread, i / 2 % 2, kFold);
            staging[staged_index(token, output)] = written ? sums[kIndex * 32 + i] : 0.0f;
        }
    }
}

template <int kTokens, int kFold>
__device__ __forceinline__ void finish_staged(const float (&sums)[kTokens / 2], bool written, const Epilogue &e,
                                              const Place &place, int tokens, int outputs, const Worker &worker) {
    float *staging = static_cast<float *>(__cvta_shared_to_generic(worker.memory)); // kStagingBytes
#pragma unroll 1
    for (int chunk = 0; chunk < kTokens / kChunk; ++chunk) {
        worker.sync(); // everyone has read the chunk before
        switch (chunk) {
        case 0:
            stage_chunk<0, kTokens, kFold>(staging, sums, written, worker);
            break;
        case 1:
            stage_chunk<1, kTokens, kFold>(staging, sums, written, worker);
            break;
        case 2:
            stage_chunk<2, kTokens, kFold>(staging, sums, written, worker);
            break;
        default:
            stage_chunk<3, kTokens, kFold>(staging, sums, written, worker);
        }
        worker.sync();
#pragma unroll 1
        for (int i = worker.thread; i < kChunk * 64 / kVector; i += kWarpgroup) {
            const int row = i / (64 / kVector);
            const int column = i % (64 / kVector) * kVector;
            const int token = place.token + chunk * kChunk + row;
            const int output = place.output_of(column);
            if (token >= tokens || output >= outputs) {
                continue;
            }
            const float4 *from = reinterpret_cast<const float4 *>(staging + staged_index(row, column));
            const float4 low = from[0];
            const float4 high = from[1];
            float x[kVector] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            if (e.vectors && output + kVector <= outputs) {
                finish_vector(e, x, token, output);
            } else {
#pragma unroll
                for (int k = 0; k < kVector; ++k) {
                    if (output + k < outputs) {
                        finish(e, x[k], token, output + k);
                    }
                }
            }
        }
    }
}

} // namespace bsparse::gpu::spmm_sm90
