"""The dense float64 oracle that judges every product. NumPy only: it must not share a bug with what it judges.

A sparse matrix S is a dense float64 array [rows, cols] that is zero outside the stored blocks; a pattern is
(row_offsets, col_indices) with a block (block_rows, block_cols), as in the C header. Results are exact up to float64.
In a 2:4 format S is such an array too, zero at what is not kept; its stored blocks are cut into groups of 4 columns,
[..., groups, 4], and positions [..., groups, 2] say which two columns of each group are kept.
"""

import math

import numpy as np

DTYPES = ("f32", "f16", "bf16", "f64")
NUMPY_DTYPES = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "f64": np.float64}  # bf16 as its bits


def bf16_bits(x):
    """Round to bf16, to nearest, ties to even: uint16 bits of the same shape. NaN stays NaN."""
    x = np.asarray(x, dtype=np.float32)
    bits = x.view(np.uint32).astype(np.int64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def encode(x, dtype):
    """Float64 to the array that a bsparse dtype is stored as (bf16: uint16), rounded to nearest even."""
    return bf16_bits(x) if dtype == "bf16" else np.asarray(x).astype(NUMPY_DTYPES[dtype])


def decode(x, dtype):
    """The inverse of encode: float64, exact."""
    if dtype == "bf16":
        return (np.asarray(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return np.asarray(x).astype(np.float64)


def round_to(x, dtype):
    """The nearest numbers that the dtype can hold, as float64."""
    return decode(encode(x, dtype), dtype)


def block_grid(shape, block):
    """Block rows and block columns of a matrix: ceil(rows / block_rows), ceil(cols / block_cols)."""
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def mask_to_indices(mask):
    """Bool block mask [R, C] to (row_offsets int32 [R + 1], col_indices int32 [blocks])."""
    mask = np.asarray(mask, dtype=bool)
    row_offsets = np.concatenate([[0], np.cumsum(mask.sum(axis=1))]).astype(np.int32)
    return row_offsets, np.nonzero(mask)[1].astype(np.int32)


def element_mask(mask, shape, block):
    """Bool block mask [R, C] to bool element mask [rows, cols]."""
    return np.kron(np.asarray(mask, dtype=bool), np.ones(block, dtype=bool))[: shape[0], : shape[1]]


def pack(dense, mask, block, metadata=None):
    """Dense [rows, cols] to stored blocks [blocks, block_rows, block_cols], zero in the padding of edge blocks.

    With metadata [blocks, block_rows, block_cols / 8] to what it keeps of them: [blocks, block_rows, block_cols / 2].
    """
    grid = block_grid(dense.shape, block)
    padded = np.zeros((grid[0] * block[0], grid[1] * block[1]), dtype=dense.dtype)
    padded[: dense.shape[0], : dense.shape[1]] = dense
    tiles = padded.reshape(grid[0], block[0], grid[1], block[1]).swapaxes(1, 2)  # [R, C, block_rows, block_cols]
    stored = np.ascontiguousarray(tiles[np.asarray(mask, dtype=bool)])
    if metadata is None:
        return stored
    kept = np.take_along_axis(groups_of(stored), positions_of(metadata), axis=-1)
    return kept.reshape(*stored.shape[:-1], block[1] // 2)


def unpack(values, mask, shape, block, metadata=None):
    """The inverse of pack: dense [rows, cols], zero where nothing is stored."""
    if metadata is not None:
        blocks = np.zeros((*values.shape[:-1], block[1]), dtype=values.dtype)
        pairs = values.reshape(*values.shape[:-1], block[1] // 4, 2)
        np.put_along_axis(groups_of(blocks), positions_of(metadata), pairs, axis=-1)
        values = blocks
    grid = block_grid(shape, block)
    tiles = np.zeros((*grid, *block), dtype=values.dtype)
    tiles[np.asarray(mask, dtype=bool)] = values
    return tiles.swapaxes(1, 2).reshape(grid[0] * block[0], grid[1] * block[1])[: shape[0], : shape[1]]


def groups_of(array):
    """[..., cols] as groups of 4 columns, [..., cols / 4, 4]: a view."""
    return array.reshape(*array.shape[:-1], array.shape[-1] // 4, 4)


def metadata_of(positions):
    """Positions [..., groups, 2] to bytes [..., groups / 2]: low bits first, the first group in the low half."""
    nibbles = positions[..., 0] + 4 * positions[..., 1]
    return (nibbles[..., 0::2] + 16 * nibbles[..., 1::2]).astype(np.uint8)


def positions_of(metadata):
    """The inverse of metadata_of."""
    bits = [(metadata.astype(np.int64) >> shift) & 3 for shift in (0, 2, 4, 6)]
    return np.stack(bits, axis=-1).reshape(*metadata.shape[:-1], 2 * metadata.shape[-1], 2)


def choose_largest(groups):
    """Positions of the two largest magnitudes of each group; NaN is largest, of equals the lower column goes first."""
    size = np.where(np.isnan(groups), 0.0, np.abs(groups))
    order = np.lexsort((-size, ~np.isnan(groups)), axis=-1)  # stable; the last key counts most
    return np.sort(order[..., :2], axis=-1)


def choose_larger(groups):
    """Positions of the larger magnitude of each pair of columns: what pack keeps in f32."""
    pairs = groups.reshape(*groups.shape[:-1], 2, 2)
    size = np.where(np.isnan(pairs), np.inf, np.abs(pairs))
    second = (size[..., 1] > size[..., 0]) | (np.isnan(pairs[..., 1]) & ~np.isnan(pairs[..., 0]))
    return second + np.array([0, 2])


def choose_from_mask(groups):
    """Positions of a mask's groups that keep at most two columns: those, and the lowest others where they are fewer."""
    order = np.argsort(~groups, axis=-1, kind="stable")
    return np.sort(order[..., :2], axis=-1)


def activate(x, epilogue):
    """The activation of an epilogue. gelu is x Phi(x); gelu_tanh is Hendrycks and Gimpel, 2016 (arXiv:1606.08415)."""
    if epilogue == "none":
        return x
    if epilogue == "relu":
        return np.where(x < 0, 0.0, x)  # NaN stays NaN
    if epilogue == "gelu":
        return 0.5 * x * (1.0 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2.0)))
    if epilogue == "gelu_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    if epilogue == "silu":
        return x / (1.0 + np.exp(-x))
    raise ValueError(f"epilogue is {epilogue!r}; the oracle knows none, relu, gelu, gelu_tanh and silu")


def spmm(s, b, *, alpha=1.0, beta=0.0, c=None, bias=None, epilogue="none"):
    """D = act(alpha * S @ B + beta * C + bias), and the value before the activation: two arrays [rows, tokens].

    s: [rows, cols]; b: [cols, tokens]; c: [rows, tokens]; bias: [rows]. C is not read where beta is 0.
    """
    before = alpha * (s @ b)
    if beta != 0:
        before = before + beta * c
    if bias is not None:
        before = before + bias[:, None]
    return activate(before, epilogue), before


def spmm_t(s, b, **rest):
    """spmm with S^T: s [rows, cols], b [rows, tokens], results [cols, tokens]; bias: [cols]."""
    return spmm(s.T, b, **rest)


def sddmm(a, b, mask, block, metadata=None, *, alpha=1.0, beta=0.0, values=None):
    """alpha * (A @ B where something is stored) + beta * values: as pack gives it.

    a: [rows, tokens]; b: [tokens, cols]. Padding is zero; values are not read where beta is 0.
    """
    product = alpha * pack(a @ b, mask, block, metadata)
    return product + beta * values if beta != 0 else product


def magnitude(s, b):
    """|S| @ |B|: what rounding errors of a product are measured against (Higham, Accuracy and Stability, 3.5)."""
    return np.abs(s) @ np.abs(b)
