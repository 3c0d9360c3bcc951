#include "cuda/staging.hpp"

#include <cstring>
#include <string>
#include <utility>

#include "core/kv_store.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cuda {

namespace {

constexpr std::int64_t kAlignedBytes = 16;

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

Staging::Staging(SessionData& data) : data_(data) {
  const Shape& shape = data.shape;
  q_ = {{}, {}, shape.n_head, shape.d_head};
  k_ = {{}, {}, shape.n_head_kv, shape.d_head};
  v_ = {{}, {}, shape.n_head_kv, shape.d_value};
  out_ = {{}, {}, shape.n_head, shape.d_value};
  if (!data.device_rows) take_memory();
}

void Staging::take_memory() {
  Part* const all[] = {&q_, &k_, &v_, &out_};
  // No call of a session that holds one window has a second.
  sides_ = data_.shape.capacity > data_.window_rows ? 2 : 1;
  // Each begins on a boundary that a vector can be loaded from.
  constexpr std::int64_t kAlign = 256;
  std::int64_t begins[5] = {};
  for (std::size_t i = 0; i < 4; ++i) {
    const std::int64_t bytes =
        core::checked_product(data_.window_rows, all[i]->heads, padded_width(all[i]->width, DType::f32),
                              std::int64_t{sizeof(float)});
    begins[i + 1] = begins[i] + pieces(bytes, kAlign) * kAlign;
  }
  const char* const names[] = {"staged queries", "staged keys", "staged values", "staged outputs"};
  Device& owner = *data_.device;
  const std::int64_t bytes = core::checked_product(sides_, begins[4]);
  auto* device = data_.take<unsigned char>(bytes, "staged rows");
  auto* pinned = static_cast<unsigned char*>(owner.allocate_pinned(bytes, "staged rows"));
  data_.bytes.workspace += bytes;
  for (int side = 0; side < sides_; ++side, device += begins[4], pinned += begins[4]) {
    for (std::size_t i = 0; i < 4; ++i) {
      all[i]->pinned[side] = pinned + begins[i];
      all[i]->device[side] = device + begins[i];
      owner.name_part(device + begins[i], begins[i + 1] - begins[i], names[i]);
    }
    staged_[side] = owner.event();
    computed_[side] = owner.event();
    returned_[side] = owner.event();
  }
  inward_ = owner.stream();
  outward_ = owner.stream();
}

void Staging::check(const Call& call) const {
  if (call.q.data != nullptr) require_memory("q", call.q.data, call.q.type);
  require_memory("k", call.k.data, call.k.type);
  require_memory("v", call.v.data, call.v.type);
  if (call.out.data != nullptr) require_memory("out", call.out.data, call.out.type);
}

void Staging::require_memory(const char* name, const void* rows, DType type) const {
  const PointerKind kind = data_.device->kind(rows);
  const bool on_device = kind == PointerKind::device || kind == PointerKind::managed;
  const bool on_host = kind != PointerKind::device && kind != PointerKind::elsewhere;
  if (!(data_.device_rows ? on_device : on_host)) {
    throw Error(ErrorCode::invalid_argument, std::string(name) + ".data is " + name_of(kind) + "; allowed: " +
                                                 (data_.device_rows ? "device memory, as row_memory is 1"
                                                                    : "host memory, as row_memory is 0"));
  }
  const std::size_t size = dtype_size(type);
  if (data_.device_rows && reinterpret_cast<std::uintptr_t>(rows) % size != 0) {
    throw Error(ErrorCode::invalid_argument,
                std::string(name) + ".data is no multiple of " + std::to_string(size) +
                    "; allowed: elements of device rows where their size divides the address");
  }
}

void Staging::begin_call() {
  side_ = 0;
  returning_[0] = returning_[1] = {};
}

Staging::Placed Staging::begin_window(const Call& call, std::int64_t first, std::int64_t n) {
  const MutableRows& out = call.out;
  const bool queries = call.q.data != nullptr;
  Placed placed{};
  if (data_.device_rows) {
    placed.k = in_place(k_, call.k, first);
    placed.v = in_place(v_, call.v, first);
    if (!queries) return placed;
    placed.q = in_place(q_, call.q, first);
    placed.out = {first_row(out.data, out.row_stride, out.type, first), out.row_stride, out.head_stride,
                  out.type};
    return placed;
  }
  // The window before is computed meanwhile.
  hand_back(side_, out);
  placed.k = stage_in(k_, call.k, first, n);
  placed.v = stage_in(v_, call.v, first, n);
  if (queries) placed.q = stage_in(q_, call.q, first, n);
  placed.out = {out_.device[side_], out_.heads * out_.width, out_.width, out.type};
  if (!HEADWATER_SABOTAGE("cuda.staging.rows_not_awaited")) {
    data_.device->record(staged_[side_], inward_);
    data_.device->wait(data_.stream, staged_[side_]);
  }
  return placed;
}

InputRows Staging::in_place(const Part& part, const headwater::Rows& rows, std::int64_t first) {
  const auto size = static_cast<std::int64_t>(dtype_size(rows.type));
  const unsigned char* data = first_row(rows.data, rows.row_stride, rows.type, first);
  const bool vectors = reinterpret_cast<std::uintptr_t>(data) % kAlignedBytes == 0 &&
                       rows.row_stride * size % kAlignedBytes == 0 &&
                       rows.head_stride * size % kAlignedBytes == 0 && part.width * size % kAlignedBytes == 0;
  return {data, rows.row_stride, rows.head_stride, rows.type, vectors};
}

InputRows Staging::stage_in(const Part& part, const headwater::Rows& rows, std::int64_t first,
                            std::int64_t n) {
  const std::int64_t row_bytes = part.width * static_cast<std::int64_t>(dtype_size(rows.type));
  const std::int64_t pitch = pieces(row_bytes, kAlignedBytes) * kAlignedBytes;
  unsigned char* to = part.pinned[side_];
  for (std::int64_t row = first; row < first + n; ++row) {
    for (std::int64_t head = 0; head < part.heads; ++head, to += pitch) {
      std::memcpy(to, core::row_address(rows, row, head), static_cast<std::size_t>(row_bytes));
      std::memset(to + row_bytes, 0, static_cast<std::size_t>(pitch - row_bytes));
    }
  }
  data_.device->copy(inward_, part.device[side_], part.pinned[side_], n * part.heads * pitch,
                     Direction::host_to_device);
  const std::int64_t stride = pitch / static_cast<std::int64_t>(dtype_size(rows.type));
  return {part.device[side_], part.heads * stride, stride, rows.type, row_bytes == pitch};
}

void Staging::end_window(const Call& call, std::int64_t first, std::int64_t n) {
  if (data_.device_rows) return;
  Device& device = *data_.device;
  device.record(computed_[side_], data_.stream);
  device.wait(outward_, computed_[side_]);
  if (call.out.data != nullptr) {
    device.copy(outward_, out_.pinned[side_], out_.device[side_],
                n * out_.heads * out_.width * static_cast<std::int64_t>(dtype_size(call.out.type)),
                Direction::device_to_host);
  }
  device.record(returned_[side_], outward_);
  returning_[side_] = {first, n};
  side_ = (side_ + 1) % sides_;
}

/// Waits for the outputs of a side, which is free then: a window's outputs come last.
void Staging::hand_back(int side, const MutableRows& rows) {
  const Returning outputs = std::exchange(returning_[side], {});
  if (outputs.n == 0) return;
  data_.device->synchronize(returned_[side]);
  if (rows.data == nullptr) return;
  const std::int64_t row_bytes = out_.width * static_cast<std::int64_t>(dtype_size(rows.type));
  const unsigned char* from = out_.pinned[side];
  for (std::int64_t row = outputs.first; row < outputs.first + outputs.n; ++row) {
    for (std::int64_t head = 0; head < out_.heads; ++head, from += row_bytes) {
      std::memcpy(core::row_address(rows, row, head), from, static_cast<std::size_t>(row_bytes));
    }
  }
}

void Staging::end_call(const Call& call) {
  for (int i = 0; i < sides_; ++i) hand_back((side_ + i) % sides_, call.out);
}

}  // namespace headwater::cuda
