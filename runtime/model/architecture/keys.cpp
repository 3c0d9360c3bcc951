#include "runtime/model/architecture/keys.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "headwater/error.hpp"
#include "runtime/model/kernels/kernels.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {
namespace {

constexpr std::int64_t kMaxExtent = 65536;  // of heads, widths and layers, as headwater::Shape has it
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxExperts = 1024;  // of a layer; published models have up to 512
constexpr std::int64_t kMaxTokens = (std::int64_t{1} << 31) - 1;

/// Keys after "<architecture>." whose presence with a value other than `neutral` means a computation that is not
/// done here.
struct Unsupported {
  const char* key;
  double neutral;
  const char* what;
};
constexpr std::array kUnsupported = {
    Unsupported{"expert_count", 0, "mixture of experts"},
    Unsupported{"expert_shared_count", 0, "shared experts"},
    Unsupported{"expert_shared_feed_forward_length", 0, "shared experts"},
    Unsupported{"expert_weights_scale", 1, "scaled weights of experts"},
    Unsupported{"expert_gating_func", 1, "another function than softmax for weights of experts"},
    Unsupported{"expert_group_count", 0, "groups of experts"},
    Unsupported{"leading_dense_block_count", 0, "layers without experts"},
    Unsupported{"attention.sliding_window_pattern", 0, "sliding-window attention"},
    Unsupported{"rope.freq_base_swa", 0, "a rotation of its own beside windows"},
    Unsupported{"attn_logit_softcapping", 0, "soft caps"},
    Unsupported{"attention.logit_softcapping", 0, "soft caps"},
    Unsupported{"final_logit_softcapping", 0, "soft caps"},
    Unsupported{"logit_scale", 1, "scaled logits"},
    Unsupported{"residual_scale", 1, "a scaled residual stream"},
    Unsupported{"embedding_scale", 1, "scaled embeddings"},
    Unsupported{"attention.scale", 0, "an attention scale of its own"},
    Unsupported{"attention.temperature_scale", 0, "queries that grow with their position"},
    Unsupported{"attention.temperature_length", 0, "queries that grow with their position"},
    Unsupported{"attention.q_lora_rank", 0, "queries of latent rows"},
    Unsupported{"attention.kv_lora_rank", 0, "latent attention"},
    Unsupported{"attention.clamp_kqv", 0, "clamped queries and keys"},
    Unsupported{"attention.max_alibi_bias", 0, "ALiBi"},
    Unsupported{"use_parallel_residual", 0, "a parallel residual stream"},
    Unsupported{"pooling_type", 0, "embedding models"},
    Unsupported{"rope.dimension_sections", 0, "positions of several dimensions"},
    Unsupported{"nextn_predict_layers", 0, "layers that predict further tokens"},
};

/// Keys after "<architecture>.rope.scaling." that are read, or that say nothing about the computation.
constexpr std::array<std::string_view, 7> kScalingKeys = {
    "type",           "factor",   "original_context_length", "attn_factor", "yarn_beta_fast",
    "yarn_beta_slow", "finetuned"};

/// Those of YaRN alone where they stand in place of the file's.
constexpr std::array kYarnKeys = {"rope.scaling.original_context_length", "rope.scaling.attn_factor",
                                  "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
                                  "rope.scaling.yarn_ext_factor"};
constexpr const char* kKind = "rope.scaling.type";
constexpr const char* kFactor = "rope.scaling.factor";

constexpr const char* kShortFactors = "rope_factors_short.weight";
constexpr const char* kLongFactors = "rope_factors_long.weight";
constexpr const char* kWindow = "attention.sliding_window";
constexpr const char* kPattern = "attention.sliding_window_pattern";

/// As it was written where it is a number of 32 bits: 0.3, and not the nearest one of 64 bits.
std::string number_text(double value) {
  const auto narrow = static_cast<float>(value);
  return static_cast<double>(narrow) == value ? fmt::format("{}", narrow) : fmt::format("{}", value);
}

}  // namespace

std::string Keys::key(std::string_view name) const { return fmt::format("{}.{}", prefix_, name); }

std::string Keys::spoken(std::string_view name) const { return std::string(file_.spoken(key(name))); }

std::int64_t Keys::integer_or(std::string_view name, std::int64_t min, std::int64_t max,
                              std::int64_t fallback) const {
  asked_.emplace(name);
  return file_.integer_or(key(name), min, max, fallback);
}

std::int64_t Keys::integer(std::string_view name, std::int64_t min, std::int64_t max) const {
  asked_.emplace(name);
  return file_.integer(key(name), min, max);
}

