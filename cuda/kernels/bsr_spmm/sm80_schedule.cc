#include "sm80_schedule.h"

#include <algorithm>
#include <limits>

#include "../../src/dtype.h"

namespace bsparse::gpu::sm80 {
namespace {

// A plan as the kernel sees it.
struct View {
    const BlockLists &lists;           // of each outer block
    int64_t outer, inner;              // features
    int64_t block_outer, block_inner;  // of a block
    int64_t outer_stride, inner_stride; // within a block, elements
    int64_t slice;                     // inner features

    explicit View(const Plan &plan)
        : View(plan.pattern, plan.desc.op == BSPARSE_SPMM_T, 32 / dtype_bytes(plan.desc.dtype)) {}
    View(const Pattern &p, bool transposed, int64_t slice)
        : lists(transposed ? p.by_col : p.by_row), outer(transposed ? p.cols : p.rows),
          inner(transposed ? p.rows : p.cols), block_outer(transposed ? p.block_cols : p.block_rows),
          block_inner(transposed ? p.block_rows : p.block_cols), outer_stride(transposed ? 1 : p.block_cols),
          inner_stride(transposed ? p.block_cols : 1), slice(slice) {}

    int64_t tiles() const { return (outer + kTileOuter - 1) / kTileOuter; }
    // The outer blocks that overlap a tile: first to last, inclusive.
    int64_t first_major(int64_t tile) const { return tile * kTileOuter / block_outer; }
    int64_t last_major(int64_t tile) const { return (std::min((tile + 1) * kTileOuter, outer) - 1) / block_outer; }
};

uint32_t mask_bit(int piece, int slice) { return uint32_t{1} << (kPieces * slice + piece); }

// Gathers slices into the stages of one tile after another.
class Builder {
public:
    explicit Builder(SpmmSchedule &schedule) : schedule_(schedule) {}

    void begin_tile(int64_t number) {
        tile_ = {static_cast<int32_t>(number), stage_count(), 0, 0};
        slices_ = kStageSlices; // as if a full stage lay before
    }

    // Returns the number of the slice in the last stage, which is new where the one before was full.
    int add_slice(int64_t inner) {
        if (slices_ == kStageSlices) {
            const auto part = static_cast<int32_t>(schedule_.parts.size());
            schedule_.stages.push_back({{-1, -1, -1, -1}, 0, part, part, 0});
            slices_ = 0;
        }
        schedule_.stages.back().inner[slices_] = static_cast<int32_t>(inner / kUnit);
        return slices_++;
    }

    void end_tile() {
        tile_.last_stage = stage_count();
        schedule_.tiles.push_back(tile_);
    }

    void finish() {
        std::stable_sort(schedule_.tiles.begin(), schedule_.tiles.end(), [](const SpmmTile &x, const SpmmTile &y) {
            return x.last_stage - x.first_stage > y.last_stage - y.first_stage;
        });
    }

private:
    int32_t stage_count() const { return static_cast<int32_t>(schedule_.stages.size()); }

