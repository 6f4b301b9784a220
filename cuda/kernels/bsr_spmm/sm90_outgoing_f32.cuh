// Outgoing for D of f32, which fills twice the memory and registers of 16 bits: chunks are of 32 tokens, and of 256
// tokens the first half leaves at the tile's end, before the next tile is multiplied.
#pragma once

#include "sm90_epilogue.cuh"

namespace bsparse::gpu::spmm_sm90 {

template <int kTokens, int kFold> class Outgoing<float, kTokens, kFold, false> {
public:
    __device__ __forceinline__ bool empty() const { return next_ == kChunks; }

    // As of 16 bits; and sends what does not fit the registers.
    __device__ __forceinline__ void take(const float (&sums)[kTokens / 2], bool written, const Epilogue &e,
                                         const Bias &bias, const Place &place, const Worker &worker,
                                         const CUtensorMap *d, int tokens) {
        place_ = place;
        next_ = 0;
#pragma unroll
        for (int i = 0; i < kHeld * kChunkSums; ++i) {
            held_[i] = result(sums[kSentFirst * kChunkSums + i], written, e, bias.of[i / 2 % 2]);
        }
        if constexpr (kSentFirst > 0) {
#pragma unroll 1
            while (next_ < kSentFirst) {
                float chunk[kChunkSums];
                switch (next_) { // registers have no run-time index
                case 0:
                    take_chunk<0>(chunk, sums, written, e, bias);
                    break;
                case 1:
                    take_chunk<1>(chunk, sums, written, e, bias);
                    break;
                case 2:
                    take_chunk<2>(chunk, sums, written, e, bias);
                    break;
                default:
                    take_chunk<3>(chunk, sums, written, e, bias);
                }
                send_chunk(chunk, d, tokens, e.activation, worker);
            }
        }
    }

    // Sends the next chunk. D has so many tokens; outputs beyond its own are dropped by the copy engine.
    __device__ __forceinline__ void send(const CUtensorMap *d, int tokens, bsparse_epilogue activation,
                                         const Worker &worker) {
        float chunk[kChunkSums];
#pragma unroll
        for (int i = 0; i < kChunkSums; ++i) {
            chunk[i] = held_[i];
        }
        send_chunk(chunk, d, tokens, activation, worker);
#pragma unroll
        for (int i = 0; i + kChunkSums < kHeld * kChunkSums; ++i) {
            held_[i] = held_[i + kChunkSums];
        }
    }

private:
    static constexpr int kChunkTokens = 32;
    static constexpr int kChunkSums = kChunkTokens / 2; // of a thread
    static constexpr int kChunks = kTokens / kChunkTokens;
    static constexpr int kHeld = 4; // chunks in registers while the next tile is multiplied
    static constexpr int kSentFirst = kChunks - kHeld;
    static constexpr uint32_t kHalfBox = kChunkTokens * 128; // bytes: [32 tokens][32 outputs]

    static __device__ __forceinline__ float result(float sum, bool written, const Epilogue &e, float bias) {
        return (written ? sum : 0) * e.alpha + bias;
    }

    template <int kIndex>
    static __device__ __forceinline__ void take_chunk(float (&chunk)[kChunkSums], const float (&sums)[kTokens / 2],
                                                      bool written, const Epilogue &e, const Bias &bias) {
#pragma unroll
        for (int i = 0; i < kChunkSums; ++i) {
            chunk[i] = result(sums[kIndex * kChunkSums + i], written, e, bias.of[i / 2 % 2]);
        }
    }

    // Activates and stores: through shared memory, in lines of 32 outputs with the copy engine's swizzle of 128 bytes.
    // A warp writes 8 outputs of four tokens at once, in different banks.
    __device__ __forceinline__ void send_chunk(float (&chunk)[kChunkSums], const CUtensorMap *d, int tokens,
                                               bsparse_epilogue activation, const Worker &worker) {
        activate_chunk(chunk, activation);
        const int thread = thread_number() % kWarpgroup;
        const uint32_t box = worker.memory + next_ % 2 * (2 * kHalfBox);
        if (thread == 0) {
            wait_stores_read<1>(); // what this box held before
        }
        worker.sync();
#pragma unroll
        for (int i = 0; i < 4; ++i) { // chunk[4 j + i]: token 8 j + i % 2 and output i / 2, from this thread's first
            const int token = thread % 4 * 2 + i % 2;
            const int output = row_of(thread, i / 2, kFold);
            const uint32_t line = box + output / 32 * kHalfBox + token * 128;
            const uint32_t to = line + (output % 32 / 4 ^ token) * 16 + output % 4 * 4;
#pragma unroll
            for (int j = 0; j < kChunkSums / 4; ++j) {
                store_shared(to + j * 8 * 128, __float_as_int(chunk[4 * j + i]));
            }
        }
        fence_async_proxy();
        worker.sync();
        if (thread == 0) {
            const int first = place_.token + next_ * kChunkTokens;
            if (first < tokens) {
                store_box(d, box, place_.output, first);
                store_box(d, box + kHalfBox, place_.output + 32, first);
            }
            commit_stores();
        }
        ++next_;
    }

    static __device__ __forceinline__ void activate_chunk(float (&chunk)[kChunkSums], bsparse_epilogue activation) {
        switch (activation) {
        case BSPARSE_EPILOGUE_RELU:
            return activate_as<BSPARSE_EPILOGUE_RELU>(chunk);
        case BSPARSE_EPILOGUE_GELU:
            return activate_as<BSPARSE_EPILOGUE_GELU>(chunk);
        case BSPARSE_EPILOGUE_GELU_TANH:
            return activate_as<BSPARSE_EPILOGUE_GELU_TANH>(chunk);
        case BSPARSE_EPILOGUE_SILU:
            return activate_as<BSPARSE_EPILOGUE_SILU>(chunk);
        default:
            return;
        }
    }

    template <bsparse_epilogue kActivation>
    static __device__ __forceinline__ void activate_as(float (&chunk)[kChunkSums]) {
#pragma unroll
        for (int i = 0; i < kChunkSums; ++i) {
            chunk[i] = activate_quickly<kActivation>(chunk[i]);
        }
    }

    float held_[kHeld * kChunkSums]; // the next chunk's first
    Place place_;
    int next_ = kChunks;
};

} // namespace bsparse::gpu::spmm_sm90
