/* Opens the library whose path is given, with no header but bsparse.h, and multiplies: y = S x with S = [2 3]. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bsparse/bsparse.h"

/* Fills a function pointer; ISO C has no cast from an object's address to a function's. */
static void find(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    memcpy(function, &address, sizeof(address));
}

int main(int argc, char **argv) {
    uint32_t (*abi)(void);
    int32_t (*devices)(bsparse_backend);
    const char *(*last_error)(void);
    bsparse_status (*context_create)(bsparse_context **, const bsparse_context_desc *);
    bsparse_status (*pattern_create)(bsparse_pattern **, const bsparse_pattern_desc *);
    bsparse_status (*plan_create)(bsparse_plan **, const bsparse_context *, const bsparse_pattern *,
                                  const bsparse_plan_desc *);
    size_t (*workspace_bytes)(const bsparse_plan *, int64_t);
    bsparse_status (*run)(const bsparse_plan *, const bsparse_args *, const void *, void *, void *);
    void (*context_destroy)(bsparse_context *);
    void (*pattern_destroy)(bsparse_pattern *);
    void (*plan_destroy)(bsparse_plan *);

    static const int32_t row_offsets[] = {0, 1}, col_indices[] = {0};
    float values[2] = {2.0f, 3.0f}, x[2] = {10.0f, 1.0f}, y = 0.0f;
    bsparse_context_desc context_desc = {sizeof(context_desc), BSPARSE_BACKEND_CPU, 0, 1, 0};
    bsparse_pattern_desc pattern_desc = {sizeof(pattern_desc), BSPARSE_BSR, 1, 2, 0, 1, 2, 1, row_offsets, col_indices};
    bsparse_plan_desc plan_desc = {0};
    bsparse_args args = {0};
    bsparse_context *context = NULL;
    bsparse_pattern *pattern = NULL;
    bsparse_plan *plan = NULL;
    char *memory;
    void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: opener <path of libbsparse>");
        return 1;
    }
    find(library, "bsparse_abi", &abi);
    find(library, "bsparse_backend_devices", &devices);
    find(library, "bsparse_last_error", &last_error);
    find(library, "bsparse_context_create", &context_create);
    find(library, "bsparse_pattern_create", &pattern_create);
    find(library, "bsparse_plan_create", &plan_create);
    find(library, "bsparse_plan_workspace_bytes", &workspace_bytes);
    find(library, "bsparse_plan_run", &run);
    find(library, "bsparse_context_destroy", &context_destroy);
    find(library, "bsparse_pattern_destroy", &pattern_destroy);
    find(library, "bsparse_plan_destroy", &plan_destroy);
    if (abi() != BSPARSE_ABI) {
        fprintf(stderr, "ABI %u instead of %d\n", (unsigned)abi(), BSPARSE_ABI);
        return 1;
    }
    printf("devices: %d CPU, %d CUDA\n", (int)devices(BSPARSE_BACKEND_CPU), (int)devices(BSPARSE_BACKEND_CUDA));

    plan_desc.struct_size = sizeof(plan_desc);
    plan_desc.op = BSPARSE_SPMM;
    plan_desc.dtype = BSPARSE_F32;
    if (context_create(&context, &context_desc) != BSPARSE_OK ||
        pattern_create(&pattern, &pattern_desc) != BSPARSE_OK ||
        plan_create(&plan, context, pattern, &plan_desc) != BSPARSE_OK) {
        fprintf(stderr, "%s\n", last_error());
        return 1;
    }
    memory = malloc(workspace_bytes(plan, 1) + 64);
    if (memory == NULL) {
        return 1;
    }
    args.struct_size = sizeof(args);
    args.tokens = 1;
    args.s_values = values;
    args.b = x;
    args.ldb = 2;
    args.d = &y;
    args.ldd = 1;
    args.alpha = 1.0;
    if (run(plan, &args, NULL, memory + (64 - (uintptr_t)memory % 64), NULL) != BSPARSE_OK) {
        fprintf(stderr, "%s\n", last_error());
        return 1;
    }
    free(memory);
    plan_destroy(plan);
    pattern_destroy(pattern);
    context_destroy(context);
    dlclose(library);
    printf("y = %g\n", y);
    return y == 23.0f ? 0 : 1;
}