    SpmmSchedule &schedule_;
    SpmmTile tile_{};
    int slices_ = 0; // in the last stage
};

// Inner blocks that some of the outer blocks [first, last] have, ascending.
std::vector<int32_t> union_of_minors(const BlockLists &lists, int64_t first, int64_t last) {
    std::vector<int32_t> minors(lists.minors.begin() + lists.offsets[first],
                                lists.minors.begin() + lists.offsets[last + 1]);
    std::sort(minors.begin(), minors.end());
    minors.erase(std::unique(minors.begin(), minors.end()), minors.end());
    return minors;
}

} // namespace

bool spmm_has_pieces(const Plan &plan) {
    const Pattern &p = plan.pattern;
    const int64_t values = p.blocks * p.block_rows * p.block_cols;
    return p.block_rows % kPieceOuter == 0 && p.block_cols % kPieceOuter == 0 &&
           values / kUnit <= std::numeric_limits<int32_t>::max();
}

SpmmSchedule spmm_pieces_schedule(const Plan &plan) {
    const View view(plan);
    const BlockLists &lists = view.lists;
    const int64_t block_size = view.block_outer * view.block_inner;
    SpmmSchedule schedule;
    Builder builder(schedule);
    for (int64_t tile = 0; tile < view.tiles(); ++tile) {
        builder.begin_tile(tile);
        const int64_t first = view.first_major(tile), last = view.last_major(tile);
        std::vector<int32_t> next(lists.offsets.begin() + first, lists.offsets.begin() + last + 1);
        for (const int32_t minor : union_of_minors(lists, first, last)) {
            const int64_t begin = minor * view.block_inner;
            const int64_t end = std::min(begin + view.block_inner, view.inner);
            for (int64_t inner = begin; inner < end; inner += view.slice) {
                const int slice = builder.add_slice(inner);
                if (schedule.pieces.size() < schedule.stages.size()) {
                    schedule.pieces.emplace_back();
                    std::fill_n(&schedule.pieces.back().unit[0][0], kStageSlices * kPieces, -1);
                }
                for (int piece = 0; piece < kPieces; ++piece) {
                    const int64_t outer = tile * kTileOuter + piece * kPieceOuter;
                    const int64_t major = outer / view.block_outer;
                    if (outer >= view.outer) {
                        break;
                    }
                    const int32_t at = next[major - first];
                    if (at == lists.offsets[major + 1] || lists.minors[at] != minor) {
                        continue;
                    }
                    const int64_t offset = lists.index[at] * block_size + outer % view.block_outer * view.outer_stride +
                                           (inner - begin) * view.inner_stride;
                    schedule.pieces.back().unit[slice][piece] = static_cast<int32_t>(offset / kUnit);
                    schedule.stages.back().mask |= mask_bit(piece, slice);
                }
            }
            for (int64_t major = first; major <= last; ++major) {
                int32_t &at = next[major - first];
                at += at < lists.offsets[major + 1] && lists.minors[at] == minor;
            }
        }
        builder.end_tile();
    }
    builder.finish();
    return schedule;
}

SpmmSchedule spmm_parts_schedule(const Plan &plan) {
    const View view(plan);
    const BlockLists &lists = view.lists;
    struct Overlap {
        int64_t window; // of slices, counted from inner feature 0
        int64_t major;
        int32_t minor, block;
    };
    SpmmSchedule schedule;
    Builder builder(schedule);
    for (int64_t tile = 0; tile < view.tiles(); ++tile) {
        builder.begin_tile(tile);
        std::vector<Overlap> overlaps;
        for (int64_t major = view.first_major(tile); major <= view.last_major(tile); ++major) {
            for (int32_t i = lists.offsets[major]; i < lists.offsets[major + 1]; ++i) {
                const int64_t begin = lists.minors[i] * view.block_inner;
                const int64_t end = std::min(begin + view.block_inner, view.inner);
                for (int64_t window = begin / view.slice; window <= (end - 1) / view.slice; ++window) {
                    overlaps.push_back({window, major, lists.minors[i], lists.index[i]});
                }
            }
        }
        std::stable_sort(overlaps.begin(), overlaps.end(),
                         [](const Overlap &x, const Overlap &y) { return x.window < y.window; });
        int slice = 0;
        for (size_t i = 0; i < overlaps.size(); ++i) {
            const Overlap &o = overlaps[i];
            if (i == 0 || o.window != overlaps[i - 1].window) {
                slice = builder.add_slice(o.window * view.slice);
            }
            const int64_t outer = o.major * view.block_outer - tile * kTileOuter;
            const int64_t inner = o.minor * view.block_inner - o.window * view.slice;
            schedule.parts.push_back({o.block, static_cast<int32_t>(outer), static_cast<int32_t>(inner), slice});
            SpmmStage &stage = schedule.stages.back();
            stage.last_part = static_cast<int32_t>(schedule.parts.size());
            const int64_t last = std::min<int64_t>(outer + view.block_outer, kTileOuter) - 1;
            for (int64_t piece = std::max<int64_t>(outer, 0) / kPieceOuter; piece <= last / kPieceOuter; ++piece) {
                stage.mask |= mask_bit(static_cast<int>(piece), slice);
            }
        }
        builder.end_tile();
    }
    builder.finish();
    return schedule;
}

} // namespace bsparse::gpu::sm80
