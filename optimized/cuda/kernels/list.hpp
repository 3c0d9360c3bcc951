#pragma once

#include <vector>

#include "cuda/kernels/blocks/choose.hpp"
#include "cuda/kernels/blocks/pools.hpp"
#include "cuda/kernels/blocks/summarise.hpp"
#include "cuda/kernels/combine.hpp"
#include "cuda/kernels/entries.hpp"
#include "cuda/kernels/gather.hpp"
#include "cuda/kernels/score_sums.hpp"
#include "cuda/kernels/select.hpp"
#include "cuda/kernels/store_rows.hpp"

/// Kernels that work on rows, and the table of all lists. Included by a unit of kernels/list.in with HEADWATER_CUDA_SIDE set
/// and HEADWATER_CUDA_LISTS(X), which is X(name) for every list.
namespace headwater::cuda::HEADWATER_CUDA_SIDE {

namespace {

/// One warp for a few hundred candidates, eight for what a memory set and a chunk usually make.
using FewCandidates = SelectShape<1, 512>;
using ManyCandidates = SelectShape<8, 8192>;
/// One warp for most that query blocks choose from, of which a multiprocessor has many: no barriers.
using SomeCandidates = SelectShape<1, 4096>;

}  // namespace

HEADWATER_CUDA_KERNEL(store_rows_128, StoreRowsParams, kStoreThreads, 8, ::headwater::cuda::store_rows)
HEADWATER_CUDA_KERNEL(gather_128, GatherParams, kGatherThreads, 8, ::headwater::cuda::gather)
HEADWATER_CUDA_KERNEL(combine_128, CombineParams, kCombineThreads, 4, ::headwater::cuda::combine)
HEADWATER_CUDA_KERNEL(score_sums_128, ScoreSumsParams, kScoreSumsThreads, 8, ::headwater::cuda::score_sums)
HEADWATER_CUDA_KERNEL(select_32, SelectParams, FewCandidates::kThreads, 16,
                      ::headwater::cuda::select_memory<FewCandidates>)
HEADWATER_CUDA_KERNEL(select_256, SelectParams, ManyCandidates::kThreads, 2,
                      ::headwater::cuda::select_memory<ManyCandidates>)
HEADWATER_CUDA_KERNEL(summarise_256, SummariseParams, kSummariseThreads, 4, ::headwater::cuda::summarise)
HEADWATER_CUDA_KERNEL(pool_queries_128, PoolParams, kPoolThreads, 8, ::headwater::cuda::pool_queries)
HEADWATER_CUDA_KERNEL(choose_32, ChooseParams, FewCandidates::kThreads, 16,
                      ::headwater::cuda::choose_of_set<FewCandidates>)
HEADWATER_CUDA_KERNEL(choose_32_of_4096, ChooseParams, SomeCandidates::kThreads, 13,
                      ::headwater::cuda::choose_of_set<SomeCandidates>)
HEADWATER_CUDA_KERNEL(choose_256, ChooseParams, ManyCandidates::kThreads, 2,
                      ::headwater::cuda::choose_of_set<ManyCandidates>)

Entries rows_entries() {
  static const KernelEntry entries[] = {
      {HEADWATER_CUDA_ROW(store_rows_128), Stage::store_rows},
      {HEADWATER_CUDA_ROW(gather_128), Stage::gather},
      {HEADWATER_CUDA_ROW(combine_128), Stage::combine},
      {HEADWATER_CUDA_ROW(score_sums_128), Stage::score_sums},
      {HEADWATER_CUDA_ROW(select_32), Stage::select, DType::f32, 0, 0, 0, 0, FewCandidates::kShared,
       FewCandidates::kCached},
      {HEADWATER_CUDA_ROW(select_256), Stage::select, DType::f32, 0, 0, 0, 0, ManyCandidates::kShared,
       ManyCandidates::kCached},
      {HEADWATER_CUDA_ROW(summarise_256), Stage::summarise},
      {HEADWATER_CUDA_ROW(pool_queries_128), Stage::pool_queries},
      {HEADWATER_CUDA_ROW(choose_32), Stage::choose, DType::f32, 0, 0, 0, 0, FewCandidates::kShared,
       FewCandidates::kCached},
      {HEADWATER_CUDA_ROW(choose_32_of_4096), Stage::choose, DType::f32, 0, 0, 0, 0, SomeCandidates::kShared,
       SomeCandidates::kCached},
      {HEADWATER_CUDA_ROW(choose_256), Stage::choose, DType::f32, 0, 0, 0, 0, ManyCandidates::kShared,
       ManyCandidates::kCached},
  };
  return entries;
}

#define HEADWATER_CUDA_DECLARE(name) Entries name##_entries();
#define HEADWATER_CUDA_CALL(name) name##_entries(),
HEADWATER_CUDA_LISTS(HEADWATER_CUDA_DECLARE)

Entries entries() {
  static const std::vector<KernelEntry> all = [] {
    std::vector<KernelEntry> joined;
    for (const Entries part : {HEADWATER_CUDA_LISTS(HEADWATER_CUDA_CALL)}) {
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  }();
  return all;
}

}  // namespace headwater::cuda::HEADWATER_CUDA_SIDE
