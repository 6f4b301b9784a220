// The CUDA backend's seat at the table: devices, contexts, and from a plan to the kernel families that serve it.
#include <algorithm>
#include <cuda_runtime.h>

#include "../kernels/bsr_pack/pack.h"
#include "../kernels/common/family.h"
#include "../kernels/common/launch.h"
#include "backend.h"
#include "dtype.h"
#include "error.h"
#include "select.h"

namespace bsparse {
namespace {

using gpu::check;
using gpu::DeviceFacts;
using gpu::Family;
using gpu::Kind;
using gpu::take_error;

// The context's device is current while this lives.
class OnDevice {
public:
    explicit OnDevice(const Context &context) {
        check(cudaGetDevice(&before_), "cudaGetDevice");
        if (before_ != context.desc.device) {
            check(cudaSetDevice(context.desc.device), "cudaSetDevice");
            changed_ = true;
        }
    }
    ~OnDevice() {
        if (changed_) {
            cudaSetDevice(before_);
        }
    }
    OnDevice(const OnDevice &) = delete;
    OnDevice &operator=(const OnDevice &) = delete;

private:
    int before_ = 0;
    bool changed_ = false;
};

// contexts ------------------------------------------------------------------------------------

int32_t devices() {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess) { // no driver, or one too old: no device that this library can use
        take_error(error);
        return 0;
    }
    return count;
}

void open(Context &context) {
    const int32_t count = devices();
    if (count == 0) {
        unsupported(
            "context_desc.backend is 2 (CUDA), but this machine has no NVIDIA device or no driver for it: check "
            "nvidia-smi, or use BSPARSE_BACKEND_CPU");
    }
    if (context.desc.device < 0 || context.desc.device >= count) {
        invalid_argument("context_desc.device is %d; CUDA devices here are 0 to %d: pass one of them",
                         context.desc.device, count - 1);
    }
    if (context.desc.threads != 0 || context.desc.cpu_isa != 0) {
        invalid_argument("context_desc.threads is %d and context_desc.cpu_isa %d; only the CPU backend has them: set "
                         "both to 0 for CUDA",
                         context.desc.threads, context.desc.cpu_isa);
    }
    cudaDeviceProp found;
    const cudaError_t error = cudaGetDeviceProperties(&found, context.desc.device);
    if (error != cudaSuccess) {
        backend_error("context_desc.device is %d, and CUDA answers \"%s\": check the driver with nvidia-smi, or use "
                      "BSPARSE_BACKEND_CPU",
                      context.desc.device, take_error(error));
    }
    const int arch = found.major * 10 + found.minor;
    if (arch < 80) {
        unsupported("context_desc.device is %d, a %s of compute capability %d.%d; the kernels need 8.0 or newer: use "
                    "another device or BSPARSE_BACKEND_CPU",
                    context.desc.device, found.name, found.major, found.minor);
    }
    context.name = std::string(found.name) + ", sm" + std::to_string(arch);
    context.state = std::make_shared<DeviceFacts>(DeviceFacts{context.desc.device, arch, found.multiProcessorCount,
                                                              static_cast<int>(found.sharedMemPerBlockOptin)});
}

// plans ---------------------------------------------------------------------------------------

// The families of a plan, best first, and where the lists of each begin in the one uploaded buffer.
struct CudaPlan {
    struct Member {
        Kind kind;
        std::unique_ptr<Family> family;
        size_t first; // of its schedule, in numbers
    };
    std::vector<Member> members;
    std::vector<int32_t> schedule; // all of them

