"""How far a result may lie from the oracle: one table, each entry with its derivation.

An error is allowed up to  rtol * |exact| + atol_factor * magnitude,  element by element:
  rtol         what one rounding to the stored dtype costs: half a unit in the last place, 2**-(mantissa bits + 1).
  atol_factor  what summation costs, relative to |S| @ |B| (+ |beta C| + |bias|): for any order of summing n terms
               the error is at most n * u * (|S| @ |B|) (Higham, Accuracy and Stability of Numerical Algorithms,
               2nd ed., 3.5), with u = 2**-24 for f32 sums and 2**-53 for f64 sums.

Operands are drawn from numbers that the dtype holds exactly (cases.Case.operands), so rounding them costs nothing.
"""

UNIT = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f64": 2.0**-53}  # half an ulp of 1, round to nearest even

SMALLEST = {  # half the spacing of numbers next to 0; results this small lose their relative accuracy
    "f32": 2.0**-150,
    "f16": 2.0**-25,
    "bf16": 2.0**-134,
    "f64": 0.0,
}

# Rounding the sum, once, on store: the dtype's unit. In f64 the oracle's own rounding is as large: twice.
STORE = {"f32": UNIT["f32"], "f16": UNIT["f16"], "bf16": UNIT["bf16"], "f64": 2 * UNIT["f64"]}

# f32, f16 and bf16 products are summed in f32 (bsparse.h: "sums are f32"), f64 in f64 (and so is the oracle: twice).
SUM = {"f32": UNIT["f32"], "f16": UNIT["f32"], "bf16": UNIT["f32"], "f64": 2 * UNIT["f64"]}

# What computes the products of f32 operands, and what that costs beside the sums: relative to |a b|, and in units of u.
#   scalar  a fused multiply-add: nothing beside the rounding of the sum.
#   tensor  tensor cores. f32 as three TF32 products: each operand is a high and a low part of 11 bits, so it loses
#           2**-22, twice; the product of the low parts, at most 2**-22, is left out. bf16 and f16 products are exact.
#           Sums are truncated, not rounded: a whole ulp, 2 u, a term (Fasi et al., Numerical behavior of NVIDIA tensor
#           cores, PeerJ Computer Science 7:e330, 2021).
#   tf32    one TF32 product, where the caller allows it: both operands cut to 11 bits, 2**-10 each, and its square.
PRODUCT = {"scalar": 0.0, "tensor": 3 * 2.0**-22, "tf32": 2.0**-9 + 2.0**-20}
UNITS = {"scalar": 1, "tensor": 2, "tf32": 2}

# |act'(x)| <= 1.13 for gelu, gelu_tanh and silu, <= 1 for relu: an error before the activation grows by at most that.
# Evaluating it in f32 costs a few ulp more, relative to |x|: exp, erf and tanh within 4 ulp each, four operations.
SLOPE = 1.13
EVALUATE = {"f32": 8 * UNIT["f32"], "f16": 8 * UNIT["f32"], "bf16": 8 * UNIT["f32"], "f64": 16 * UNIT["f64"]}


def bound(exact, magnitude, terms, dtype, out_dtype=None, epilogue="none", before=None, arithmetic="scalar"):
    """The largest error allowed for each element.

    exact: the oracle's result. magnitude: oracle.magnitude plus the absolute values of what was added. terms: how many
    numbers were summed at most. before: the value before the activation, where there is one. arithmetic: see PRODUCT.
    """
    out_dtype = out_dtype or dtype
    product = PRODUCT[arithmetic] if dtype == "f32" else 0.0
    error = ((terms + 2) * UNITS[arithmetic] * SUM[dtype] + product) * magnitude  # two more: beta * C and the bias
    if epilogue != "none":
        error = SLOPE * error + EVALUATE[dtype] * abs(before)
    return error + STORE[out_dtype] * (abs(exact) + error) + SMALLEST[out_dtype]
