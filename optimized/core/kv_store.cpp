#include "core/kv_store.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/buffer.hpp"
#include "core/numbers.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

KvStore::KvStore(const Shape& shape, const EffectiveOptions& options)
    : owner_(options.kv_owner), heads_(shape.n_head_kv), type_(shape.kv_type), packed_(options.kv_bits == 8) {
  const auto element = static_cast<std::int64_t>(dtype_size(shape.kv_type));
  const auto row_bytes = [&](std::int64_t width) {
    return packed_ ? width / kGroupElements * kGroupBytes : width * element;
  };
  std::vector<std::int64_t> key_bytes;
  std::vector<std::int64_t> value_bytes;
  std::vector<std::int64_t> restored_key_bytes;
  std::vector<std::int64_t> restored_value_bytes;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> restored;  // widths, their layer
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const Shape own = options.shape_of(shape, layer);
    const auto [as, first] =
        restored.try_emplace(std::pair(own.d_head, own.d_value), std::ssize(restored_key_bytes));
    widths_.push_back({own.d_head, own.d_value, as->second});
    key_bytes.push_back(row_bytes(own.d_head));
    value_bytes.push_back(row_bytes(own.d_value));
    if (!first) continue;
    restored_key_bytes.push_back(own.d_head * element);
    restored_value_bytes.push_back(own.d_value * element);
  }
  if (owner_ == KvOwner::caller) return;
  const auto rows = [&](const std::vector<std::int64_t>& bytes) {
    return LayerRows(bytes, heads_, shape.capacity, options.page, kReadableRows);
  };
  keys_ = rows(key_bytes);
  values_ = rows(value_bytes);
  if (!packed_) return;
  restored_keys_ = rows(restored_key_bytes);
  restored_values_ = rows(restored_value_bytes);
}

void KvStore::reserve(std::int64_t begin, std::int64_t end) {
  if (owner_ == KvOwner::caller) return;
  keys_.reserve(begin, end);
  values_.reserve(begin, end);  // more keys than values are no harm
  if (!packed_ || end <= restorable_) return;
  restored_keys_.reserve(restorable_, end);
  restored_values_.reserve(restorable_, end);
  restorable_ = end;
}

void KvStore::make_room(std::int64_t layer, std::int64_t begin, std::int64_t end) {
  keys_.make_room(layer, begin, end);
  values_.make_room(layer, begin, end);
}

void KvStore::clear() {
  keys_.clear();
  values_.clear();
}

KvStore KvStore::fork(std::int64_t tokens) {
  KvStore other = *this;
  other.keys_ = keys_.fork(tokens);
  other.values_ = values_.fork(tokens);
  // It restores rows in pages of its own, which it takes with its first step.
  other.restored_keys_ = other.restored_keys_.fork(0);
  other.restored_values_ = other.restored_values_.fork(0);
  other.restorable_ = 0;
  return other;
}

void KvStore::write(std::int64_t layer, std::int64_t head, std::int64_t position, const Rows& k,
                    const Rows& v, std::int64_t row) {
  if (HEADWATER_SABOTAGE("core.kv.one_layer_for_all")) layer = 0;
  if (HEADWATER_SABOTAGE("core.kv.position_in_16_bits")) position &= 0xFFFF;
  const std::int64_t value_head = HEADWATER_SABOTAGE("core.kv.value_head_zero") ? 0 : head;
  const void* const key = row_address(k, row, head);
  const void* const value = row_address(v, row, value_head);
  if (packed_) {
    pack_row(key, k.type, d_head(layer), keys_.row(layer, head, position));
    pack_row(value, v.type, d_value(layer), values_.row(layer, head, position));
    return;
  }
  convert_row(key, k.type, d_head(layer), keys_.row(layer, head, position), type_);
  convert_row(value, v.type, d_value(layer), values_.row(layer, head, position), type_);
}

void KvStore::restore(std::int64_t layer, std::int64_t head, std::int64_t begin, std::int64_t end,
                      RestoreGroups restore_groups) {
  const std::int64_t as = restored_as(layer);
  if (begin >= 4096 && HEADWATER_SABOTAGE("core.kv8.first_page_alone")) return;
  for (std::int64_t at = begin; at < end;) {
    const std::int64_t n =
        std::min(restored_keys_.together(as, at, end - at), restored_values_.together(as, at, end - at));
    restore_keys(layer, head, at, n, restore_groups, restored_keys_.row(as, head, at));
    restore_values(layer, head, at, n, restore_groups, restored_values_.row(as, head, at));
    at += n;
  }
}

void KvStore::restore_rows(const LayerRows& packed, std::int64_t width, const Some& some,
                           RestoreGroups restore_groups, void* to) const {
  const auto row_bytes = width * static_cast<std::int64_t>(dtype_size(type_));
  auto* target = static_cast<unsigned char*>(to);
  for (std::int64_t done = 0; done < some.n;) {
    const std::int64_t n = packed.together(some.layer, some.position + done, some.n - done);
    restore_groups(packed.row(some.layer, some.head, some.position + done), n * width / kGroupElements, type_,
                   target + done * row_bytes);
    done += n;
  }
}

void KvStore::exchange(StateArchive& archive, std::int64_t layer, std::int64_t tokens) {
  if (owner_ == KvOwner::caller) return;
  if (archive.loading()) make_room(layer, 0, tokens);
  const auto element = packed_               ? StateArchive::Element::u8
                       : type_ == DType::f32 ? StateArchive::Element::f32
                       : type_ == DType::f16 ? StateArchive::Element::f16
                                             : StateArchive::Element::bf16;
  const auto rows = [&](const char* name, LayerRows& from, std::int64_t width) {
    std::vector<StateArchive::Piece> pieces;
    for (std::int64_t head = 0; head < heads_; ++head) {
      for (std::int64_t at = 0; at < tokens;) {
        const std::int64_t some = from.together(layer, at, tokens - at);
        pieces.push_back({from.row(layer, head, at), some * from.row_bytes(layer)});
        at += some;
      }
    }
    const std::int64_t dims[] = {heads_, tokens, packed_ ? from.row_bytes(layer) : width};
    archive.array(name + std::to_string(layer), element, dims, pieces);
  };
  rows("key.", keys_, d_head(layer));
  rows("value.", values_, d_value(layer));
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
