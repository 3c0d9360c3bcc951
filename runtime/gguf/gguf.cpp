#include "runtime/gguf/gguf.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <unordered_map>
#include <utility>

#include "headwater/testing/sabotage.hpp"
#include "runtime/gguf/file_part.hpp"
#include "runtime/gguf/split.hpp"
#include "runtime/support/fnv.hpp"
#include "runtime/support/mapped_file.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {

std::int64_t Tensor::rows() const {
  std::int64_t count = 1;
  for (std::size_t i = 1; i < dims.size(); ++i) count *= dims[i];
  return count;
}

const std::byte* Tensor::row(std::int64_t i) const {
  assert(i >= 0 && i < rows());
  std::int64_t offset = i * row_bytes(type, dims[0]);
  if (HEADWATER_SABOTAGE("runtime.gguf.row_offset_in_32_bits")) offset = static_cast<std::uint32_t>(offset);
  return data.data() + offset;
}

struct GgufFile::State {
  std::string path;
  std::vector<MappedFile> files;  ///< empty for parse()
  std::uint64_t file_bytes = 0;
  FilePart part;  ///< of the first file, with the tensors of all
  std::unordered_map<std::string_view, std::size_t> by_name;

  /// Names are complete: they do not move any more.
  void index_tensors() {
    for (std::size_t i = 0; i < part.tensors.size(); ++i) {
      if (!by_name.emplace(part.tensors[i].name, i).second) {
        refuse_file(path,
                    fmt::format("tensor {} stands in two files of the model", quoted(part.tensors[i].name)));
      }
    }
  }

  void check_tensor_count() const {
    constexpr std::string_view kKey = "split.tensors.count";
    if (part.metadata.find(kKey) == nullptr) return;
    const auto count = static_cast<std::int64_t>(part.tensors.size());
    (void)part.metadata.integer(kKey, count, count);
  }
};

GgufFile::GgufFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

GgufFile GgufFile::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->files.emplace_back(path);
  state->part = read_file_part(state->files[0].bytes(), path);
  const std::vector<std::string> paths = split_files(path, state->part.metadata);
  const auto count = static_cast<std::int64_t>(paths.size());
  for (std::int64_t i = 1; i < count; ++i) {
    const std::string& name = paths[static_cast<std::size_t>(i)];
    state->files.emplace_back(name);
    FilePart next = read_file_part(state->files.back().bytes(), name);
    check_split_part(next.metadata, i, count);
    if (i > 2 && HEADWATER_SABOTAGE("runtime.gguf.fourth_part_is_the_third")) {
      const std::span<const std::byte> third = state->files[2].bytes();
      for (Tensor& tensor : next.tensors) {
        const auto at = tensor.data.data() - state->files.back().bytes().data();
        tensor.data = third.subspan(static_cast<std::size_t>(at), tensor.data.size());
      }
    }
    if (state->part.gap.empty()) state->part.gap = std::move(next.gap);
    std::move(next.tensors.begin(), next.tensors.end(), std::back_inserter(state->part.tensors));
  }
  for (const MappedFile& file : state->files) state->file_bytes += file.bytes().size();
  state->index_tensors();
  state->check_tensor_count();
  return GgufFile(std::move(state));
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  auto state = std::make_unique<State>();
  state->path = name;
  state->file_bytes = bytes.size();
  state->part = read_file_part(bytes, name);
  if (split_files(name, state->part.metadata).size() > 1) refuse_file(name, "is one file of several");
  state->index_tensors();
  state->check_tensor_count();
  return GgufFile(std::move(state));
}

const std::string& GgufFile::path() const { return state_->path; }
std::uint32_t GgufFile::version() const { return state_->part.version; }
std::uint64_t GgufFile::file_bytes() const { return state_->file_bytes; }

