#include "core/kv_store.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/buffer.hpp"
#include "core/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

KvStore::KvStore(const Shape& shape)
    : heads_(shape.n_head_kv),
      capacity_(shape.capacity),
      d_head_(shape.d_head),
      d_value_(shape.d_value),
      key_bytes_(shape.d_head * static_cast<std::int64_t>(dtype_size(shape.kv_type))),
      value_bytes_(shape.d_value * static_cast<std::int64_t>(dtype_size(shape.kv_type))),
      type_(shape.kv_type),
      keys_(checked_product(shape.n_layer, shape.n_head_kv), checked_product(shape.capacity, key_bytes_),
            kReadableRows * key_bytes_),
      values_(checked_product(shape.n_layer, shape.n_head_kv), checked_product(shape.capacity, value_bytes_),
              0) {}

void KvStore::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  keys_.make_room(layer * heads_, (layer + 1) * heads_, begin * key_bytes_, end * key_bytes_);
  values_.make_room(layer * heads_, (layer + 1) * heads_, begin * value_bytes_, end * value_bytes_);
}

void KvStore::write(std::int64_t layer, std::int64_t head, std::int64_t position, const Rows& k,
                    const Rows& v, std::int64_t row) {
  if (HEADWATER_SABOTAGE("core.kv.one_layer_for_all")) layer = 0;
  if (HEADWATER_SABOTAGE("core.kv.position_in_16_bits")) position &= 0xFFFF;
  const std::int64_t at = (layer * heads_ + head) * capacity_ + position;
  const std::int64_t value_head = HEADWATER_SABOTAGE("core.kv.value_head_zero") ? 0 : head;
  std::int64_t key_at = at * key_bytes_;
  if (HEADWATER_SABOTAGE("core.kv.key_offset_in_32_bits")) key_at &= 0xFFFFFFFF;
  std::int64_t value_at = at * value_bytes_;
  if (HEADWATER_SABOTAGE("core.kv.value_offset_in_32_bits")) value_at &= 0xFFFFFFFF;
  convert_row(row_address(k, row, head), k.type, d_head_, keys_.data() + key_at, type_);
  convert_row(row_address(v, row, value_head), v.type, d_value_, values_.data() + value_at, type_);
}

void KvStore::exchange(StateArchive& archive, std::int64_t layer, std::int64_t tokens) {
  if (archive.loading()) make_room(layer, 0, tokens);
  const auto element = type_ == DType::f32   ? StateArchive::Element::f32
                       : type_ == DType::f16 ? StateArchive::Element::f16
                                             : StateArchive::Element::bf16;
  const auto rows = [&](const char* name, RunBuffer& buffer, std::int64_t width, std::int64_t row_bytes) {
    std::vector<StateArchive::Piece> pieces;
    for (std::int64_t head = 0; head < heads_; ++head) {
      pieces.push_back({buffer.data() + (layer * heads_ + head) * capacity_ * row_bytes, tokens * row_bytes});
    }
    const std::int64_t dims[] = {heads_, tokens, width};
    archive.array(name + std::to_string(layer), element, dims, pieces);
  };
  rows("key.", keys_, d_head_, key_bytes_);
  rows("value.", values_, d_value_, value_bytes_);
}

const void* row_address(const Rows& rows, std::int64_t row, std::int64_t head) {
  const std::int64_t element = row * rows.row_stride + head * rows.head_stride;
  return static_cast<const unsigned char*>(rows.data) +
         element * static_cast<std::int64_t>(dtype_size(rows.type));
}

void* row_address(const MutableRows& rows, std::int64_t row, std::int64_t head) {
  const std::int64_t element = row * rows.row_stride + head * rows.head_stride;
  return static_cast<unsigned char*>(rows.data) + element * static_cast<std::int64_t>(dtype_size(rows.type));
}

void convert_row(const void* from, DType from_type, std::int64_t count, void* to, DType to_type) {
  if (from_type == to_type) {
    std::memcpy(to, from, static_cast<std::size_t>(count) * dtype_size(from_type));
    return;
  }
  // Widening is exact, so a narrowing after it rounds once.
  constexpr std::int64_t kPiece = 256;
  float piece[kPiece];
  const auto* source = static_cast<const unsigned char*>(from);
  auto* target = static_cast<unsigned char*>(to);
  if (HEADWATER_SABOTAGE("core.kv.second_piece_of_a_row")) count = std::min(count, kPiece);
  for (std::int64_t done = 0; done < count; done += kPiece) {
    const std::int64_t n = std::min(kPiece, count - done);
    widen(source + done * static_cast<std::int64_t>(dtype_size(from_type)), from_type, n, piece);
    narrow(piece, n, to_type, target + done * static_cast<std::int64_t>(dtype_size(to_type)));
  }
}

}  // namespace headwater::core
