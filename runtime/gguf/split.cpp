#include "runtime/gguf/split.hpp"

#include <fmt/format.h>

#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

// The keys and the names are those of ggml's own splitter.
constexpr std::string_view kNumber = "split.no";
constexpr std::string_view kCount = "split.count";
constexpr std::int64_t kMostFiles = 65535;

std::string suffix(std::int64_t index, std::int64_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count);
}

}  // namespace

std::vector<std::string> split_files(const std::string& path, const Metadata& metadata) {
  const std::int64_t count = metadata.find(kCount) == nullptr ? 0 : metadata.integer(kCount, 0, kMostFiles);
  if (count <= 1) {
    if (metadata.find(kNumber) != nullptr) (void)metadata.integer(kNumber, 0, 0);
    return {path};
  }
  const std::int64_t index = metadata.integer(kNumber, 0, count - 1);
  const std::string ending = suffix(index, count);
  if (!path.ends_with(ending)) {
    refuse_file(path, fmt::format("is file {} of a model split into {}; its name must end with {}", index + 1,
                                  count, ending));
  }
  const std::string stem = path.substr(0, path.size() - ending.size());
  if (index != 0) {
    refuse_file(path, fmt::format("is file {} of a split model; open the first one, {}", index + 1,
                                  quoted(stem + suffix(0, count))));
  }
  std::vector<std::string> files;
  for (std::int64_t i = 0; i < count; ++i) files.push_back(stem + suffix(i, count));
  return files;
}

void check_split_part(const Metadata& metadata, std::int64_t index, std::int64_t count) {
  (void)metadata.integer(kNumber, index, index);
  (void)metadata.integer(kCount, count, count);
}

}  // namespace headwater::runtime
