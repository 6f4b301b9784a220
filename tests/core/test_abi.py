"""The C ABI as cffi sees it: sized structs, null pointers, unknown numbers. The numbers are those that Python hides."""

import pytest

import bsparse_core as bc
from bsparse_core._library import ffi, lib
from bsparse_core.errors import check
from bsparse_core.types import _compare_with_c

INDICES = ffi.new("int32_t[]", [0, 1, 0])


def pattern_desc(**change):
    fields = {"format": 1, "block_rows": 4, "block_cols": 4, "rows": 4, "cols": 4, "blocks": 1}
    pointers = {"row_offsets": INDICES, "col_indices": INDICES + 2}
    size = ffi.sizeof("bsparse_pattern_desc")
    return ffi.new("bsparse_pattern_desc *", {"struct_size": size} | fields | pointers | change)


def context_desc(**change):
    return ffi.new("bsparse_context_desc *", {"struct_size": ffi.sizeof("bsparse_context_desc"), "backend": 1} | change)


def plan_desc(**change):
    size = ffi.sizeof("bsparse_plan_desc")
    return ffi.new("bsparse_plan_desc *", {"struct_size": size, "op": 1, "dtype": 1} | change)


def create(noun, *arguments):
    out = ffi.new(f"bsparse_{noun} **")
    check(getattr(lib, f"bsparse_{noun}_create")(out, *arguments))
    return ffi.gc(out[0], getattr(lib, f"bsparse_{noun}_destroy"))


@pytest.fixture(scope="module")
def made():
    return create("context", context_desc()), create("pattern", pattern_desc())


def sizes_of(name):
    """Sizes that are wrong: none, a byte short, absurd."""
    return 0, 8, ffi.sizeof(f"bsparse_{name}") - 1, 2**40


@pytest.mark.parametrize("size", sizes_of("context_desc"))
def test_context_desc_size(size):
    with pytest.raises(
        bc.InvalidArgument, match=rf"context_desc.struct_size is {size};.*sizeof\(bsparse_context_desc\)"
    ):
        create("context", context_desc(struct_size=size))


@pytest.mark.parametrize("size", sizes_of("pattern_desc"))
def test_pattern_desc_size(size):
    with pytest.raises(bc.InvalidArgument, match=rf"pattern_desc.struct_size is {size};"):
        create("pattern", pattern_desc(struct_size=size))


@pytest.mark.parametrize("size", sizes_of("plan_desc"))
def test_plan_desc_size(made, size):
    with pytest.raises(bc.InvalidArgument, match=rf"plan_desc.struct_size is {size};"):
        create("plan", *made, plan_desc(struct_size=size))


@pytest.mark.parametrize("size", sizes_of("args"))
def test_args_size(made, size):
    plan = create("plan", *made, plan_desc())
    args = ffi.new("bsparse_args *", {"struct_size": size})
    with pytest.raises(bc.InvalidArgument, match=rf"args.struct_size is {size};"):
        check(lib.bsparse_plan_run(plan, args, ffi.NULL, ffi.NULL, ffi.NULL))


def longer(description, tail):
    """A copy of a struct with eight more bytes, as a newer caller would pass it."""
    size = ffi.sizeof(description[0])
    room = ffi.new("char[]", ffi.buffer(description)[:] + tail.to_bytes(8, "little"))
    longer_desc = ffi.cast(ffi.typeof(description), room)
    longer_desc.struct_size = size + 8
    return longer_desc, room


def test_a_newer_caller_with_nothing_new_to_say():
    description, _room = longer(pattern_desc(), 0)
    create("pattern", description)


def test_a_newer_caller_with_a_new_wish():
    description, _room = longer(pattern_desc(), 1)
    with pytest.raises(bc.Unsupported, match=r"pattern_desc.struct_size is \d+, \d+ in this version.*newer libbsparse"):
        create("pattern", description)


