#include "cli/support/model_facts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "cli/support/text.hpp"
#include "runtime/model/architecture/architecture.hpp"

namespace headwater::cli {
namespace {

std::uint64_t whole(double bytes) { return static_cast<std::uint64_t>(std::min(bytes, 9e18)); }

std::string models_of(const std::string& architecture) {
  const auto all = runtime::architectures();
  return std::string(std::ranges::find(all, architecture, &runtime::Architecture::name)->models);
}

using Scaling = runtime::RopeScaling::Kind;

const char* name_of(Scaling kind) {
  switch (kind) {
    case Scaling::none: return "none";
    case Scaling::linear: return "linear";
    case Scaling::yarn: return "yarn";
  }
  return "";
}

/// "base 10000, yarn, 4 times 8192 tokens", of all rotations.
std::string rotations_text(const runtime::ModelConfig& config) {
  std::vector<std::string> texts;
  for (const runtime::RopeFrequencies& rotation : config.rotations) {
    const runtime::RopeScaling& scaling = rotation.scaling;
    std::string text = fmt::format("base {}", rotation.base);
    if (scaling.kind != Scaling::none)
      text += fmt::format(", {}, {} times", name_of(scaling.kind), scaling.factor);
    if (scaling.kind == Scaling::yarn) text += fmt::format(" {} tokens", scaling.original_context);
    texts.push_back(text);
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

nlohmann::ordered_json rotations_json(const runtime::ModelConfig& config) {
  auto list = nlohmann::ordered_json::array();
  for (const runtime::RopeFrequencies& rotation : config.rotations) {
    nlohmann::ordered_json& json = list.emplace_back();
    json["base"] = rotation.base;
    json["scaling"] = name_of(rotation.scaling.kind);
    json["factor"] = rotation.scaling.factor;
    const bool yarn = rotation.scaling.kind == Scaling::yarn;
    json["original_context"] =
        yarn ? nlohmann::ordered_json(rotation.scaling.original_context) : nlohmann::ordered_json(nullptr);
  }
  return list;
}

}  // namespace

std::string windows_text(const runtime::ModelConfig& config) {
  std::set<std::int64_t> windows;
  for (const runtime::LayerSpec& layer : config.layer_specs) {
    if (layer.window > 0) windows.insert(layer.window);
  }
  if (windows.empty()) return {};
  return fmt::format("{} of {} layers see a window of {}", config.windowed_layers(), config.layers,
                     fmt::join(windows, " or "));
}

ModelFacts::ModelFacts(const ModelFlags& flags) : model_(flags) {
  runtime::Model::check(model_.file());
  memory_ = model_memory(model_.flags(), model_.config(), static_cast<double>(model_.weight_bytes()),
                         model_.context());
  std::map<std::string, std::int64_t> counts;
  for (const runtime::Tensor& tensor : model_.file().tensors()) {
    ++counts[std::string(runtime::tensor_type_info(tensor.type).name)];
  }
  types_.assign(counts.begin(), counts.end());
  std::ranges::stable_sort(types_, std::ranges::greater(), &std::pair<std::string, std::int64_t>::second);
}

nlohmann::ordered_json ModelFacts::json() const {
  const runtime::ModelConfig& config = model_.config();
  nlohmann::ordered_json json;
  json["file"] = model_.file().path();
  json["bytes"] = model_.file().file_bytes();
  json["name"] = config.name;
  json["architecture"] = config.architecture;
  json["layers"] = config.layers;
  auto& windows = json["windows"] = nlohmann::ordered_json::array();
  for (const runtime::LayerSpec& layer : config.layer_specs) windows.push_back(layer.window);
  auto& recurrent = json["recurrent"] = nlohmann::ordered_json::array();
  for (const runtime::LayerSpec& layer : config.layer_specs) recurrent.push_back(layer.recurrent);
  json["width"] = config.width;
  json["heads"] = config.heads;
  json["kv_heads"] = config.heads_kv;
  json["head_dim"] = config.d_head;
  json["value_dim"] = config.d_value;
  json["feed_forward"] = config.feed_forward;
  json["vocabulary"] = config.vocabulary;
  json["context"] = config.context;
  json["rotations"] = rotations_json(config);
  auto& types = json["tensors"] = nlohmann::ordered_json::object();
  for (const auto& [type, count] : types_) types[type] = count;
  json["memory"] = {{"tokens", model_.context()},
                    {"weights", whole(memory_.weights)},
                    {"cache", whole(memory_.cache)},
                    {"workspace", whole(memory_.workspace)}};
  json["warnings"] = warnings();
  return json;
}

std::string ModelFacts::text() const {
  const runtime::ModelConfig& config = model_.config();
  const auto bytes = [](double number) { return bytes_text(whole(number)); };
  std::string text = fmt::format("model    {} ({}: {}), {}\n",
                                 one_line(config.name.empty() ? "no name" : config.name), config.architecture,
                                 models_of(config.architecture), bytes_text(model_.file().file_bytes()));
  text += fmt::format(
      "shape    {}, width {}, {} over {} heads of {}{}, feed-forward {}\n",
      count_text(config.layers, "layer"), config.width, config.heads, config.heads_kv, config.d_head,
      config.d_value == config.d_head ? "" : fmt::format(" and {}", config.d_value), config.feed_forward);
  text += fmt::format("tokens   vocabulary {}, context {}\n", config.vocabulary, config.context);
  text += fmt::format("rotation {}\n", rotations_text(config));
  const std::string windows = windows_text(config);
  const std::int64_t recurrent = config.recurrent_layers();
  if (recurrent > 0) {
    text += fmt::format("sparse   {} of {} layers; the others are recurrent\n", config.layers - recurrent,
                        config.layers);
  } else {
    text +=
        fmt::format("sparse   {}\n", windows.empty() ? "all layers"
                                                     : fmt::format("{} of {} layers; {} and stay exact",
                                                                   config.layers - config.windowed_layers(),
                                                                   config.layers, windows));
  }
  std::vector<std::string> types;
  for (const auto& [type, count] : types_) types.push_back(fmt::format("{} {}", count, type));
  text += fmt::format("tensors  {}\n", fmt::join(types, ", "));
  text += fmt::format("memory   at {} at least {}: weights {}, cache {} ({}), workspace {}\n",
                      count_text(model_.context(), "token"), bytes(memory_.total()), bytes(memory_.weights),
                      bytes(memory_.cache), model_.flags().cache_name(), bytes(memory_.workspace));
  return text;
}

}  // namespace headwater::cli