bool Keys::boolean_or(std::string_view name, bool fallback) const {
  return file_.boolean_or(key(name), fallback);
}

double Keys::positive_or_none(std::string_view name) const {
  asked_.emplace(name);
  return has(name) && file_.number(key(name)) != 0 ? positive(name, 0.0) : 0.0;
}

double Keys::positive(std::string_view name, double fallback) const {
  asked_.emplace(name);
  const std::string full = key(name);
  if (!file_.has(full) && fallback > 0) return fallback;
  const double value = file_.number(full);
  if (!(value > 0) || !(static_cast<float>(value) > 0) || !std::isfinite(static_cast<float>(value))) {
    file_.refuse(fmt::format("{} is {}; allowed: a number > 0", file_.spoken(full), number_text(value)));
  }
  return value;
}

void Keys::refuse_unsupported(const ModelConfig& config) const {
  for (const Unsupported& feature : kUnsupported) {
    const std::string name = key(feature.key);
    if (!file_.has(name) || asked_.contains(feature.key)) continue;
    bool neutral = false;
    try {
      neutral = file_.number(name) == feature.neutral;
    } catch (const Error&) {
      try {
        neutral = !file_.boolean(name) && feature.neutral == 0;
      } catch (const Error&) {  // an array, a text: certainly not neutral
      }
    }
    if (!neutral) file_.refuse(fmt::format("{} asks for {}, which is not supported", name, feature.what));
  }
  refuse_unknown_scaling();
  if (!file_.boolean_or(key("attention.causal"), true)) {
    file_.refuse(fmt::format("{} is false; only causal attention is supported", key("attention.causal")));
  }
  if (asked_.contains(kWindow)) return;
  // A window that holds the whole context changes nothing.
  const std::int64_t window = file_.integer_or(key(kWindow), 0, kMaxTokens, 0);
  if (window > 0 && window < config.reach) {
    file_.refuse(
        fmt::format("{} is {} of a context of {}; sliding-window attention is not supported for {} models",
                    key(kWindow), window, config.reach, prefix_));
  }
}

std::vector<bool> Keys::read_windows(ModelConfig& config, std::int64_t period) const {
  asked_.emplace(kPattern);
  const std::int64_t window = integer_or(kWindow, 0, kMaxTokens, 0);
  std::vector<bool> windowed(config.layer_specs.size());
  const std::string pattern = key(kPattern);
  if (file_.is_array(pattern)) {
    windowed = file_.booleans(pattern);
    if (windowed.size() != config.layer_specs.size()) {
      file_.refuse(fmt::format("{} has {} elements; allowed: one for each of {} layers", pattern,
                               windowed.size(), config.layers));
    }
  } else {
    const auto every =
        static_cast<std::size_t>(has(kPattern) ? file_.integer(pattern, 1, kMaxExtent) : period);
    for (std::size_t i = 0; i < windowed.size(); ++i) {
      windowed[i] = every == kEveryLayer || i % every != every - 1;
    }
  }
  const std::int64_t own = window < config.reach ? window : 0;  // else it holds the whole context
  for (std::size_t i = 0; i < windowed.size(); ++i) config.layer_specs[i].window = windowed[i] ? own : 0;
  return windowed;
}

