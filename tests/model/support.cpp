#include "tests/model/support.hpp"

#include <cstring>
#include <map>

#include "cli/support/safetensors.hpp"
#include "headwater/engine.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::runtime::testing {
namespace {

template <typename T>
std::vector<T> read(const runtime::MappedFile& file, const cli::SafetensorsHeader& header, const char* name) {
  const cli::TensorInfo& info = header.tensors.at(name);
  std::vector<T> values((info.end - info.begin) / sizeof(T));
  std::memcpy(values.data(), file.bytes().data() + info.begin, info.end - info.begin);
  return values;
}

}  // namespace

std::shared_ptr<const GgufFile> bundled_file() {
  static const auto file =
      std::make_shared<const GgufFile>(GgufFile::open(MODELS "/headwater-tiny-f16.gguf"));
  return file;
}

std::shared_ptr<const Model> bundled(Precision precision) {
  static std::map<Precision, std::shared_ptr<const Model>> loaded;
  auto& model = loaded[precision];
  if (!model) model = Model::load(bundled_file(), {precision, 2});
  return model;
}

const ReferenceLogits& reference_logits() {
  static const ReferenceLogits reference = [] {
    const runtime::MappedFile file(MODELS "/reference-logits.safetensors");
    const cli::SafetensorsHeader header = cli::parse_safetensors(file.bytes());
    return ReferenceLogits{read<std::int32_t>(file, header, "ids"), read<std::int32_t>(file, header, "top1"),
                           read<float>(file, header, "logits")};
  }();
  return reference;
}

std::vector<std::int32_t> some_ids(std::int64_t n) {
  const auto& ids = reference_logits().ids;
  std::vector<std::int32_t> result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(ids[static_cast<std::size_t>(i) % ids.size()]);
  return result;
}

/// The best engine whose arithmetic is F32 throughout: the bounds here are F32's.
std::string f32_engine() {
  for (const char* name : {"cpu-avx512", "cpu-avx2"}) {
    for (const Engine* one : engines()) {
      if (one->name() == name && one->unavailable_because().empty()) return name;
    }
  }
  return "cpu-portable";
}

TransformerOptions options(std::int64_t capacity, DType cache) {
  TransformerOptions result;
  result.engine = f32_engine();
  result.capacity = capacity;
  result.cache_type = cache;
  result.attention.threads = 2;
  return result;
}

}  // namespace headwater::runtime::testing
