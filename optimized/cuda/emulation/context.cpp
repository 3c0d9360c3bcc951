#include "cuda/emulation/context.hpp"

#include <atomic>

namespace headwater::cuda::emulation {
namespace {

std::atomic<unsigned> fences{
    0};  // what one thread did before its fence is seen after a later fence of another

}  // namespace

void Context::fence() const { fences.fetch_add(1, std::memory_order_acq_rel); }

std::uint32_t Context::atomic_add(const GlobalPlace<std::uint32_t>& global, std::uint32_t value) const {
  block_->check_read_global(global.base(), global.offset(), sizeof(value), "atomic");
  auto* at = reinterpret_cast<std::byte*>(global.base()) + global.offset();
  return std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(at))
      .fetch_add(value, std::memory_order_relaxed);
}

}  // namespace headwater::cuda::emulation