void Keys::read_delta_layers(ModelConfig& config) const {
  // Of a text all dimensions of a position are the same number.
  asked_.emplace("rope.dimension_sections");
  DeltaShape& delta = config.delta;
  constexpr std::int64_t kLargest = 1024;
  delta.taps = integer("ssm.conv_kernel", 2, DeltaShape::kMostTaps);
  delta.d = integer("ssm.state_size", kDeltaColumns, kLargest);
  delta.key_heads = integer("ssm.group_count", 1, kLargest);
  delta.value_heads = integer("ssm.time_step_rank", 1, kLargest);
  const auto refuse = [&](const char* name, std::int64_t value, const std::string& allowed) {
    file_.refuse(fmt::format("{} is {}; allowed: {}", key(name), value, allowed));
  };
  if (delta.d % kDeltaColumns != 0)
    refuse("ssm.state_size", delta.d, fmt::format("multiples of {}", kDeltaColumns));
  if (delta.value_heads % delta.key_heads != 0)
    refuse("ssm.time_step_rank", delta.value_heads,
           fmt::format("multiples of the {} of {}", delta.key_heads, key("ssm.group_count")));
  const std::int64_t inner = integer("ssm.inner_size", 1, kMaxWidth);
  if (inner != delta.value_heads * delta.d)
    refuse("ssm.inner_size", inner,
           fmt::format("{}, heads of values times {}", delta.value_heads * delta.d, key("ssm.state_size")));
  const std::string listed = key("attention.recurrent_layers");
  std::vector<bool> recurrent(config.layer_specs.size());
  if (file_.has(listed)) {
    std::vector<bool> all = file_.booleans(listed);
    if (all.size() < recurrent.size())
      file_.refuse(fmt::format("{} has {} elements; allowed: one for each of {} layers", listed, all.size(),
                               config.layers));
    all.resize(recurrent.size());
    recurrent = std::move(all);
  } else {
    const std::int64_t every = integer_or("full_attention_interval", 1, kMaxExtent, 4);
    for (std::size_t i = 0; i < recurrent.size(); ++i)
      recurrent[i] = (static_cast<std::int64_t>(i) + 1) % every != 0;
  }
  for (std::size_t i = 0; i < recurrent.size(); ++i) config.layer_specs[i].recurrent = recurrent[i];
  if (config.recurrent_layers() == config.layers)
    file_.refuse(
        fmt::format("all {} layers are recurrent; allowed: one or more with attention", config.layers));
}

void Keys::leave_out_predicting_blocks(ModelConfig& config) const {
  config.left_out_blocks = integer_or("nextn_predict_layers", 0, config.layers - 1, 0);
  config.layers -= config.left_out_blocks;
  config.layer_specs.resize(static_cast<std::size_t>(config.layers));
}

void Keys::read_sizes(ModelConfig& config) const {
  config.layers = extent("block_count", kMaxExtent);
  config.width = extent("embedding_length", kMaxWidth);
  config.feed_forward = extent("feed_forward_length", kMaxWidth);
  config.heads = extent("attention.head_count", kMaxExtent);
  config.heads_kv = file_.integer_or(key("attention.head_count_kv"), 1, kMaxExtent, config.heads);
  config.context = extent("context_length", kMaxTokens);
  if (config.heads % config.heads_kv != 0) {
    file_.refuse(fmt::format("{} is {}; allowed: a divisor of the {} query heads",
                             key("attention.head_count_kv"), config.heads_kv, config.heads));
  }
  // Each on its own, as the format says: keys of a length in the file do not make values as long.
  const auto length = [&](const char* name) {
    if (!file_.has(key(name)) && config.width % config.heads != 0) {
      file_.refuse(fmt::format("{} is missing, and {} query heads do not divide a width of {}", key(name),
                               config.heads, config.width));
    }
    const std::int64_t elements = file_.integer_or(key(name), 1, kMaxExtent, config.width / config.heads);
    if (elements > kMaxExtent) {
      file_.refuse(
          fmt::format("{} is missing, and {} query heads make rows of {} of a width of {}; allowed: up to {}",
                      key(name), config.heads, elements, config.width, kMaxExtent));
    }
    return elements;
  };
  config.d_head = length("attention.key_length");
  config.d_value = length("attention.value_length");
  if (config.heads * config.d_head > kMaxWidth || config.heads * config.d_value > kMaxWidth) {
    file_.refuse(fmt::format("{} is {}, with keys of {} and values of {}; allowed: up to {} numbers a token",
                             key("attention.head_count"), config.heads, config.d_head, config.d_value,
                             kMaxWidth));
  }
}

void Keys::read_epsilon(ModelConfig& config) const {
  const char* const name =
      config.norm == Norm::layer ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  const double epsilon = positive(name, 0.0);
  // More than the mean square of the rows that it is added to would make all outputs nearly zero.
  if (epsilon > 1) file_.refuse(fmt::format("{} is {}; allowed: above 0, up to 1", key(name), epsilon));
  config.norm_epsilon = static_cast<float>(epsilon);
}

/// A key of the scaling that is not read may mean another rotation.
void Keys::refuse_unknown_scaling() const {
  const std::string prefix = key("rope.scaling.");
  for (const std::string_view name : file_.keys()) {
    if (!name.starts_with(prefix)) continue;
    const std::string_view own = name.substr(prefix.size());
    if (std::ranges::find(kScalingKeys, own) != kScalingKeys.end()) continue;
    if (asked_.contains(fmt::format("rope.scaling.{}", own))) continue;
    if (file_.replaced(name)) continue;  // what says it knows what is allowed
    file_.refuse(fmt::format("{} is not supported", quoted(name)));
  }
}

