#include "cli/support/output_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::cli {

void OutputLayout::add(const std::string& name, TensorType type, const std::vector<std::uint64_t>& shape) {
  std::uint64_t bytes = tensor_type_info(type).bits / 8;  // outputs have whole bytes
  std::uint64_t end = 0;
  bool overflow = false;
  for (const std::uint64_t size : shape) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  overflow |= __builtin_add_overflow(data_bytes_, bytes, &end);
  // File offsets are signed; half of the range leaves room for the header.
  constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max() / 2;
  if (overflow || end > kMostBytes) {
    throw Failure(fmt::format("output tensor {} of shape {} is too large: the file would pass {}", name,
                              shape_text(shape), bytes_text(kMostBytes)));
  }
  if (HEADWATER_SABOTAGE("cli.layout.tensors_overlap")) end = data_bytes_;
  entries_.push_back({name, type, shape, data_bytes_, end});
  data_bytes_ = end;
}

void OutputLayout::close() {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  auto& metadata = json["__metadata__"] = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata_) metadata[key] = value;
  for (const Entry& entry : entries_) {
    json[entry.name] = {{"dtype", tensor_type_info(entry.type).name},
                        {"shape", entry.shape},
                        {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = json.dump();
  constexpr std::size_t kAlignment = 8;
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  for (std::size_t i = 0; i < sizeof(std::uint64_t); ++i) {
    header_ += static_cast<char>(static_cast<std::uint64_t>(text.size()) >> (8 * i) & 0xFFU);
  }
  header_ += text;
}

std::uint64_t OutputLayout::offset(std::string_view name) const {
  const auto it =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.name == name; });
  if (it == entries_.end()) throw Failure(fmt::format("internal error: no output tensor {}", name));
  if (HEADWATER_SABOTAGE("cli.layout.offset_in_data")) return it->begin;
  return header_.size() + it->begin;
}

}  // namespace headwater::cli