std::uint64_t GgufFile::head_hash() const {
  std::uint64_t hash = fnv1a({});
  for (const MappedFile& file : state_->files) {
    std::span<const std::byte> head = file.bytes();
    for (const Tensor& tensor : state_->part.tensors) {
      const bool inside = tensor.data.data() >= head.data() && tensor.data.data() < head.data() + head.size();
      if (inside) head = head.first(static_cast<std::size_t>(tensor.data.data() - head.data()));
    }
    hash = fnv1a(head, hash);
  }
  return state_->part.metadata.hash_replaced(hash);
}

void GgufFile::refuse(const std::string& what) const { refuse_file(state_->path, what); }

bool GgufFile::has(std::string_view key) const { return state_->part.metadata.find(key) != nullptr; }
bool GgufFile::is_array(std::string_view key) const {
  const MetadataEntry* const entry = state_->part.metadata.find(key);
  return entry != nullptr && entry->is_array;
}

std::int64_t GgufFile::integer(std::string_view key, std::int64_t min, std::int64_t max) const {
  return state_->part.metadata.integer(key, min, max);
}

std::int64_t GgufFile::integer_or(std::string_view key, std::int64_t min, std::int64_t max,
                                  std::int64_t fallback) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double GgufFile::number(std::string_view key) const { return state_->part.metadata.number(key); }
double GgufFile::number_or(std::string_view key, double fallback) const {
  return has(key) ? number(key) : fallback;
}
bool GgufFile::boolean(std::string_view key) const { return state_->part.metadata.boolean(key); }
bool GgufFile::boolean_or(std::string_view key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}
std::string_view GgufFile::text(std::string_view key) const { return state_->part.metadata.text(key); }

std::string_view GgufFile::text_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? text(key) : fallback;
}

std::vector<std::string_view> GgufFile::texts(std::string_view key) const {
  return state_->part.metadata.texts(key);
}
std::vector<std::int64_t> GgufFile::integers(std::string_view key) const {
  return state_->part.metadata.integers(key);
}
std::vector<double> GgufFile::numbers(std::string_view key) const {
  return state_->part.metadata.numbers(key);
}
std::vector<bool> GgufFile::booleans(std::string_view key) const {
  return state_->part.metadata.booleans(key);
}
std::uint64_t GgufFile::array_length(std::string_view key) const {
  return state_->part.metadata.array_length(key);
}

void GgufFile::replace(const Replacement& with) { state_->part.metadata.replace(with); }
bool GgufFile::replaced(std::string_view key) const { return state_->part.metadata.replaced(key); }
std::string_view GgufFile::spoken(std::string_view key) const { return state_->part.metadata.spoken(key); }

std::vector<std::string_view> GgufFile::keys() const {
  std::vector<std::string_view> keys;
  for (const MetadataEntry& entry : state_->part.metadata.entries()) keys.push_back(entry.key);
  return keys;
}

std::span<const Tensor> GgufFile::tensors() const { return state_->part.tensors; }

const Tensor* GgufFile::find_tensor(std::string_view name) const {
  const auto found = state_->by_name.find(name);
  return found == state_->by_name.end() ? nullptr : &state_->part.tensors[found->second];
}

const Tensor& GgufFile::tensor(std::string_view name) const {
  const Tensor* const found = find_tensor(name);
  if (found == nullptr) refuse(fmt::format("tensor {} is missing", quoted(name)));
  return *found;
}

const Tensor& GgufFile::tensor(std::string_view name, std::span<const std::int64_t> dims) const {
  const Tensor& found = tensor(name);
  if (!std::equal(dims.begin(), dims.end(), found.dims.begin(), found.dims.end())) {
    refuse(fmt::format("tensor {} is {}; it must be {}", quoted(name), fmt::join(found.dims, " x "),
                       fmt::join(dims, " x ")));
  }
  return found;
}

void GgufFile::refuse_gaps() const {
  if (!state_->part.gap.empty()) refuse(state_->part.gap);
}

void GgufFile::release(const Tensor& tensor) const {
  // Only pages of a mapped file can be read again from the file.
  if (!state_->files.empty()) release_pages(tensor.data);
}

}  // namespace headwater::runtime
