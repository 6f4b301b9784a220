// Every bad context and pattern description, and the sentence it gets.
#include <limits>

#include "bad_input.h"

namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

const BadInput kContexts[] = {
    {[](Inputs &i) { i.context.struct_size = 0; },
     BSPARSE_INVALID_ARGUMENT,
     {"context_desc.struct_size is 0", "sizeof(bsparse_context_desc)"}},
    {[](Inputs &i) { i.context.backend = 9; },
     BSPARSE_INVALID_ARGUMENT,
     {"context_desc.backend is 9", "BSPARSE_BACKEND_CPU"}},
    {[](Inputs &i) { i.context.device = 1; }, BSPARSE_INVALID_ARGUMENT, {"context_desc.device is 1", "pass 0"}},
    {[](Inputs &i) { i.context.device = -1; }, BSPARSE_INVALID_ARGUMENT, {"context_desc.device is -1", "pass 0"}},
    {[](Inputs &i) { i.context.threads = -2; }, BSPARSE_INVALID_ARGUMENT, {"context_desc.threads is -2", "pass 0"}},
    {[](Inputs &i) { i.context.threads = 1 << 30; },
     BSPARSE_INVALID_ARGUMENT,
     {"context_desc.threads is 1073741824", "pass 0"}},
    {[](Inputs &i) { i.context.cpu_isa = 5; }, BSPARSE_INVALID_ARGUMENT, {"context_desc.cpu_isa is 5", "pass"}},
};

const BadInput kPatterns[] = {
    {[](Inputs &i) { i.pattern.struct_size = 63; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.struct_size is 63", "64", "sizeof(bsparse_pattern_desc)"}},
    {[](Inputs &i) { i.pattern.struct_size = size_t(1) << 40; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.struct_size is 1099511627776", "sizeof"}},
    {[](Inputs &i) { i.pattern.format = 0; }, BSPARSE_INVALID_ARGUMENT, {"pattern_desc.format is 0", "BSPARSE_BSR"}},
    {[](Inputs &i) { i.pattern.format = 77; }, BSPARSE_INVALID_ARGUMENT, {"pattern_desc.format is 77", "BSPARSE_BSR"}},
    {[](Inputs &i) { i.pattern.format = BSPARSE_BSR24; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.block_cols is 4", "bsr24", "multiple of 8", "larger blocks"}},
    {[](Inputs &i) { i.pattern.format = BSPARSE_SEMI24; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.block_rows x block_cols is 2 x 4", "semi24 is one block", "6 x 12", "set them so"}},
    {[](Inputs &i) { i.make_semi24(6, 12); },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.cols is 12", "semi24", "multiple of 8", "bsr24"}},
    {[](Inputs &i) {
         i.make_semi24(6, 16);
         i.pattern.blocks = 0;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.blocks is 0", "semi24 is one block", "pass 1"}},
    {[](Inputs &i) {
         i.make_semi24(6, 16);
         i.columns[0] = 1;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.col_indices[0] is 1", "0 to 0"}},
    {[](Inputs &i) { i.pattern.reserved = 1; }, BSPARSE_UNSUPPORTED, {"pattern_desc.reserved is 1", "set it to 0"}},
    {[](Inputs &i) { i.pattern.block_rows = 0; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.block_rows is 0", "at least 1"}},
    {[](Inputs &i) { i.pattern.block_cols = -4; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.block_cols is -4", "at least 1"}},
    {[](Inputs &i) { i.pattern.rows = 0; }, BSPARSE_INVALID_ARGUMENT, {"pattern_desc.rows is 0", "at least 1"}},
    {[](Inputs &i) { i.pattern.cols = -12; }, BSPARSE_INVALID_ARGUMENT, {"pattern_desc.cols is -12", "at least 1"}},
    {[](Inputs &i) {
         i.pattern.rows = int64_t(1) << 60;
         i.pattern.block_rows = 1;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.rows is 1152921504606846976", "block_rows = 1", "larger blocks"}},
    {[](Inputs &i) { i.pattern.cols = kHuge; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.cols is 9223372036854775807", "block_cols = 4", "larger blocks"}},
    {[](Inputs &i) { i.pattern.blocks = -1; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.blocks is -1", "0 to 9", "row_offsets[3]"}},
    {[](Inputs &i) { i.pattern.blocks = 10; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.blocks is 10", "0 to 9", "row_offsets[3]"}},
    {[](Inputs &i) { i.pattern.blocks = 3; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.row_offsets[3] is 4", "pattern_desc.blocks is 3", "make them equal"}},
    {[](Inputs &i) {
         i.pattern.block_rows = i.pattern.block_cols = 1;
         i.pattern.rows = i.pattern.cols = 1 << 26;
         i.pattern.blocks = int64_t(1) << 31;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.blocks is 2147483648", "2147483647", "larger blocks"}},
    {[](Inputs &i) { i.pattern.block_rows = i.pattern.block_cols = 1 << 30; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.blocks is 4", "0 to 1"}},
    {[](Inputs &i) {
         i.pattern.block_rows = i.pattern.block_cols = 1 << 30;
         i.pattern.rows = i.pattern.cols = int64_t(1) << 31;
     },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.blocks is 4", "1073741824 x 1073741824", "address space", "smaller blocks"}},
    {[](Inputs &i) { i.pattern.row_offsets = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.row_offsets is NULL", "4 entries"}},
    {[](Inputs &i) { i.pattern.col_indices = nullptr; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.col_indices is NULL", "blocks is 4"}},
    {[](Inputs &i) { i.offsets[0] = 1; }, BSPARSE_INVALID_ARGUMENT, {"pattern_desc.row_offsets[0] is 1", "must be 0"}},
    {[](Inputs &i) { i.offsets[2] = 1; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.row_offsets[2] is 1", "row_offsets[1] = 2", "must not decrease"}},
    {[](Inputs &i) { i.offsets[1] = -1; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.row_offsets[1] is -1", "must not decrease"}},
    {[](Inputs &i) { i.offsets[2] = 1 << 30; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.row_offsets[3] is 4", "must not decrease"}},
    {[](Inputs &i) { i.columns[1] = 3; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.col_indices[1] is 3", "0 to 2", "divided by block_cols"}},
    {[](Inputs &i) { i.columns[0] = -1; }, BSPARSE_INVALID_ARGUMENT, {"pattern_desc.col_indices[0] is -1", "0 to 2"}},
    {[](Inputs &i) { i.columns[3] = 0; },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.col_indices[3] is 0", "repeated in block row 2", "keep one"}},
    {[](Inputs &i) {
         i.columns = {2, 0, 0, 1};
         i.pattern.col_indices = i.columns.data();
     },
     BSPARSE_INVALID_ARGUMENT,
     {"pattern_desc.col_indices[1] is 0 after 2", "block row 0", "sort them"}},
};

} // namespace

int main() {
    check_table(kContexts, "contexts");
    check_table(kPatterns, "patterns");
    return 0;
}
