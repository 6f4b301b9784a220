// Activations on vectors of f32. Polynomials were fitted by iterated weighted least squares to a relative error of
// 1e-8, a sixth of f32's rounding. Measured against double over the whole range of f32: every activation within
// 1.5e-7 of |x|; relative to the result exp within 1 ulp, silu within 3, gelu within 9 even where it is tiny, and
// gelu_tanh within 13 where the result exceeds |x| / 1000.
// Part of the kernel source: see kernel/all.h.

// exp(high + low), |low| small beside high: the second part carries what high rounds away. 0 below -103, infinity
// above 89; NaN stays NaN.
static inline Vf exp_of(Vf high, Vf low) {
    // Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
    const Vf limited = select(high < -104.0f, broadcast(-104.0f), select(high > 89.0f, broadcast(89.0f), high));
    const Vf shifted = limited * 1.44269504f + 12582912.0f;
    const Vf n = shifted - 12582912.0f;
    // log(2) in two parts, the first with zeros at its end: n times it is exact.
    const Vf r = (limited - n * 0.693359375f) + (n * 2.12194440e-4f + low);
    Vf p = broadcast(0.0013813142431899905f);
    p = p * r + 0.008369418792426586f;
    p = p * r + 0.04166845604777336f;
    p = p * r + 0.16666515171527863f;
    p = p * r + 0.49999994039535522f;
    p = (p * r) * r + r + 1.0f;
    // 2^n in two factors, each a normal number: n reaches -150 and 128.
    const Vi whole = as<Vi>(shifted) - 0x4b400000;
    const Vi half = whole >> 1;
    const Vf scaled = p * as<Vf>((half + 127) << 23) * as<Vf>((whole - half + 127) << 23);
    return select(high != high, high, scaled);
}

static inline Vf relu(Vf x) { return select(x < 0.0f, Vf{}, x); } // NaN stays NaN

static inline Vf silu(Vf x) { return x / (1.0f + exp_of(-x, Vf{})); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3).
// Source: Hendrycks and Gimpel, 2016, Gaussian Error Linear Units.
static inline Vf gelu_tanh(Vf x) {
    const Vf minus_2u = -1.5957691216057308f * (x + 0.044715f * x * x * x);
    return x / (1.0f + exp_of(minus_2u, Vf{}));
}

// x Phi(x) = max(x, 0) - |x| Q(|x|) with Q(a) = 1 - Phi(a) = exp(-a^2 / 2) R(a): accurate also where Phi(x) is tiny.
static inline Vf gelu(Vf x) {
    const Vf a = as<Vf>(as<Vu>(x) & 0x7fffffff);
    const Vf bounded = select(a > 14.5f, broadcast(14.5f), a); // Q(14.5) is 0 in f32
    // a^2 exactly, as the square of a's upper half and a remainder.
    const Vf upper = as<Vf>(as<Vu>(bounded) & 0xfffff000);
    const Vf density = exp_of(-0.5f * upper * upper, -0.5f * (bounded - upper) * (bounded + upper));
    const Vf u = (bounded - 3.0f) / (bounded + 3.0f);
    Vf r = broadcast(5.316148599376902e-05f); // R(a) as a polynomial in u
    r = r * u + 0.00011501384869916365f;
    r = r * u - 0.0003390123602002859f;
    r = r * u - 0.000983288511633873f;
    r = r * u + 0.002904387190937996f;
    r = r * u + 0.006131942383944988f;
    r = r * u - 0.046213261783123016f;
    r = r * u + 0.12322504073381424f;
    r = r * u - 0.20640261471271515f;
    r = r * u + 0.12151394784450531f;
    const Vf tail = bounded * (density * r);
    return relu(x) - tail;
}

template <bsparse_epilogue kActivation> static inline Vf activate(Vf x) {
    switch (kActivation) {
    case BSPARSE_EPILOGUE_RELU:
        return relu(x);
    case BSPARSE_EPILOGUE_GELU:
        return gelu(x);
    case BSPARSE_EPILOGUE_GELU_TANH:
        return gelu_tanh(x);
    case BSPARSE_EPILOGUE_SILU:
        return silu(x);
    default:
        return x;
    }
}
