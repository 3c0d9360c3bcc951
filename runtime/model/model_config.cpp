#include "runtime/model/model_config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "runtime/model/architecture/architecture.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {

std::int64_t ModelConfig::windowed_layers() const {
  return std::ranges::count_if(layer_specs, [](const LayerSpec& layer) { return layer.window > 0; });
}

std::int64_t ModelConfig::recurrent_layers() const {
  return std::ranges::count_if(layer_specs, &LayerSpec::recurrent);
}

GgufFile open_model_file(const std::string& path, std::span<const Replacement> replacements) {
  GgufFile file = GgufFile::open(path);
  for (const Replacement& one : replacements) {
    file.replace({Keys(file, file.text("general.architecture")).key(one.key), one.value, one.source});
  }
  return file;
}

std::int64_t ModelConfig::widest_feed_forward() const {
  return std::max({feed_forward, dense_feed_forward, shared_feed_forward});
}

ModelConfig read_model_config(const GgufFile& file) {
  const std::string_view name = file.text("general.architecture");
  const auto known = std::ranges::find(architectures(), name, &Architecture::name);
  if (known == architectures().end()) {
    std::vector<std::string_view> names;
    for (const Architecture& one : architectures()) names.push_back(one.name);
    file.refuse(fmt::format("general.architecture is {}; allowed: {}", quoted(name), fmt::join(names, ", ")));
  }
  ModelConfig config;
  const Keys keys(file, name);
  keys.read_common(config);
  known->describe(keys, config);
  keys.read_epsilon(config);
  keys.refuse_unsupported(config);
  return config;
}

}  // namespace headwater::runtime