@pytest.mark.parametrize(
    ("change", "kind", "sentence"),
    [
        ({"format": 9}, bc.InvalidArgument, "format is 9, which is no format"),
        ({"reserved": 1}, bc.Unsupported, "reserved is 1; .*set it to 0"),
        ({"block_rows": 0}, bc.InvalidArgument, "block_rows is 0; it must be at least 1"),
        ({"rows": 0}, bc.InvalidArgument, "rows is 0; it must be at least 1"),
        ({"rows": 2**62}, bc.InvalidArgument, "rows is 4611686018427387904, which with block_rows = 4"),
        ({"blocks": -1}, bc.InvalidArgument, "blocks is -1; a matrix of 1 x 1 blocks stores 0 to 1"),
        ({"blocks": 2**40}, bc.InvalidArgument, "blocks is 1099511627776; a matrix of 1 x 1 blocks stores 0 to 1"),
        ({"row_offsets": ffi.NULL}, bc.InvalidArgument, "row_offsets is NULL: pass an int32 array of 2 entries"),
        ({"col_indices": ffi.NULL}, bc.InvalidArgument, "col_indices is NULL, but pattern_desc.blocks is 1"),
    ],
)
def test_pattern_desc(change, kind, sentence):
    with pytest.raises(kind, match=sentence):
        create("pattern", pattern_desc(**change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"backend": 0}, r"context_desc.backend is 0"),
        ({"backend": 7}, r"context_desc.backend is 7"),
        ({"cpu_isa": 99}, r"cpu_isa is 99, which is no instruction set"),
    ],
)
def test_context_desc(change, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        create("context", context_desc(**change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"op": 0}, "op is 0, which is no operation"),
        ({"op": 4}, "op is 4, which is no operation"),
        ({"dtype": 0}, "dtype is 0"),
        ({"dtype": 99}, "dtype is 99"),
        ({"out_dtype": -1}, "out_dtype is -1"),
        ({"b_order": 3}, "b_order is 3, which is no order"),
        ({"epilogue": 5}, "epilogue is 5, which is no epilogue"),
    ],
)
def test_plan_desc(made, change, sentence):
    with pytest.raises(bc.InvalidArgument, match=sentence):
        create("plan", *made, plan_desc(**change))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch", 1),
        ("b_stride", 1),
        ("c_stride", 1),
        ("d_stride", 1),
        ("row_scales", ffi.cast("float *", INDICES)),
        ("token_scales", ffi.cast("float *", INDICES)),
    ],
)
def test_reserved_args(made, field, value):
    plan = create("plan", *made, plan_desc())
    args = ffi.new("bsparse_args *", {"struct_size": ffi.sizeof("bsparse_args"), field: value})
    with pytest.raises(bc.Unsupported, match=rf"args.{field} is set, but it is reserved.*leave it zero"):
        check(lib.bsparse_plan_run(plan, args, ffi.NULL, ffi.NULL, ffi.NULL))


@pytest.mark.parametrize("noun", ["context", "pattern", "plan"])
def test_null_handles(made, noun):
    desc = {"context": (ffi.NULL,), "pattern": (ffi.NULL,), "plan": (*made, ffi.NULL)}[noun]
    with pytest.raises(bc.InvalidArgument, match=rf"{noun}_desc is NULL: pass a bsparse_{noun}_desc"):
        create(noun, *desc)
    with pytest.raises(bc.InvalidArgument, match=rf"out is NULL: pass the address of a bsparse_{noun} pointer"):
        check(getattr(lib, f"bsparse_{noun}_create")(ffi.NULL, *desc))
    getattr(lib, f"bsparse_{noun}_destroy")(ffi.NULL)


def test_plans_of_null_handles(made):
    for context, pattern, name in ((ffi.NULL, made[1], "context"), (made[0], ffi.NULL, "pattern")):
        with pytest.raises(bc.InvalidArgument, match=rf"{name} is NULL: pass the handle"):
            create("plan", context, pattern, plan_desc())


def test_the_last_error_belongs_to_its_thread():
    from threading import Thread

    with pytest.raises(bc.InvalidArgument):
        create("pattern", pattern_desc(rows=0))
    seen = []
    thread = Thread(target=lambda: seen.append(ffi.string(lib.bsparse_last_error())))
    thread.start()
    thread.join()
    assert seen == [b""]
    assert b"rows is 0" in ffi.string(lib.bsparse_last_error())


def test_statuses_have_names():
    for name in ("OK", "INVALID_ARGUMENT", "UNSUPPORTED", "OUT_OF_MEMORY", "BACKEND_ERROR", "INTERNAL"):
        status = getattr(lib, f"BSPARSE_{name}")
        assert ffi.string(lib.bsparse_status_name(status)) == f"BSPARSE_{name}".encode()
    assert ffi.string(lib.bsparse_status_name(77))


def test_enumerations_equal_c():
    _compare_with_c()


def test_every_constant_of_the_header_has_a_member():
    known = {member.name for kind in (bc.Backend, bc.CpuIsa, bc.DType, bc.Format, bc.Op, bc.Order) for member in kind}
    known |= {member.name for kind in (bc.Epilogue, bc.Flags) for member in kind}
    statuses = {"OK", "INVALID_ARGUMENT", "UNSUPPORTED", "OUT_OF_MEMORY", "BACKEND_ERROR", "INTERNAL"}
    for name in (name for name in dir(lib) if name.startswith("BSPARSE_")):
        short = name.removeprefix("BSPARSE_")
        for prefix in ("BACKEND_", "CPU_", "EPILOGUE_", "ORDER_"):
            short = short.removeprefix(prefix) if name != "BSPARSE_BACKEND_ERROR" else short
        assert short in known | statuses | {"ABI", "VERSION"}, f"{name} of bsparse.h is in no enumeration of types.py"
