#pragma once

#include <array>
#include <cstdint>

#include "headwater/engine.hpp"
#include "headwater/plugin.h"

namespace headwater::conformance {

/// One claim of an engine: where it stands in Claims, in the table of a plug-in, and in reports.
struct ClaimInfo {
  const char* name;  ///< in report.json
  bool Claims::*member;
  std::uint64_t bit;
  const char* said;  ///< in report.html, as HTML
};

inline constexpr std::array kClaims{
    ClaimInfo{"bitwise_threads", &Claims::bitwise_threads, HEADWATER_CLAIM_BITWISE_THREADS,
              "same bits for every number of threads"},
    ClaimInfo{"bitwise_runs", &Claims::bitwise_runs, HEADWATER_CLAIM_BITWISE_RUNS, "same bits in every run"},
    ClaimInfo{"bitwise_schedules", &Claims::bitwise_schedules, HEADWATER_CLAIM_BITWISE_SCHEDULES,
              "same outputs in both schedules"},
    ClaimInfo{"no_allocation", &Claims::no_allocation, HEADWATER_CLAIM_NO_ALLOCATION,
              "no allocation after open"},
    ClaimInfo{"double_arithmetic", &Claims::double_arithmetic, HEADWATER_CLAIM_DOUBLE_ARITHMETIC,
              "double arithmetic (judged by 2<sup>-53</sup>)"},
    ClaimInfo{"bf16_weights", &Claims::bf16_weights, HEADWATER_CLAIM_BF16_WEIGHTS,
              "weights in BF16 where all rows are"},
    ClaimInfo{"device_memory", &Claims::device_memory, HEADWATER_CLAIM_DEVICE_MEMORY,
              "memory of a device: not counted by malloc"},
    ClaimInfo{"f16_weights", &Claims::f16_weights, HEADWATER_CLAIM_F16_WEIGHTS,
              "weights in F16 where all rows are"},
    ClaimInfo{"abort", &Claims::abort, HEADWATER_CLAIM_ABORT, "steps can be aborted"},
    ClaimInfo{"truncate", &Claims::truncate, HEADWATER_CLAIM_TRUNCATE, "sessions can be truncated"},
    ClaimInfo{"interrupt", &Claims::interrupt, HEADWATER_CLAIM_INTERRUPT, "calls can be interrupted"},
    ClaimInfo{"lse", &Claims::lse, HEADWATER_CLAIM_LSE, "log-sum-exps are outputs"},
    ClaimInfo{"host_threads", &Claims::host_threads, HEADWATER_CLAIM_HOST_THREADS,
              "works on threads of the host"},
    ClaimInfo{"estimate", &Claims::estimate, HEADWATER_CLAIM_ESTIMATE,
              "says what a session will hold before it is opened"},
    ClaimInfo{"host_memory", &Claims::host_memory, HEADWATER_CLAIM_HOST_MEMORY,
              "takes its memory from the host"},
    ClaimInfo{"fork", &Claims::fork, HEADWATER_CLAIM_FORK, "sessions can be forked"},
    ClaimInfo{"save", &Claims::save, HEADWATER_CLAIM_SAVE, "sessions can be saved and loaded"},
    ClaimInfo{"layers", &Claims::layers, HEADWATER_CLAIM_LAYERS,
              "layers with windows, scales, caps, sinks and widths of their own"},
    ClaimInfo{"stored_rows", &Claims::stored_rows, HEADWATER_CLAIM_STORED_ROWS,
              "works on K and V rows of the caller"},
    ClaimInfo{"rows_alone", &Claims::rows_alone, HEADWATER_CLAIM_ROWS_ALONE, "stores rows without queries"},
    ClaimInfo{"kv_bits", &Claims::kv_bits, HEADWATER_CLAIM_KV_BITS, "stores rows in 8 bits"}};
// Every bool of Claims has its line.
static_assert(sizeof(Claims) == kClaims.size() * sizeof(bool));

}  // namespace headwater::conformance
