// From a Variant to its kernel: the one list of the sm_90 spmm kernels, made once for each element type.
#pragma once

#include "sm90_merge.cuh"

namespace bsparse::gpu::spmm_sm90 {

template <class K> KernelChoice choose_kernel() {
    return {reinterpret_cast<const void *>(&spmm_kernel<K>), Shared<K>::kBytes};
}

template <class T, int kDepth, bool kTransposed, bool kPaired, int kTokens> KernelChoice choose_staged(bool staged) {
    return staged ? choose_kernel<Kernel<T, kDepth, kTransposed, kPaired, kTokens, true>>()
                  : choose_kernel<Kernel<T, kDepth, kTransposed, kPaired, kTokens, false>>();
}

template <class T, int kDepth, bool kTransposed, bool kPaired> KernelChoice choose_tokens(int tokens, bool staged) {
    if constexpr (kDepth * sizeof(T) == 128) {
        if constexpr (sizeof(T) == 2) {
            if (tokens == 64) {
                return choose_staged<T, kDepth, kTransposed, kPaired, 64>(staged);
            }
        }
        if (tokens == 128) {
            return choose_staged<T, kDepth, kTransposed, kPaired, 128>(staged);
        }
    }
    return choose_staged<T, kDepth, kTransposed, kPaired, 256>(staged);
}

template <class T, int kDepth, bool kTransposed> KernelChoice choose_direction(const Variant &v) {
    return v.paired ? choose_tokens<T, kDepth, kTransposed, true>(v.tokens, v.staged)
                    : choose_tokens<T, kDepth, kTransposed, false>(v.tokens, v.staged);
}

template <class T, int kDepth> KernelChoice choose_depth(const Variant &v) {
    return v.across ? choose_direction<T, kDepth, true>(v) : choose_direction<T, kDepth, false>(v);
}

template <class T> KernelChoice choose_variant(const Variant &v) {
    if (v.merged) {
        return v.staged ? choose_kernel<MergedKernel<T, true>>() : choose_kernel<MergedKernel<T, false>>();
    }
    switch (v.depth) {
    case 64:
        return choose_depth<T, 64>(v);
    case 32:
        return choose_depth<T, 32>(v);
    default:
        return choose_depth<T, 16>(v);
    }
}

} // namespace bsparse::gpu::spmm_sm90
