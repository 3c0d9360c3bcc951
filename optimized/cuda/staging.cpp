#include <cstring>

#include "core/kv_store.hpp"
#include "cuda/cuda_session.hpp"

/// Rows between the caller's host memory and the device. Callers' rows have any stride and alignment; staged ones have no
/// gaps.
namespace headwater::cuda {

InputRows CudaSession::stage_in(const Staging& staging, const headwater::Rows& rows, std::int64_t first,
                                std::int64_t n) {
  const std::int64_t row_bytes = staging.width * static_cast<std::int64_t>(dtype_size(rows.type));
  unsigned char* to = staging.pinned;
  for (std::int64_t row = first; row < first + n; ++row) {
    for (std::int64_t head = 0; head < staging.heads; ++head, to += row_bytes) {
      std::memcpy(to, core::row_address(rows, row, head), static_cast<std::size_t>(row_bytes));
    }
  }
  device_->copy(stream_, staging.device, staging.pinned, n * staging.heads * row_bytes,
                Direction::host_to_device);
  constexpr std::int64_t kVectorBytes = 16;
  return {staging.device, staging.heads * staging.width, staging.width, rows.type,
          row_bytes % kVectorBytes == 0};
}

OutputRows CudaSession::staged_out(const Staging& staging, DType type) {
  return {staging.device, staging.heads * staging.width, staging.width, type};
}

void CudaSession::stage_out(const Staging& staging, const MutableRows& rows, std::int64_t first,
                            std::int64_t n) {
  const std::int64_t row_bytes = staging.width * static_cast<std::int64_t>(dtype_size(rows.type));
  device_->copy(stream_, staging.pinned, staging.device, n * staging.heads * row_bytes,
                Direction::device_to_host);
  device_->synchronize(stream_);
  const unsigned char* from = staging.pinned;
  for (std::int64_t row = first; row < first + n; ++row) {
    for (std::int64_t head = 0; head < staging.heads; ++head, from += row_bytes) {
      std::memcpy(core::row_address(rows, row, head), from, static_cast<std::size_t>(row_bytes));
    }
  }
}

}  // namespace headwater::cuda
