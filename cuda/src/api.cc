// Every function of bsparse.h: check, translate, call. Nothing else is decided here.
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>

#include "abi.h"
#include "args.h"
#include "backend.h"
#include "dtype.h"
#include "error.h"
#include "pattern.h"
#include "plan.h"

// The handles of the C API are the C++ objects themselves.
struct bsparse_context : bsparse::Context {};
struct bsparse_pattern : bsparse::Pattern {};
struct bsparse_plan : bsparse::Plan {};

namespace {

using namespace bsparse;

// A plain buffer, so that storing a failure cannot fail.
thread_local char last_error[1024] = "";

bsparse_status fail(bsparse_status status, const char *sentence) noexcept {
    std::snprintf(last_error, sizeof(last_error), "%s", sentence);
    return status;
}

// Runs work; nothing that it throws crosses the ABI.
template <class Work> bsparse_status guard(Work work) noexcept {
    try {
        work();
        return BSPARSE_OK;
    } catch (const Error &error) {
        return fail(error.status(), error.what());
    } catch (const std::bad_alloc &) {
        return fail(BSPARSE_OUT_OF_MEMORY, "host memory ran out: free some, or use a smaller pattern");
    } catch (const std::length_error &) { // a vector larger than the address space
        return fail(BSPARSE_OUT_OF_MEMORY, "host memory cannot hold this pattern: use larger blocks or smaller sizes");
    } catch (const std::exception &error) {
        return fail(BSPARSE_INTERNAL, error.what());
    } catch (...) {
        return fail(BSPARSE_INTERNAL, "an unknown exception: this is a bug of bsparse, please report it");
    }
}

// The same for functions that return a value instead of a status: otherwise on failure.
template <class Value, class Work> Value guard_value(Value otherwise, Work work) noexcept {
    Value value = otherwise;
    guard([&] { value = work(); });
    return value;
}

template <class Handle> const Handle &require(const Handle *handle, const char *name) {
    if (handle == nullptr) {
        invalid_argument("%s is NULL: pass the handle that bsparse_%s_create made", name, name);
    }
    return *handle;
}

void require_out(const void *out, const char *name) {
    if (out == nullptr) {
        invalid_argument("out is NULL: pass the address of a bsparse_%s pointer", name);
    }
}

} // namespace

