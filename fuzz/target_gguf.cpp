// libFuzzer target: the reader of GGUF files takes any bytes. What it accepts lies inside them, can be widened, and is
// refused or made a tokenizer of.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <span>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/gguf/gguf.hpp"
#include "runtime/gguf/row_groups.hpp"
#include "runtime/gguf/row_kernels.hpp"
#include "runtime/model/aligned_buffer.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/chat.hpp"

namespace {

using namespace headwater::runtime;

constexpr std::int64_t kMostElements = 4096;  // of a tensor that are looked at

/// The row in a group of its own, of at least one unit.
void read_group(const Tensor& tensor, std::int64_t row, std::int64_t n, const FixedRow& fixed) {
  if (n == 0) return;
  AlignedBuffer group(group_bytes(tensor.type, n));
  AlignedBuffer arranged(arranged_for_groups_bytes(n));
  AlignedBuffer words(static_cast<std::size_t>(n * kRowsOfGroup) * sizeof(float));
  (void)quantised_row_is_finite(tensor.type, tensor.row(row), n);
  pack_group(tensor.type, tensor.row(row), 1, n, group.data());
  arrange_for_groups(tensor.type, fixed, n, arranged.data());
  // Beside each other: some at once, and some that are left.
  constexpr std::size_t kRows = 7;
  const std::vector<const std::byte*> x(kRows, arranged.data());
  float sums[kRows * kRowsOfGroup];
  dot_group(tensor.type, group.data(), n, x, sums, kRowsOfGroup);
  auto* const to = reinterpret_cast<std::uint32_t*>(words.data());
  widen_group(tensor.type, group.data(), n, to, kRowsOfGroup);
  widen_group_bf16(tensor.type, group.data(), n, to, kRowsOfGroup);
}

/// First and last row, as far as kMostElements.
void read_rows(const Tensor& tensor, std::span<const std::byte> file) {
  const std::less_equal<const std::byte*> not_behind;
  if (!not_behind(file.data(), tensor.data.data())) std::abort();
  if (!not_behind(tensor.data.data() + tensor.data.size(), file.data() + file.size())) std::abort();
  const std::int64_t block = tensor_type_info(tensor.type).block_elements;
  const std::int64_t n = std::min(tensor.dims.at(0), kMostElements / block * block);
  std::vector<float> values(static_cast<std::size_t>(n));
  std::vector<std::uint16_t> narrow(values.size());
  std::vector<std::byte> fixed_memory(fixed_row_bytes(n));
  std::vector<std::byte> arranged(arranged_row_bytes(n));
  for (const std::int64_t row : {std::int64_t{0}, tensor.rows() - 1}) {
    dequantize_row(tensor.type, tensor.row(row), n, values.data());
    dequantize_row_bf16(tensor.type, tensor.row(row), n, narrow.data());
    float sum = 0.0F;
    dot_rows(tensor.type, tensor.row(row), 1, n, values.data(), &sum);
    if (!is_quantised(tensor.type)) continue;
    const FixedRow fixed = fix_row(values.data(), n, fixed_memory.data());
    const FixedRow x = arrange_row(tensor.type, fixed, n, arranged.data());
    const std::array same = {x, x, x, x, x};  // more than go at once
    std::array<float, 5> sums{};
    dot_rows_fixed(tensor.type, tensor.row(row), 1, n, same, sums.data(), 1);
    for (const float one : sums) {
      if (one != sums.back() && !std::isnan(one)) std::abort();
    }
    if (packs_in_groups(tensor.type, n)) read_group(tensor, row, n, fixed);
  }
}

/// Every getter on every key: a value or a refusal.
void read_metadata(const GgufFile& file) {
  for (const std::string_view key : file.keys()) {
    const std::function<void()> getters[] = {
        [&] { (void)file.integer(key, INT64_MIN, INT64_MAX); },
        [&] { (void)file.number(key); },
        [&] { (void)file.boolean(key); },
        [&] { (void)file.text(key); },
        [&] { (void)file.texts(key); },
        [&] { (void)file.integers(key); },
        [&] { (void)file.numbers(key); },
    };
    int answers = 0;
    for (const auto& getter : getters) {
      try {
        getter();
        ++answers;
      } catch (const headwater::Error&) {
        // Another type, or a value that cannot be used.
      }
    }
    if (answers > 2) std::abort();  // an integer is a number, too; all other types differ
  }
}

void use_tokenizer(const GgufFile& file) {
  const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::from_gguf(file);
  for (std::int32_t id = 0; id < std::min(tokenizer->size(), 1000); ++id) {
    (void)tokenizer->is_end(id);
    const std::string piece = tokenizer->piece(id);
    try {
      for (const std::int32_t part : tokenizer->encode(piece, true, true)) (void)tokenizer->piece(part);
    } catch (const headwater::Error&) {
      // A byte without a token.
    }
  }
  // Its template is a program, if it has one.
  const std::vector<ChatMessage> messages = {
      {"system", "s"}, {"user", "x"}, {"assistant", "y"}, {"user", "z"}};
  const ChatTemplate chat(file, *tokenizer);
  (void)chat.begin(messages);
  (void)chat.go_on(messages);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  try {
    const GgufFile file = GgufFile::parse(bytes, "fuzz.gguf");
    for (const Tensor& tensor : file.tensors()) read_rows(tensor, bytes);
    read_metadata(file);
    use_tokenizer(file);
  } catch (const headwater::Error& error) {
    // A refusal is right, too; it is one line.
    if (error.code() == headwater::ErrorCode::internal) std::abort();
    if (std::string_view(error.what()).find('\n') != std::string_view::npos) std::abort();
  }
  return 0;
}
