#pragma once

#include <cstddef>

namespace headwater::fuzz {

/// While one lives, operator new of this program refuses (std::bad_alloc) what would take this thread's memory `bytes`
/// above what it was, as a machine without more memory would. So a number of the input that drives an allocation is a
/// finding or an out_of_memory, and never a machine that swaps. Nothing is counted outside, nor on other threads.
/// Budgets do not nest.
class AllocationBudget {
 public:
  explicit AllocationBudget(std::size_t bytes);
  ~AllocationBudget();
  AllocationBudget(const AllocationBudget&) = delete;
  AllocationBudget& operator=(const AllocationBudget&) = delete;
};

}  // namespace headwater::fuzz