    // The first member for so many tokens that also serves these arguments, where they are known.
    const Member &member_for(int64_t tokens, const bsparse_args *args) const {
        for (const Member &member : members) {
            if (gpu::suits(member.kind, tokens) && (args == nullptr || member.family->serves(*args))) {
                return member;
            }
        }
        return members.back();
    }
};

const CudaPlan &cuda_plan(const Plan &plan) { return *static_cast<const CudaPlan *>(plan.state.get()); }

std::unique_ptr<Family> make_family(Kind kind, const Plan &plan, const DeviceFacts &device) {
    const bool gradient = plan.desc.op == BSPARSE_SDDMM;
    switch (kind) {
    case Kind::kDecode:
        return gpu::make_spmm_decode(plan, device);
    case Kind::kSm90:
        return gradient ? gpu::make_sddmm_sm90(plan, device) : gpu::make_spmm_sm90(plan, device);
    default:
        return gradient ? gpu::make_sddmm_sm80(plan, device) : gpu::make_spmm_sm80(plan, device);
    }
}

void check_format(const Pattern &pattern) {
    if (pattern.is_24()) {
        unsupported(
            "pattern_desc.format is %d (%s), which the CUDA backend does not serve yet: use bsr, or a CPU context",
            pattern.format, format_name(pattern.format));
    }
}

void select(Plan &plan) {
    check_format(plan.pattern);
    const bsparse_dtype dtype = plan.desc.dtype;
    if (dtype == BSPARSE_F64) {
        unsupported("plan_desc.dtype is %d (%s), which the CUDA backend does not multiply: use f32, f16 or bf16, or a "
                    "CPU context",
                    dtype, dtype_name(dtype));
    }
    constexpr size_t kAlign = 16; // numbers: 64 bytes
    const DeviceFacts &device = *static_cast<const DeviceFacts *>(plan.context->state.get());
    auto state = std::make_shared<CudaPlan>();
    for (const Kind kind : gpu::candidates(plan, device.arch)) {
        std::unique_ptr<Family> family = make_family(kind, plan, device);
        if (family != nullptr) {
            const size_t first = state->schedule.size();
            state->schedule.insert(state->schedule.end(), family->schedule().begin(), family->schedule().end());
            state->schedule.resize((state->schedule.size() + kAlign - 1) / kAlign * kAlign);
            state->members.push_back({kind, std::move(family), first});
        }
    }
    plan.state = state;
}

const char *kernel(const Plan &plan, int64_t tokens) {
    return cuda_plan(plan).member_for(tokens, nullptr).family->name(tokens).c_str();
}

size_t schedule_bytes(const Plan &plan) { return cuda_plan(plan).schedule.size() * sizeof(int32_t); }

size_t workspace_bytes(const Plan &plan, int64_t tokens) {
    size_t bytes = 0;
    for (const CudaPlan::Member &member : cuda_plan(plan).members) {
        if (gpu::suits(member.kind, tokens)) {
            bytes = std::max(bytes, member.family->workspace_bytes(tokens));
        }
    }
    return bytes;
}

size_t prepared_bytes(const Plan &) { return 0; } // values are read as they stand

void upload(const Plan &plan, void *schedule, void *stream) {
    if (schedule_bytes(plan) == 0) {
        return;
    }
    const OnDevice on_device(*plan.context);
    check(cudaMemcpyAsync(schedule, cuda_plan(plan).schedule.data(), schedule_bytes(plan), cudaMemcpyHostToDevice,
                          static_cast<cudaStream_t>(stream)),
          "the copy of the schedule");
}

void prepare(const Plan &, const void *, const void *, void *, void *) {}

void run(const Plan &plan, const bsparse_args &args, const void *schedule, void *workspace, void *stream) {
    if (args.tokens == 0 && plan.desc.op != BSPARSE_SDDMM) {
        return;
    }
    if (plan.desc.op == BSPARSE_SDDMM && plan.pattern.blocks == 0) {
        return;
    }
    const OnDevice on_device(*plan.context);
    const CudaPlan &state = cuda_plan(plan);
    const CudaPlan::Member &member = args.tokens == 0 ? state.members.back() : state.member_for(args.tokens, &args);
    member.family->run({args, static_cast<const int32_t *>(schedule) + member.first, static_cast<char *>(workspace),
                        static_cast<cudaStream_t>(stream)});
}

// values --------------------------------------------------------------------------------------

void pack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *dense, int64_t ld,
          void *values, void *, void *stream) {
    check_format(pattern);
    const OnDevice on_device(context);
    gpu::pack(pattern, dtype, dense, ld, values, static_cast<cudaStream_t>(stream));
}

void unpack(const Context &context, const Pattern &pattern, bsparse_dtype dtype, const void *values, const void *,
            void *dense, int64_t ld, void *stream) {
    check_format(pattern);
    const OnDevice on_device(context);
    gpu::unpack(pattern, dtype, values, dense, ld, static_cast<cudaStream_t>(stream));
}

void pack_at(const Context &, const Pattern &pattern, bsparse_dtype, const void *, int64_t, const void *, void *,
             void *) {
    check_format(pattern);
}

} // namespace

const BackendOps kCudaBackend = {
    BSPARSE_BACKEND_CUDA, devices, open,    select, kernel, schedule_bytes, workspace_bytes,
    prepared_bytes,       upload,  prepare, run,    pack,   unpack,         pack_at};

} // namespace bsparse