extern "C" {

// library

uint32_t bsparse_version(void) { return BSPARSE_VERSION; }

uint32_t bsparse_abi(void) { return BSPARSE_ABI; }

const char *bsparse_status_name(bsparse_status status) {
    switch (status) {
    case BSPARSE_OK:
        return "BSPARSE_OK";
    case BSPARSE_INVALID_ARGUMENT:
        return "BSPARSE_INVALID_ARGUMENT";
    case BSPARSE_UNSUPPORTED:
        return "BSPARSE_UNSUPPORTED";
    case BSPARSE_OUT_OF_MEMORY:
        return "BSPARSE_OUT_OF_MEMORY";
    case BSPARSE_BACKEND_ERROR:
        return "BSPARSE_BACKEND_ERROR";
    case BSPARSE_INTERNAL:
        return "BSPARSE_INTERNAL";
    default:
        return "unknown status";
    }
}

const char *bsparse_last_error(void) { return last_error; }

int32_t bsparse_backend_devices(bsparse_backend backend) {
    return guard_value(0, [&] { return find_backend(backend, "backend")->devices(); });
}

// context

bsparse_status bsparse_context_create(bsparse_context **out, const bsparse_context_desc *desc) {
    return guard([&] {
        require_out(out, "context");
        const bsparse_context_desc read = read_sized(desc);
        const BackendOps *ops = find_backend(read.backend, "context_desc.backend");
        auto context = std::make_unique<bsparse_context>(bsparse_context{{ops, read, "", nullptr}});
        ops->open(*context);
        *out = context.release();
    });
}

const char *bsparse_context_name(const bsparse_context *context) {
    return guard_value("", [&] { return require(context, "context").name.c_str(); });
}

void bsparse_context_destroy(bsparse_context *context) { delete context; }

// pattern

bsparse_status bsparse_pattern_create(bsparse_pattern **out, const bsparse_pattern_desc *desc) {
    return guard([&] {
        require_out(out, "pattern");
        *out = new bsparse_pattern{make_pattern(read_sized(desc))};
    });
}

bsparse_status bsparse_pattern_sizes(const bsparse_pattern *pattern, bsparse_dtype dtype, size_t *values_bytes,
                                     size_t *metadata_bytes) {
    return guard([&] {
        const Pattern &p = require(pattern, "pattern");
        check_dtype(dtype, "dtype");
        if (values_bytes != nullptr) {
            *values_bytes = static_cast<size_t>(p.values() * dtype_bytes(dtype));
        }
        if (metadata_bytes != nullptr) {
            *metadata_bytes = static_cast<size_t>(p.metadata_bytes());
        }
    });
}

void bsparse_pattern_destroy(bsparse_pattern *pattern) { delete pattern; }

// plan

bsparse_status bsparse_plan_create(bsparse_plan **out, const bsparse_context *context, const bsparse_pattern *pattern,
                                   const bsparse_plan_desc *desc) {
    return guard([&] {
        require_out(out, "plan");
        auto plan = std::make_unique<bsparse_plan>();
        make_plan(*plan, require(context, "context"), require(pattern, "pattern"), read_sized(desc));
        *out = plan.release();
    });
}

bsparse_status bsparse_plan_supports(const bsparse_context *context, const bsparse_pattern *pattern,
                                     const bsparse_plan_desc *desc) {
    return guard([&] {
        bsparse_plan plan;
        make_plan(plan, require(context, "context"), require(pattern, "pattern"), read_sized(desc));
    });
}

const char *bsparse_plan_kernel(const bsparse_plan *plan, int64_t tokens) {
    return guard_value("", [&] {
        check_tokens(require(plan, "plan"), tokens, "tokens");
        return plan->context->ops->kernel(*plan, tokens);
    });
}

size_t bsparse_plan_schedule_bytes(const bsparse_plan *plan) {
    return guard_value(size_t{0}, [&] { return require(plan, "plan").context->ops->schedule_bytes(*plan); });
}

size_t bsparse_plan_workspace_bytes(const bsparse_plan *plan, int64_t tokens) {
    return guard_value(size_t{0}, [&] {
        check_tokens(require(plan, "plan"), tokens, "tokens");
        return plan->context->ops->workspace_bytes(*plan, tokens);
    });
}

bsparse_status bsparse_plan_upload(const bsparse_plan *plan, void *schedule, void *stream) {
    return guard([&] {
        const BackendOps *ops = require(plan, "plan").context->ops;
        check_buffer(schedule, ops->schedule_bytes(*plan), "schedule", "bsparse_plan_schedule_bytes");
        ops->upload(*plan, schedule, stream);
    });
}

size_t bsparse_plan_prepared_bytes(const bsparse_plan *plan) {
    return guard_value(size_t{0}, [&] { return require(plan, "plan").context->ops->prepared_bytes(*plan); });
}

bsparse_status bsparse_plan_prepare(const bsparse_plan *plan, const void *values, const void *metadata, void *prepared,
                                    void *stream) {
    return guard([&] {
        const BackendOps *ops = require(plan, "plan").context->ops;
        check_buffer(prepared, ops->prepared_bytes(*plan), "prepared", "bsparse_plan_prepared_bytes");
        ops->prepare(*plan, values, metadata, prepared, stream);
    });
}

bsparse_status bsparse_plan_run(const bsparse_plan *plan, const bsparse_args *args, const void *schedule,
                                void *workspace, void *stream) {
    return guard([&] {
        const BackendOps *ops = require(plan, "plan").context->ops;
        const bsparse_args read = read_sized(args);
        check_args(*plan, read);
        check_buffer(read.prepared, ops->prepared_bytes(*plan), "args.prepared", "bsparse_plan_prepared_bytes");
        check_buffer(schedule, ops->schedule_bytes(*plan), "schedule", "bsparse_plan_schedule_bytes");
        check_buffer(workspace, ops->workspace_bytes(*plan, read.tokens), "workspace", "bsparse_plan_workspace_bytes");
        ops->run(*plan, read, schedule, workspace, stream);
    });
}

void bsparse_plan_destroy(bsparse_plan *plan) { delete plan; }

// values

bsparse_status bsparse_pack(const bsparse_context *context, const bsparse_pattern *pattern, bsparse_dtype dtype,
                            const void *dense, int64_t ld, void *values, void *metadata, void *stream) {
    return guard([&] {
        const BackendOps *ops = require(context, "context").ops;
        check_pack(require(pattern, "pattern"), dtype, dense, ld, values, metadata);
        ops->pack(*context, *pattern, dtype, dense, ld, values, metadata, stream);
    });
}

bsparse_status bsparse_unpack(const bsparse_context *context, const bsparse_pattern *pattern, bsparse_dtype dtype,
                              const void *values, const void *metadata, void *dense, int64_t ld, void *stream) {
    return guard([&] {
        const BackendOps *ops = require(context, "context").ops;
        check_pack(require(pattern, "pattern"), dtype, dense, ld, values, metadata);
        ops->unpack(*context, *pattern, dtype, values, metadata, dense, ld, stream);
    });
}

bsparse_status bsparse_pack_at(const bsparse_context *context, const bsparse_pattern *pattern, bsparse_dtype dtype,
                               const void *dense, int64_t ld, const void *metadata, void *values, void *stream) {
    return guard([&] {
        const BackendOps *ops = require(context, "context").ops;
        check_pack(require(pattern, "pattern"), dtype, dense, ld, values, metadata);
        if (!pattern->is_24()) {
            invalid_argument("pattern has format bsr, whose values have no positions: use bsparse_pack");
        }
        ops->pack_at(*context, *pattern, dtype, dense, ld, metadata, values, stream);
    });
}

bsparse_status bsparse_check_metadata(const bsparse_pattern *pattern, const void *metadata) {
    return guard([&] { check_host_metadata(require(pattern, "pattern"), metadata); });
}

} // extern "C"