std::string Keys::scaling_text(std::string_view name) const {
  return name == kKind ? std::string(file_.text(key(name))) : number_text(file_.number(key(name)));
}

void Keys::refuse_unused_scaling(std::string_view kind) const {
  const auto refuse = [&](const char* name, const char* with) {
    if (!file_.replaced(key(name))) return;
    file_.refuse(fmt::format("{} is {}, and the scaling is {}; allowed: with {}", spoken(name),
                             scaling_text(name), kind, with));
  };
  if (kind == "none") refuse(kFactor, "linear or yarn");
  if (kind == "yarn") return;
  for (const char* const name : kYarnKeys) refuse(name, "yarn");
}

/// As llama.cpp reads these architectures: a factor without a type is linear; type `none` is none, whatever else is
/// there; rope.scale_linear is the factor where the new key is missing; attn_factor multiplies the magnitude of every
/// type. (It reads neither YaRN's betas nor its other factors for them; the betas are honoured here.)
RopeScaling Keys::scaling(const ModelConfig& config) const {
  RopeScaling scaling;
  const char* const factor =
      !file_.has(key(kFactor)) && file_.has(key("rope.scale_linear")) ? "rope.scale_linear" : kFactor;
  const std::string_view kind = file_.text_or(key(kKind), file_.has(key(factor)) ? "linear" : "none");
  refuse_unused_scaling(kind);
  scaling.attention_factor = positive("rope.scaling.attn_factor", scaling.attention_factor);
  if (kind == "none") return scaling;
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
  } else if (kind == "yarn") {
    scaling.kind = RopeScaling::Kind::yarn;
    scaling.original_context =
        file_.integer_or(key("rope.scaling.original_context_length"), 1, kMaxTokens, config.context);
    scaling.beta_fast = positive("rope.scaling.yarn_beta_fast", scaling.beta_fast);
    scaling.beta_slow = positive("rope.scaling.yarn_beta_slow", scaling.beta_slow);
  } else {
    file_.refuse(fmt::format("{} is {}; allowed: none, linear, yarn", spoken(kKind), quoted(kind)));
  }
  if (file_.replaced(key(kKind)) && !file_.has(key(factor))) {
    file_.refuse(fmt::format("{} is {}, and {} is missing; allowed: with a rope scale", spoken(kKind), kind,
                             key(kFactor)));
  }
  scaling.factor = positive(factor, 0.0);
  if (scaling.factor < 1) {
    file_.refuse(fmt::format("{} is {}; allowed: at least 1", spoken(factor), number_text(scaling.factor)));
  }
  return scaling;
}

std::vector<float> Keys::rope_divisors(const char* name, std::int64_t pairs) const {
  if (file_.find_tensor(name) == nullptr) return {};
  const std::array dims = {pairs};
  const Tensor& tensor = file_.tensor(name, dims);
  std::vector<float> divisors(static_cast<std::size_t>(pairs));
  dequantize_row(tensor.type, tensor.row(0), pairs, divisors.data());
  for (const float divisor : divisors) {
    if (divisor > 0 && std::isfinite(divisor)) continue;
    file_.refuse(fmt::format("tensor '{}' holds {}; allowed: numbers > 0", name, divisor));
  }
  return divisors;
}

void Keys::read_experts(ModelConfig& config) const {
  config.experts = integer_or("expert_count", 0, kMaxExperts, 0);
  if (config.experts == 0) return;
  config.experts_used = file_.integer(key("expert_used_count"), 1, config.experts);
  config.feed_forward = integer_or("expert_feed_forward_length", 1, kMaxWidth, config.feed_forward);
}

void Keys::read_shared_expert(ModelConfig& config, std::int64_t fallback) const {
  if (config.experts == 0) return;
  config.shared_feed_forward = integer_or("expert_shared_feed_forward_length", 1, kMaxWidth, fallback);
}

void Keys::read_long_rope(ModelConfig& config) const {
  const auto pairs = static_cast<std::int64_t>(config.rotations.front().inverse.size());
  const auto divide = [&](const char* tensor) {
    RopeFrequencies divided = config.rotations.front();
    const std::vector<float> divisors = rope_divisors(tensor, pairs);
    if (divisors.empty()) file_.refuse(fmt::format("tensor '{}' is missing", tensor));
    for (std::size_t i = 0; i < divisors.size(); ++i) divided.inverse[i] /= static_cast<double>(divisors[i]);
    return divided;
  };
  if (file_.find_tensor(kLongFactors) == nullptr && file_.find_tensor(kShortFactors) == nullptr) return;
  for (const std::string_view name : kScalingKeys) {
    const std::string full = fmt::format("rope.scaling.{}", name);
    if (!file_.replaced(key(full))) continue;
    file_.refuse(
        fmt::format("{} is {}, and the model has a scaling of its own, LongRoPE; allowed: without it",
                    spoken(full), scaling_text(full)));
  }
  config.rotations = {divide(kShortFactors), divide(kLongFactors)};
  config.long_beyond = file_.integer(key("rope.scaling.original_context_length"), 1, kMaxTokens);
}

