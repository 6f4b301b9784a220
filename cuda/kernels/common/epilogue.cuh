// From sums to results: d = act(alpha * x + beta * c + bias), and aux receives what is inside the brackets.
#pragma once

#include <initializer_list>

#include "../../src/backend.h"
#include "../../src/dtype.h"
#include "dtype.cuh"

namespace bsparse::gpu {

// A dense operand seen as [tokens, features], whatever its order in memory: one of the strides is 1.
struct DenseView {
    char *data;
    int64_t token_stride, feature_stride; // elements
    bsparse_dtype dtype;
};

// Passed to kernels by value.
struct Epilogue {
    float alpha, beta;
    DenseView c;      // unused where beta is 0
    const char *bias; // [features] or NULL
    bsparse_dtype bias_dtype;
    DenseView aux; // data NULL: not wanted
    DenseView d;
    bsparse_epilogue activation;
    bool vectors; // kVector features from a multiple of kVector on are neighbours, aligned to 16 bytes
};

// ld as the header has it: of a matrix [features, tokens].
inline DenseView dense_view(const void *data, int64_t ld, bsparse_order order, bsparse_dtype dtype) {
    const bool by_tokens = order == BSPARSE_COL_MAJOR;
    return {static_cast<char *>(const_cast<void *>(data)), by_tokens ? ld : 1, by_tokens ? 1 : ld, dtype};
}

// Whether kVector features of every token, from a multiple of kVector on, can be moved 16 bytes at a time.
inline bool moves_in_vectors(const DenseView &view) {
    return view.feature_stride == 1 && reinterpret_cast<uintptr_t>(view.data) % 16 == 0 &&
           view.token_stride * dtype_bytes(view.dtype) % 16 == 0;
}

// For spmm and spmm_t.
inline Epilogue make_epilogue(const Plan &plan, const bsparse_args &args) {
    const bsparse_plan_desc &desc = plan.desc;
    Epilogue e;
    e.alpha = static_cast<float>(args.alpha);
    e.beta = static_cast<float>(args.beta);
    e.c = dense_view(args.c, args.ldc, desc.d_order, desc.c_dtype);
    e.bias = static_cast<const char *>(args.bias);
    e.bias_dtype = desc.bias_dtype;
    e.aux = dense_view(args.aux, args.ldaux, desc.d_order, desc.out_dtype);
    e.d = dense_view(args.d, args.ldd, desc.d_order, desc.out_dtype);
    e.activation = desc.epilogue;
    e.vectors = moves_in_vectors(e.d) && (e.beta == 0 || moves_in_vectors(e.c)) &&
                (e.aux.data == nullptr || moves_in_vectors(e.aux)) && reinterpret_cast<uintptr_t>(e.bias) % 16 == 0;
    return e;
}

__device__ inline float activate(bsparse_epilogue activation, float x) {
    switch (activation) {
    case BSPARSE_EPILOGUE_RELU:
        return x < 0 ? 0 : x; // NaN stays NaN
    case BSPARSE_EPILOGUE_GELU: // x Phi(x); erfc keeps its relative accuracy where Phi is tiny
        return 0.5f * x * erfcf(-0.70710678118654752f * x);
    case BSPARSE_EPILOGUE_GELU_TANH: // 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3)
        return x / (1 + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    case BSPARSE_EPILOGUE_SILU:
        return x / (1 + expf(-x));
    default:
        return x;
    }
}

// One element of a view, in elements from its start.
__device__ inline int64_t index_of(const DenseView &view, int64_t token, int64_t feature) {
    return token * view.token_stride + feature * view.feature_stride;
}

// x is the sum of one element; writes aux and D.
__device__ inline void finish(const Epilogue &e, float x, int64_t token, int64_t feature) {
    x *= e.alpha;
    if (e.beta != 0) {
        x += e.beta * load_as_f32(e.c.data, e.c.dtype, index_of(e.c, token, feature));
    }
    if (e.bias != nullptr) {
        x += load_as_f32(e.bias, e.bias_dtype, feature);
    }
    if (e.aux.data != nullptr) {
        store_from_f32(e.aux.data, e.aux.dtype, index_of(e.aux, token, feature), x);
    }
    store_from_f32(e.d.data, e.d.dtype, index_of(e.d, token, feature), activate(e.activation, x));
}

__device__ inline void load_vector_as_f32(const void *data, bsparse_dtype dtype, int64_t index, float (&x)[kVector]) {
    with_type(dtype, [&](auto type) { load_vector(static_cast<const decltype(type) *>(data) + index, x); });
}

__device__ inline void store_vector_from_f32(void *data, bsparse_dtype dtype, int64_t index,
                                             const float (&x)[kVector]) {
    with_type(dtype, [&](auto type) { store_vector(static_cast<decltype(type) *>(data) + index, x); });
}

template <bsparse_epilogue kActivation> __device__ inline void activate_vector(float (&x)[kVector]) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        x[i] = activate(kActivation, x[i]);
    }
}

// The same for kVector features of one token at once, where e.vectors is set and feature is a multiple of kVector.
__device__ inline void finish_vector(const Epilogue &e, float (&x)[kVector], int64_t token, int64_t feature) {
    float other[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
        x[i] *= e.alpha;
    }
    if (e.beta != 0) {
        load_vector_as_f32(e.c.data, e.c.dtype, index_of(e.c, token, feature), other);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            x[i] += e.beta * other[i];
        }
    }
    if (e.bias != nullptr) {
        load_vector_as_f32(e.bias, e.bias_dtype, feature, other);
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
            x[i] += other[i];
        }
    }
    if (e.aux.data != nullptr) {
        store_vector_from_f32(e.aux.data, e.aux.dtype, index_of(e.aux, token, feature), x);
    }
    switch (e.activation) { // once, not for every element
    case BSPARSE_EPILOGUE_NONE:
        break;
    case BSPARSE_EPILOGUE_RELU:
        activate_vector<BSPARSE_EPILOGUE_RELU>(x);
        break;
    case BSPARSE_EPILOGUE_GELU:
        activate_vector<BSPARSE_EPILOGUE_GELU>(x);
        break;
    case BSPARSE_EPILOGUE_GELU_TANH:
        activate_vector<BSPARSE_EPILOGUE_GELU_TANH>(x);
        break;
    default:
        activate_vector<BSPARSE_EPILOGUE_SILU>(x);
        break;
    }
    store_vector_from_f32(e.d.data, e.d.dtype, index_of(e.d, token, feature), x);
}

} // namespace bsparse::gpu
