#include <cstdint>
#include <cstring>
#include <string>

#include "core/kv_store.hpp"
#include "cuda/cuda_session.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

/// Rows in the caller's host memory on their way to the device and back, and rows that are on the device already. Callers'
/// rows have any stride, those of the host any alignment; staged ones begin at multiples of 16 bytes, as tensor maps want them;
/// staged outputs have no gaps.
namespace headwater::cuda {

namespace {

constexpr std::int64_t kVectorBytes = 16;

const char* name_of(PointerKind kind) {
  switch (kind) {
    case PointerKind::host: return "host memory";
    case PointerKind::pinned: return "pinned host memory";
    case PointerKind::managed: return "managed memory";
    case PointerKind::device: return "device memory";
    case PointerKind::elsewhere: return "memory of another device";
  }
  return "unknown memory";
}

/// Row `first` of all heads; rows of the device are addressed like the host's.
unsigned char* first_row(const void* data, std::int64_t row_stride, DType type, std::int64_t first) {
  return static_cast<unsigned char*>(const_cast<void*>(data)) +
         first * row_stride * static_cast<std::int64_t>(dtype_size(type));
}

}  // namespace

void CudaSession::require_memory(const char* name, const void* data, DType type) const {
  const PointerKind kind = device_->kind(data);
  const bool on_device = kind == PointerKind::device || kind == PointerKind::managed;
  const bool on_host = kind != PointerKind::device && kind != PointerKind::elsewhere;
  if (!(device_rows_ ? on_device : on_host)) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + ".data is " + name_of(kind) + "; allowed: " +
                    (device_rows_ ? "device memory, as row_memory is 1" : "host memory, as row_memory is 0"));
  }
  const std::size_t size = dtype_size(type);
  if (device_rows_ && reinterpret_cast<std::uintptr_t>(data) % size != 0) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + ".data is no multiple of " + std::to_string(size) +
                    "; allowed: elements of device rows where their size divides the address");
  }
}

InputRows CudaSession::in_place(const Staging& staging, const headwater::Rows& rows, std::int64_t first) {
  const auto size = static_cast<std::int64_t>(dtype_size(rows.type));
  const unsigned char* data = first_row(rows.data, rows.row_stride, rows.type, first);
  const bool vectors = reinterpret_cast<std::uintptr_t>(data) % kVectorBytes == 0 &&
                       rows.row_stride * size % kVectorBytes == 0 &&
                       rows.head_stride * size % kVectorBytes == 0 &&
                       staging.width * size % kVectorBytes == 0;
  return {data, rows.row_stride, rows.head_stride, rows.type, vectors};
}

OutputRows CudaSession::out_in_place(const MutableRows& rows, std::int64_t first) {
  return {first_row(rows.data, rows.row_stride, rows.type, first), rows.row_stride, rows.head_stride,
          rows.type};
}

InputRows CudaSession::stage_in(const Staging& staging, int side, const headwater::Rows& rows,
                                std::int64_t first, std::int64_t n) {
  const std::int64_t row_bytes = staging.width * static_cast<std::int64_t>(dtype_size(rows.type));
  const std::int64_t pitch = (row_bytes + kVectorBytes - 1) / kVectorBytes * kVectorBytes;
  unsigned char* to = staging.pinned[side];
  for (std::int64_t row = first; row < first + n; ++row) {
    for (std::int64_t head = 0; head < staging.heads; ++head, to += pitch) {
      std::memcpy(to, core::row_address(rows, row, head), static_cast<std::size_t>(row_bytes));
      std::memset(to + row_bytes, 0, static_cast<std::size_t>(pitch - row_bytes));
    }
  }
  device_->copy(inward_, staging.device[side], staging.pinned[side], n * staging.heads * pitch,
                Direction::host_to_device);
  const std::int64_t stride = pitch / static_cast<std::int64_t>(dtype_size(rows.type));
  return {staging.device[side], staging.heads * stride, stride, rows.type, row_bytes == pitch};
}

/// What follows on the session's stream has the rows.
void CudaSession::await_staged(int side) {
  if (HEADWATER_SABOTAGE("cuda.staging.rows_not_awaited")) return;
  device_->record(staged_[side], inward_);
  device_->wait(stream_, staged_[side]);
}

OutputRows CudaSession::staged_out(const Staging& staging, int side, DType type) {
  return {staging.device[side], staging.heads * staging.width, staging.width, type};
}

void CudaSession::stage_out(const Returning& outputs, DType type) {
  const Staging& staging = out_staging_;
  const int side = outputs.side;
  device_->record(computed_[side], stream_);
  device_->wait(outward_, computed_[side]);
  device_->copy(outward_, staging.pinned[side], staging.device[side],
                outputs.n * staging.heads * staging.width * static_cast<std::int64_t>(dtype_size(type)),
                Direction::device_to_host);
  device_->record(returned_[side], outward_);
}

/// Waits for them. The side is free then: a window's outputs come last.
void CudaSession::hand_back(const Returning& outputs, const MutableRows& rows) {
  if (outputs.n == 0) return;
  device_->synchronize(returned_[outputs.side]);
  const Staging& staging = out_staging_;
  const std::int64_t row_bytes = staging.width * static_cast<std::int64_t>(dtype_size(rows.type));
  const unsigned char* from = staging.pinned[outputs.side];
  for (std::int64_t row = outputs.first; row < outputs.first + outputs.n; ++row) {
    for (std::int64_t head = 0; head < staging.heads; ++head, from += row_bytes) {
      std::memcpy(core::row_address(rows, row, head), from, static_cast<std::size_t>(row_bytes));
    }
  }
}

}  // namespace headwater::cuda