/// Rotated dimensions: all of a head where the file does not say how many.
std::int64_t Keys::rotated(const ModelConfig& config) const {
  const std::string rotated_key = key("rope.dimension_count");
  const std::string length_key = key("attention.key_length");
  const bool said = file_.has(rotated_key);
  if (said && config.d_head > 1) {
    const std::int64_t rotated = file_.integer(rotated_key, 2, config.d_head);
    if (rotated % 2 != 0) {
      file_.refuse(fmt::format("{} is {}; allowed: an even number", rotated_key, rotated));
    }
    return rotated;
  }
  if (config.d_head % 2 == 0) return config.d_head;
  const char* const allowed = said ? "at least 2" : "an even number, as all of a row is rotated";
  if (file_.has(length_key)) {
    file_.refuse(fmt::format("{} is {}; allowed: {}", length_key, config.d_head, allowed));
  }
  file_.refuse(fmt::format("{} is missing, and {} query heads make rows of {} of a width of {}; allowed: {}",
                           length_key, config.heads, config.d_head, config.width, allowed));
}

RopeFrequencies Keys::rotation(const ModelConfig& config, std::string_view base, double fallback, bool scaled,
                               bool whole_pairs) const {
  const std::int64_t pairs = rotated(config) / 2;
  const double theta = positive(base, fallback);
  if (theta < 1) file_.refuse(fmt::format("{} is {}; allowed: 1 or more", spoken(base), number_text(theta)));
  if (!scaled) return rope_frequencies(2 * pairs, theta, {}, {});
  RopeScaling how = scaling(config);
  how.whole_pairs = whole_pairs;
  if (how.kind == RopeScaling::Kind::yarn && theta <= 1) {
    file_.refuse(fmt::format("{} is {}; allowed: above 1 with YaRN", spoken(base), number_text(theta)));
  }
  return rope_frequencies(2 * pairs, theta, rope_divisors("rope_freqs.weight", pairs), how);
}

double Keys::yarn_magnitude(const ModelConfig& config, double multiplier) const {
  const RopeScaling how = scaling(config);
  return how.kind == RopeScaling::Kind::yarn ? 1.0 + 0.1 * multiplier * std::log(how.factor) : 1.0;
}

void Keys::read_temperature(ModelConfig& config) const {
  config.temperature_scale = positive_or_none("attention.temperature_scale");
  config.temperature_length = integer_or(
      "attention.temperature_length", 1, kMaxTokens,
      file_.integer_or(key("rope.scaling.original_context_length"), 1, kMaxTokens, config.context));
}

void Keys::read_vocabulary(ModelConfig& config) const {
  const Tensor& embedding = file_.tensor("token_embd.weight");
  if (embedding.dims.size() != 2 || embedding.dims[0] != config.width || embedding.dims[1] > kMaxTokens) {
    file_.refuse(
        fmt::format("tensor 'token_embd.weight' has {} dimensions and rows of {}; allowed: a matrix with "
                    "rows of {}",
                    embedding.dims.size(), embedding.dims.empty() ? 0 : embedding.dims[0], config.width));
  }
  config.vocabulary = embedding.dims[1];
}

void Keys::read_common(ModelConfig& config) const {
  config.architecture = prefix_;
  config.name = file_.text_or("general.name", "");
  read_sizes(config);
  constexpr double kDefaultBase = 10000.0;
  config.rotations = {rotation(config, "rope.freq_base", kDefaultBase, true)};
  config.reach = config.context;
  if (file_.replaced(key(kFactor))) {
    const RopeScaling how = scaling(config);
    const auto from = how.kind == RopeScaling::Kind::yarn ? how.original_context : config.context;
    const double to = std::min(std::floor(static_cast<double>(from) * how.factor), double{kMaxTokens});
    config.reach = std::max(config.context, static_cast<std::int64_t>(to));
  }
  config.layer_specs.resize(static_cast<std::size_t>(config.layers));
  read_vocabulary(config);
}

}  // namespace headwater::runtime
