#include "conformance/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "conformance/formats.hpp"
#include "conformance/json_tree.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMostHeader = 100'000'000;  // the format's own limit

const std::map<std::string, std::int64_t> kElementBytes{{"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I32", 4},
                                                        {"F64", 8}, {"I64", 8}, {"I16", 2},  {"I8", 1},
                                                        {"U8", 1},  {"BOOL", 1}};

DType dtype_of(const std::string& name) {
  return name == "F32" ? DType::f32 : name == "F16" ? DType::f16 : DType::bf16;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  struct stat info {};
  if (::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(file);
    refuse("is not a regular file");
  }
  size_ = static_cast<std::size_t>(info.st_size);
  if (size_ < kLengthBytes) {
    ::close(file);
    refuse(fmt::format("has {} bytes; a safetensors file has at least {}", size_, kLengthBytes));
  }
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file, 0);
  ::close(file);
  if (memory == MAP_FAILED) refuse(fmt::format("cannot be mapped: {}", std::strerror(errno)));
  bytes_ = static_cast<std::byte*>(memory);
  try {
    parse(size_);
  } catch (...) {
    ::munmap(bytes_, size_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::munmap(bytes_, size_); }

void SafetensorsFile::refuse(const std::string& what) const {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", path_, what));
}

void SafetensorsFile::parse(std::size_t size) {
  std::uint64_t header = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    header |= static_cast<std::uint64_t>(std::to_integer<unsigned>(bytes_[i])) << (8 * i);
  }
  if (header > kMostHeader || header > size - kLengthBytes) {
    refuse(fmt::format("says its header has {} bytes; allowed: at most {}", header,
                       std::min<std::uint64_t>(kMostHeader, size - kLengthBytes)));
  }
  const auto* text = reinterpret_cast<const char*>(bytes_ + kLengthBytes);
  const JsonTree json = parse_json({text, header}, path_ + ": header");
  if (!json.is(JsonTree::Kind::object)) refuse("header is not an object");
  const std::uint64_t data_bytes = size - kLengthBytes - header;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
  for (std::size_t i = 0; i < json.keys.size(); ++i) {
    const std::string& name = json.keys[i];
    const JsonTree& entry = json.items[i];
    if (name == "__metadata__") {
      read_metadata(entry);
      continue;
    }
    const auto field = [&](const char* key, JsonTree::Kind kind) -> const JsonTree& {
      const JsonTree* found = entry.find(key);
      if (found == nullptr || !found->is(kind)) {
        refuse(fmt::format("tensor {}: {} is missing or of another kind", name, key));
      }
      return *found;
    };
    FileTensor tensor;
    tensor.dtype = field("dtype", JsonTree::Kind::text).text;
    const auto known = kElementBytes.find(tensor.dtype);
    if (known == kElementBytes.end())
      refuse(fmt::format("tensor {}: dtype {} is not known", name, tensor.dtype));
    std::int64_t elements = 1;
    std::int64_t bytes = 0;
    for (const JsonTree& extent : field("shape", JsonTree::Kind::list).items) {
      if (!extent.is_unsigned) refuse(fmt::format("tensor {}: shape holds what is no extent", name));
      const std::uint64_t wide = extent.integer;
      if (wide > static_cast<std::uint64_t>(INT64_MAX) ||
          __builtin_mul_overflow(elements, static_cast<std::int64_t>(wide), &elements)) {
        refuse(fmt::format("tensor {}: the product of its shape overflows", name));
      }
      tensor.shape.push_back(static_cast<std::int64_t>(wide));
    }
    if (__builtin_mul_overflow(elements, known->second, &bytes)) {
      refuse(fmt::format("tensor {}: its size overflows", name));
    }
    const std::vector<JsonTree>& offsets = field("data_offsets", JsonTree::Kind::list).items;
    if (offsets.size() != 2 || !offsets[0].is_unsigned || !offsets[1].is_unsigned) {
      refuse(fmt::format("tensor {}: data_offsets is not a pair of numbers", name));
    }
    const std::uint64_t begin = offsets[0].integer;
    const std::uint64_t end = offsets[1].integer;
    if (begin > end || end > data_bytes || end - begin != static_cast<std::uint64_t>(bytes)) {
      refuse(fmt::format("tensor {}: data_offsets [{}, {}] do not hold {} bytes inside the {} of the file",
                         name, begin, end, bytes, data_bytes));
    }
    ranges.emplace_back(begin, end);
    tensor.data = bytes_ + kLengthBytes + header + begin;
    tensor.elements = elements;
    if (!tensors_.emplace(name, std::move(tensor)).second) refuse(fmt::format("tensor {} comes twice", name));
  }
  std::sort(ranges.begin(), ranges.end());
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].first < ranges[i - 1].second) refuse("tensors overlap");
  }
}

void SafetensorsFile::read_metadata(const JsonTree& entry) {
  if (!entry.is(JsonTree::Kind::object)) refuse("__metadata__ is not an object");
  for (std::size_t i = 0; i < entry.keys.size(); ++i) {
    if (!entry.items[i].is(JsonTree::Kind::text)) {
      refuse(fmt::format("__metadata__: {} is no text", entry.keys[i]));
    }
    metadata_[entry.keys[i]] = entry.items[i].text;
  }
}

const FileTensor& SafetensorsFile::tensor(const std::string& name, std::size_t dimensions,
                                          const std::string& dtypes) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) refuse(fmt::format("has no tensor {}", name));
  const FileTensor& tensor = found->second;
  if (tensor.shape.size() != dimensions) {
    refuse(fmt::format("tensor {} has shape [{}]; allowed: {} dimensions", name,
                       fmt::join(tensor.shape, ", "), dimensions));
  }
  if (("," + dtypes + ",").find("," + tensor.dtype + ",") == std::string::npos) {
    refuse(fmt::format("tensor {} is {}; allowed: {}", name, tensor.dtype, dtypes));
  }
  return tensor;
}

const std::string& SafetensorsFile::metadata(const std::string& key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) refuse(fmt::format("__metadata__ has no {}", key));
  return found->second;
}

std::vector<float> read_floats(const FileTensor& tensor) {
  const DType type = dtype_of(tensor.dtype);
  std::vector<float> values(static_cast<std::size_t>(tensor.elements));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_element(type, tensor.data + i * dtype_size(type));
  return values;
}

std::vector<std::int32_t> read_integers(const FileTensor& tensor) {
  std::vector<std::int32_t> values(static_cast<std::size_t>(tensor.elements));
  if (!values.empty()) std::memcpy(values.data(), tensor.data, values.size() * sizeof(std::int32_t));
  return values;
}

}  // namespace headwater::conformance
