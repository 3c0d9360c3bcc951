#pragma once

#include <cstdint>
#include <span>
#include <vector>

/// Chapter 7 of the spec: the order of selection (MEM-3).
namespace headwater::reference {

/// A token that may be kept.
struct Candidate {
  std::int32_t position = 0;
  float score = 0.0F;
  bool pinned = false;  ///< MEM-7
};

/// MEM-3, MEM-7, a strict total order on distinct positions: pinned ones first, then higher score first, equal
/// scores (-0 equals +0, NaN equals NaN) lower position first, NaN below every number.
[[nodiscard]] bool ranks_before(const Candidate& a, const Candidate& b);

/// The min(heavy, |candidates|) best, in ascending order of position.
[[nodiscard]] std::vector<std::int32_t> select_heavy(std::span<const Candidate> candidates,
                                                     std::int64_t heavy);

}  // namespace headwater::reference
