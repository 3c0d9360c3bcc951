// What a model's metadata may say, and that everything else is refused by name. Models are made up in memory.

#include "runtime/model/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <tuple>
#include <variant>

#include "runtime/model/model.hpp"
#include "tests/gguf/builder.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A model of two layers with the smallest sizes that make sense; the parts may be changed before build().
struct TinyFile {
  std::string architecture = "llama";
  std::int64_t head_count = 2;
  std::int64_t head_count_kv = 1;
  bool qk_norm = false;
  bool epsilon = true;
  std::function<void(Builder&)> more_metadata = [](Builder&) {};
  std::string left_out;           // a tensor
  std::string added;              // a tensor of 8 elements
  std::vector<float> rope_freqs;  // the tensor of the next line
  std::string rope_tensor = "rope_freqs.weight";
  float filling = 0.01F;
  std::uint64_t vocabulary = 40;
  std::uint32_t context = 512;
  bool own_head = false;              // output.weight
  std::optional<std::size_t> spoilt;  // element of the embedding that is NaN

  [[nodiscard]] std::vector<std::byte> build() const {
    Builder file;
    const std::string a = architecture + ".";
    file.add_text("general.architecture", architecture);
    file.add(a + "context_length", kU32, context);
    file.add<std::uint32_t>(a + "block_count", kU32, 2);
    file.add<std::uint32_t>(a + "embedding_length", kU32, 16);
    file.add<std::uint32_t>(a + "feed_forward_length", kU32, 24);
    file.add(a + "attention.head_count", kU32, static_cast<std::uint32_t>(head_count));
    file.add(a + "attention.head_count_kv", kU32, static_cast<std::uint32_t>(head_count_kv));
    if (epsilon) file.add<float>(a + "attention.layer_norm_rms_epsilon", kF32, 1e-5F);
    more_metadata(file);
    std::uint64_t offset = 0;
    const auto tensor = [&](const std::string& name, const std::vector<std::uint64_t>& dims) {
      if (name == left_out) return;
      file.add_tensor(name, dims, kF32Tensor, offset);
      std::uint64_t elements = 1;
      for (const std::uint64_t size : dims) elements *= size;
      offset += (elements * 4 + 31) / 32 * 32;
    };
    const std::uint64_t kv = 8 * static_cast<std::uint64_t>(head_count_kv);
    if (!rope_freqs.empty()) tensor(rope_tensor, {rope_freqs.size()});
    const std::uint64_t embedding = offset;
    tensor("token_embd.weight", {16, vocabulary});
    if (own_head) tensor("output.weight", {16, vocabulary});
    tensor("output_norm.weight", {16});
    for (const char* layer : {"blk.0.", "blk.1."}) {
      const std::string at = layer;
      tensor(at + "attn_norm.weight", {16});
      tensor(at + "ffn_norm.weight", {16});
      tensor(at + "attn_q.weight", {16, 16});
      tensor(at + "attn_k.weight", {16, kv});
      tensor(at + "attn_v.weight", {16, kv});
      tensor(at + "attn_output.weight", {16, 16});
      tensor(at + "ffn_gate.weight", {16, 24});
      tensor(at + "ffn_up.weight", {16, 24});
      tensor(at + "ffn_down.weight", {24, 16});
      if (qk_norm) tensor(at + "attn_q_norm.weight", {8}), tensor(at + "attn_k_norm.weight", {8});
    }
    if (!added.empty()) tensor(added, {8});
    file.data_bytes = offset;
    std::vector<std::byte> bytes = file.build();
    const std::size_t data = bytes.size() - offset;
    for (std::size_t i = 0; i < offset; i += 4) std::memcpy(bytes.data() + data + i, &filling, 4);
    std::memcpy(bytes.data() + data, rope_freqs.data(), rope_freqs.size() * 4);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    if (spoilt) std::memcpy(bytes.data() + data + embedding + *spoilt * 4, &nan, 4);
    return bytes;
  }
};

std::string load_refusal(const TinyFile& tiny) {
  const auto bytes = tiny.build();
  return refusal([&] {
    (void)Model::load(std::make_shared<const GgufFile>(GgufFile::parse(bytes, "m.gguf")),
                      {Precision::f32, 1});
  });
}

ModelConfig config_of(const TinyFile& tiny) {
  const auto bytes = tiny.build();
  return read_model_config(GgufFile::parse(bytes, "m.gguf"));
}

TEST(ModelConfig, ReadsTheThreeArchitectures) {
  for (const char* architecture : {"llama", "qwen2", "qwen3"}) {
    TinyFile tiny;
    tiny.architecture = architecture;
    tiny.qk_norm = tiny.architecture == "qwen3";
    EXPECT_EQ(load_refusal(tiny), "") << architecture;
    const ModelConfig config = config_of(tiny);
    EXPECT_EQ(config.d_head, 8);
    EXPECT_EQ(config.vocabulary, 40);
    EXPECT_EQ(config.rope_layout,
              tiny.architecture == "llama" ? RopeLayout::adjacent_pairs : RopeLayout::split_halves);
    EXPECT_EQ(config.rotations.front().inverse.size(), 4U);
    EXPECT_DOUBLE_EQ(config.rotations.front().inverse[1], std::pow(10000.0, -0.25));
  }
}

TEST(ModelConfig, RefusesByName) {
  struct Case {
    const char* named;
    std::function<void(TinyFile&)> change;
  };
  const auto metadata = [](auto add) { return [add](TinyFile& tiny) { tiny.more_metadata = add; }; };
  const std::vector<Case> cases = {
      {"general.architecture is 'gpt2'; allowed: qwen3, qwen3moe, qwen2, llama, gpt-oss, gemma3",
       [](TinyFile& t) { t.architecture = "gpt2"; }},
      {"blk.0.post_attention_norm.weight", [](TinyFile& t) { t.architecture = "gemma3"; }},
      {"blk.0.attn_qkv.weight", [](TinyFile& t) { t.architecture = "phi3"; }},
      {"llama.attention.head_count_kv", [](TinyFile& t) { t.head_count_kv = 3; }},
      {"llama.attention.layer_norm_rms_epsilon", [](TinyFile& t) { t.epsilon = false; }},
      {"llama.attention.sliding_window",
       metadata([](Builder& b) { b.add<std::uint32_t>("llama.attention.sliding_window", kU32, 128); })},
      {"llama.expert_used_count",
       metadata([](Builder& b) { b.add<std::uint32_t>("llama.expert_count", kU32, 8); })},
      {"blk.0.ffn_gate_inp.weight", metadata([](Builder& b) {
         b.add<std::uint32_t>("llama.expert_count", kU32, 8);
         b.add<std::uint32_t>("llama.expert_used_count", kU32, 2);
       })},
      {"soft caps", metadata([](Builder& b) { b.add<float>("llama.final_logit_softcapping", kF32, 30.0F); })},
      {"llama.logit_scale", metadata([](Builder& b) { b.add<float>("llama.logit_scale", kF32, 0.5F); })},
      {"llama.rope.scaling.type is 'longrope'",
       metadata([](Builder& b) { b.add_text("llama.rope.scaling.type", "longrope"); })},
      {"llama.rope.scaling.factor",
       metadata([](Builder& b) { b.add_text("llama.rope.scaling.type", "linear"); })},
      {"llama.rope.scaling.factor is 0.5",
       metadata([](Builder& b) { b.add<float>("llama.rope.scaling.factor", kF32, 0.5F); })},
      {"llama.rope.scale_linear is 0.5",
       metadata([](Builder& b) { b.add<float>("llama.rope.scale_linear", kF32, 0.5F); })},
      {"llama.rope.scaling.attn_factor",
       metadata([](Builder& b) { b.add<float>("llama.rope.scaling.attn_factor", kF32, -1.0F); })},
      {"'llama.rope.scaling.yarn_attn_factor' is not supported",
       metadata([](Builder& b) { b.add<float>("llama.rope.scaling.yarn_attn_factor", kF32, 1.5F); })},
      {"'llama.rope.scaling.yarn_log_multiplier' is not supported",
       metadata([](Builder& b) { b.add<float>("llama.rope.scaling.yarn_log_multiplier", kF32, 0.1F); })},
      {"'llama.rope.scaling.yarn_ext_factor' is not supported",
       metadata([](Builder& b) { b.add<float>("llama.rope.scaling.yarn_ext_factor", kF32, 0.5F); })},
      {"'llama.rope.scaling.alpha' is not supported",
       metadata([](Builder& b) { b.add<float>("llama.rope.scaling.alpha", kF32, 2.0F); })},
      {"llama.attention.key_length is 63; allowed: an even number",
       metadata([](Builder& b) { b.add<std::uint32_t>("llama.attention.key_length", kU32, 63); })},
      {"llama.attention.key_length is 1; allowed: at least 2", metadata([](Builder& b) {
         b.add<std::uint32_t>("llama.attention.key_length", kU32, 1);
         b.add<std::uint32_t>("llama.rope.dimension_count", kU32, 2);
       })},
      {"llama.rope.dimension_count",
       metadata([](Builder& b) { b.add<std::uint32_t>("llama.rope.dimension_count", kU32, 5); })},
      {"llama.rope.freq_base",
       metadata([](Builder& b) { b.add<float>("llama.rope.freq_base", kF32, -1.0F); })},
      {"llama.rope.freq_base is 0.5; allowed: 1 or more",
       metadata([](Builder& b) { b.add<float>("llama.rope.freq_base", kF32, 0.5F); })},
      {"llama.attention.layer_norm_rms_epsilon is 2; allowed: above 0, up to 1",
       [](TinyFile& t) {
         t.epsilon = false;
         t.more_metadata = [](Builder& b) {
           b.add<float>("llama.attention.layer_norm_rms_epsilon", kF32, 2.0F);
         };
       }},
      {"llama.attention.causal",
       metadata([](Builder& b) { b.add<std::uint8_t>("llama.attention.causal", kBool, 0); })},
      {"blk.1.ffn_up.weight", [](TinyFile& t) { t.left_out = "blk.1.ffn_up.weight"; }},
      {"'blk.0.attn_sinks.weight'", [](TinyFile& t) { t.added = "blk.0.attn_sinks.weight"; }},
      {"'blk.2.attn_norm.weight'", [](TinyFile& t) { t.added = "blk.2.attn_norm.weight"; }},
      {"attn_q_norm", [](TinyFile& t) { t.architecture = "qwen3"; }},
      {"rope_freqs.weight",
       [](TinyFile& t) {
         t.rope_freqs = {1, 1, 0, 1};
       }},
      {"holds NaN", [](TinyFile& t) { t.filling = NAN; }},
  };
  for (const Case& one : cases) {
    TinyFile tiny;
    one.change(tiny);
    EXPECT_THAT(load_refusal(tiny), AllOf(HasSubstr("m.gguf"), HasSubstr(one.named)));
  }
}

// An embedding that is not the head is read row by row as tokens need it: its weights are checked nevertheless.
TEST(ModelConfig, RefusesAnEmbeddingThatHoldsNaN) {
  TinyFile tiny;
  tiny.own_head = true;
  EXPECT_EQ(load_refusal(tiny), "");
  tiny.vocabulary = 600;  // more than one task
  EXPECT_EQ(load_refusal(tiny), "");
  const auto expect_named = [&](std::size_t element) {
    tiny.spoilt = element;
    EXPECT_THAT(load_refusal(tiny),
                HasSubstr("tensor 'token_embd.weight': row " + std::to_string(element / 16) +
                          " holds NaN or infinity; allowed: finite weights"));
  };
  for (const std::size_t element :
       {0, 16 * 39 + 15, 16 * 255 + 1, 16 * 256, 16 * 511, 16 * 512 + 8, 16 * 599 + 15}) {
    expect_named(element);
  }
  tiny.vocabulary = 151936;  // Qwen's
  for (const bool own_head : {true, false}) {
    tiny.own_head = own_head;
    for (const std::size_t row : {65536, 131072, 151935}) expect_named(16 * row + 15);
  }
}

TEST(ModelConfig, AcceptsNeutralValuesOfUnsupportedFeatures) {
  TinyFile tiny;
  tiny.more_metadata = [](Builder& b) {
    b.add<std::uint32_t>("llama.expert_count", kU32, 0);
    b.add<std::uint32_t>("llama.attention.sliding_window", kU32, 512);  // never left
    b.add<float>("llama.logit_scale", kF32, 1.0F);
  };
  EXPECT_EQ(load_refusal(tiny), "");
}

std::string config_refusal(const TinyFile& tiny) {
  return refusal([&] { (void)config_of(tiny); });
}

// Each feature under its key, as a number of any type, a truth value, a text or a list: nothing but the value that
// changes no result is accepted.
TEST(ModelConfig, RefusesEveryFeatureThatIsNotComputed) {
  const std::vector<std::pair<std::string, int>> features = {{"expert_count", 0},
                                                             {"attention.sliding_window_pattern", 0},
                                                             {"attn_logit_softcapping", 0},
                                                             {"attention.logit_softcapping", 0},
                                                             {"final_logit_softcapping", 0},
                                                             {"logit_scale", 1},
                                                             {"residual_scale", 1},
                                                             {"embedding_scale", 1},
                                                             {"attention.scale", 0},
                                                             {"attention.q_lora_rank", 0},
                                                             {"attention.kv_lora_rank", 0},
                                                             {"attention.temperature_scale", 0},
                                                             {"attention.temperature_length", 0},
                                                             {"attention.clamp_kqv", 0},
                                                             {"attention.max_alibi_bias", 0},
                                                             {"use_parallel_residual", 0},
                                                             {"pooling_type", 0},
                                                             {"expert_shared_count", 0},
                                                             {"expert_shared_feed_forward_length", 0},
                                                             {"expert_weights_scale", 1},
                                                             {"expert_gating_func", 1},
                                                             {"expert_group_count", 0},
                                                             {"leading_dense_block_count", 0}};
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    for (const auto& [feature, neutral] : features) {
      if (architecture == "llama" && feature == "expert_count") continue;  // it has them
      const std::string key = architecture + "." + feature;
      const auto refused = [&](auto add) {
        TinyFile tiny;
        tiny.architecture = architecture;
        tiny.more_metadata = [&](Builder& b) { add(b); };
        const std::string message = config_refusal(tiny);
        EXPECT_TRUE(message.empty() || message.find(key + " asks for ") != std::string::npos) << message;
        return !message.empty();
      };
      for (const int value : {0, 1, 2, 255}) {
        const bool other = value != neutral;
        EXPECT_EQ(refused([&](Builder& b) { b.add(key, kU32, static_cast<std::uint32_t>(value)); }), other);
        EXPECT_EQ(refused([&](Builder& b) { b.add(key, kU8, static_cast<std::uint8_t>(value)); }), other);
        EXPECT_EQ(refused([&](Builder& b) { b.add(key, kF32, static_cast<float>(value)); }), other);
        EXPECT_EQ(refused([&](Builder& b) { b.add(key, kF64, value + 0x1p-30); }), true) << key;
      }
      EXPECT_TRUE(refused([&](Builder& b) { b.add<std::int32_t>(key, kI32, -1); })) << key;
      EXPECT_TRUE(refused([&](Builder& b) { b.add<std::int64_t>(key, kI64, std::int64_t{1} << 32); })) << key;
      EXPECT_TRUE(refused([&](Builder& b) { b.add<std::uint8_t>(key, kBool, 1); })) << key;
      EXPECT_EQ(refused([&](Builder& b) { b.add<std::uint8_t>(key, kBool, 0); }), neutral != 0) << key;
      EXPECT_TRUE(refused([&](Builder& b) { b.add_text(key, "0"); })) << key;
      EXPECT_TRUE(refused([&](Builder& b) { b.add_array<std::uint32_t>(key, kU32, {0}); })) << key;
    }
    // The same names of another architecture say nothing.
    TinyFile tiny;
    tiny.architecture = architecture;
    tiny.more_metadata = [](Builder& b) { b.add<std::uint32_t>("gemma.expert_count", kU32, 8); };
    EXPECT_EQ(config_refusal(tiny), "");
  }
}

// Of gemma3: which layers see a window, by the model's own period, by another and layer by layer.
TEST(ModelConfig, WindowsOfLayers) {
  const auto windows = [](const std::function<void(Builder&)>& more) {
    TinyFile tiny;
    tiny.architecture = "gemma3";
    tiny.more_metadata = [&](Builder& b) { b.add("gemma3.attention.sliding_window", kU32, 100U), more(b); };
    const ModelConfig config = config_of(tiny);
    std::vector<std::int64_t> found;
    for (const LayerSpec& layer : config.layer_specs) {
      found.push_back(layer.window);
      EXPECT_EQ(layer.rotation, layer.window > 0 ? 1 : 0);
    }
    EXPECT_EQ(config.rotations.size(), config.windowed_layers() > 0 ? 2U : 1U);
    return found;
  };
  constexpr const char* kPattern = "gemma3.attention.sliding_window_pattern";
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(windows([](Builder&) {}), (Windows{100, 100}));
  EXPECT_EQ(windows([](Builder& b) { b.add(kPattern, kU32, 2U); }), (Windows{100, 0}));
  EXPECT_EQ(windows([](Builder& b) { b.add(kPattern, kU32, 1U); }), (Windows{0, 0}));
  EXPECT_EQ(windows([](Builder& b) {
              b.add_array<std::uint8_t>(kPattern, kBool, {0, 1});
            }),
            (Windows{0, 100}));
  // One that holds the whole context changes nothing.
  EXPECT_EQ(windows([](Builder& b) { b.add("gemma3.context_length.of_another", kU32, 1U); }),
            (Windows{100, 100}));
  for (const std::uint32_t context : {99U, 100U, 101U}) {
    TinyFile tiny;
    tiny.architecture = "gemma3";
    tiny.context = context;
    tiny.more_metadata = [](Builder& b) { b.add("gemma3.attention.sliding_window", kU32, 100U); };
    const ModelConfig config = config_of(tiny);
    EXPECT_EQ(config.windowed_layers(), context > 100 ? 2 : 0) << context;
    // A window that holds the context changes nothing else.
    for (const LayerSpec& layer : config.layer_specs) EXPECT_EQ(layer.rotation, 1) << context;
  }
}

// Of cohere2 the layers that would see a window are rotated, those without are not, whatever the context holds.
TEST(ModelConfig, RotatesTheLayersOfWindows) {
  for (const std::uint32_t window : {100U, 600U}) {
    TinyFile tiny;
    tiny.architecture = "cohere2";
    tiny.more_metadata = [&](Builder& b) {
      b.add("cohere2.attention.sliding_window", kU32, window);
      b.add("cohere2.attention.sliding_window_pattern", kU32, 2U);
      b.add<float>("cohere2.attention.layer_norm_epsilon", kF32, 1e-5F)
          .add("cohere2.logit_scale", kF32, 0.5F);
    };
    const ModelConfig config = config_of(tiny);
    EXPECT_EQ(config.windowed_layers(), window < 512 ? 1 : 0);
    EXPECT_EQ(config.layer_specs[0].rotation, 0);
    EXPECT_EQ(config.layer_specs[1].rotation, LayerSpec::kNotRotated);
  }
}

// The published Ministrals take back what YaRN multiplies rows by; without the key nothing is taken back.
TEST(ModelConfig, TemperatureAndMagnitudeOfMistral3) {
  const auto read = [](float multiplier, const std::function<void(Builder&)>& more) {
    TinyFile tiny;
    tiny.architecture = "mistral3";
    tiny.more_metadata = [&](Builder& b) {
      b.add_text("mistral3.rope.scaling.type", "yarn").add("mistral3.rope.scaling.factor", kF32, 16.0F);
      b.add("mistral3.rope.scaling.yarn_log_multiplier", kF32, multiplier);
      more(b);
    };
    return config_of(tiny);
  };
  const double all = 1 + 0.1 * std::log(16.0);
  EXPECT_DOUBLE_EQ(read(0, [](Builder&) {}).rotations.front().magnitude, all);
  EXPECT_DOUBLE_EQ(read(1, [](Builder&) {}).rotations.front().magnitude, 1);
  EXPECT_DOUBLE_EQ(read(0.5F, [](Builder&) {}).rotations.front().magnitude,
                   all / (1 + 0.05 * std::log(16.0)));
  EXPECT_EQ(read(1, [](Builder&) {}).temperature_scale, 0);
  const auto scaled = [](Builder& b) { b.add("mistral3.attention.temperature_scale", kF32, 0.25F); };
  EXPECT_EQ(read(1, scaled).temperature_scale, 0.25);
  EXPECT_EQ(read(1, scaled).temperature_length, 512);
  const auto original = [&](Builder& b) {
    scaled(b);
    b.add("mistral3.rope.scaling.original_context_length", kU32, 100U);
  };
  EXPECT_EQ(read(1, original).temperature_length, 100);
  const auto own = [&](Builder& b) { original(b), b.add("mistral3.attention.temperature_length", kU32, 7U); };
  EXPECT_EQ(read(1, own).temperature_length, 7);
}

TEST(ModelConfig, RefusesWhatArchitecturesReadByName) {
  struct Case {
    const char* architecture;
    const char* named;
    std::function<void(Builder&)> add;
  };
  const auto number = [](const char* key, float value) {
    return [=](Builder& b) { b.add<float>(key, kF32, value); };
  };
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case cases[] = {
      {"gemma3", "gemma3.attention.sliding_window_pattern' is 0; allowed: 1 .. ",
       [](Builder& b) { b.add("gemma3.attention.sliding_window_pattern", kU32, 0U); }},
      {"gemma3", "gemma3.attention.sliding_window_pattern has 3 elements; allowed: one for each of 2 layers",
       [](Builder& b) {
         b.add_array<std::uint8_t>("gemma3.attention.sliding_window_pattern", kBool, {0, 1, 1});
       }},
      {"gemma3", "gemma3.attention.sliding_window_pattern",
       [](Builder& b) {
         b.add_array<std::uint32_t>("gemma3.attention.sliding_window_pattern", kU32, {0, 1});
       }},
      {"gemma3", "gemma3.attention.sliding_window_pattern",
       [](Builder& b) { b.add_text("gemma3.attention.sliding_window_pattern", "6"); }},
      {"gemma3", "gemma3.attention.sliding_window",
       [](Builder& b) { b.add("gemma3.attention.sliding_window", kU32, 1U << 31); }},
      {"gemma3", "gemma3.attention.sliding_window",
       [](Builder& b) { b.add("gemma3.attention.sliding_window", kI32, -1); }},
      {"gemma3", "gemma3.final_logit_softcapping is -30", number("gemma3.final_logit_softcapping", -30)},
      {"gemma3", "gemma3.attn_logit_softcapping asks for soft caps",
       number("gemma3.attn_logit_softcapping", 50)},
      {"gemma2", "gemma2.attn_logit_softcapping is 0; allowed", number("gemma2.attn_logit_softcapping", 0)},
      {"gemma2", "gemma2.final_logit_softcapping", number("gemma2.final_logit_softcapping", nan)},
      {"granite", "granite.embedding_scale is 0", number("granite.embedding_scale", 0)},
      {"granite", "granite.residual_scale is -1", number("granite.residual_scale", -1)},
      {"granite", "granite.logit_scale is 0", number("granite.logit_scale", 0)},
      {"granite", "granite.attention.scale", number("granite.attention.scale", nan)},
      {"granite", "granite.expert_count asks for mixture of experts",
       [](Builder& b) { b.add("granite.expert_count", kU32, 8U); }},
      {"granite", "granite.attention.sliding_window is 8 of a context of 512",
       [](Builder& b) { b.add("granite.attention.sliding_window", kU32, 8U); }},
      {"cohere2", "cohere2.logit_scale is 0; allowed: a number > 0", number("cohere2.logit_scale", 0)},
      {"cohere2", "cohere2.logit_scale' holds nan", number("cohere2.logit_scale", nan)},
      {"cohere2", "cohere2.logit_scale", [](Builder&) {}},
      {"cohere2", "cohere2.attention.layer_norm_epsilon", number("cohere2.logit_scale", 0.5F)},
      {"mistral3", "mistral3.attention.temperature_scale is -1",
       number("mistral3.attention.temperature_scale", -1)},
      {"mistral3", "mistral3.attention.temperature_scale' holds nan",
       number("mistral3.attention.temperature_scale", nan)},
      {"mistral3", "mistral3.attention.temperature_length' is 0; allowed: 1 .. ",
       [](Builder& b) {
         b.add<float>("mistral3.attention.temperature_scale", kF32, 0.1F);
         b.add("mistral3.attention.temperature_length", kU32, 0U);
       }},
      {"mistral3", "mistral3.rope.scaling.original_context_length' is 0; allowed: 1 .. ",
       [](Builder& b) { b.add("mistral3.rope.scaling.original_context_length", kU32, 0U); }},
      {"mistral3", "mistral3.rope.scaling.yarn_log_multiplier is -1",
       number("mistral3.rope.scaling.yarn_log_multiplier", -1)},
      {"mistral3", "'mistral3.rope.scaling.yarn_ext_factor' is not supported",
       number("mistral3.rope.scaling.yarn_ext_factor", 1)},
      {"qwen3moe", "qwen3moe.expert_used_count' is 3; allowed: 1 .. 2",
       [](Builder& b) {
         b.add("qwen3moe.expert_count", kU32, 2U), b.add("qwen3moe.expert_used_count", kU32, 3U);
       }},
      {"qwen3moe", "qwen3moe.expert_used_count' is 0",
       [](Builder& b) {
         b.add("qwen3moe.expert_count", kU32, 2U), b.add("qwen3moe.expert_used_count", kU32, 0U);
       }},
      {"qwen3moe", "qwen3moe.expert_count' is 1025; allowed: 0 .. 1024",
       [](Builder& b) { b.add("qwen3moe.expert_count", kU32, 1025U); }},
      {"qwen3moe", "qwen3moe.expert_feed_forward_length' is 0",
       [](Builder& b) {
         b.add("qwen3moe.expert_count", kU32, 2U), b.add("qwen3moe.expert_used_count", kU32, 1U);
         b.add("qwen3moe.expert_feed_forward_length", kU32, 0U);
       }},
      {"qwen2moe", "qwen2moe.expert_shared_feed_forward_length' is 0; allowed: 1 .. ",
       [](Builder& b) {
         b.add("qwen2moe.expert_count", kU32, 2U), b.add("qwen2moe.expert_used_count", kU32, 1U);
         b.add("qwen2moe.expert_shared_feed_forward_length", kU32, 0U);
       }},
      {"qwen2moe", "qwen2moe.expert_shared_feed_forward_length' is 4294967295; allowed: 1 .. 1048576",
       [](Builder& b) {
         b.add("qwen2moe.expert_count", kU32, 2U), b.add("qwen2moe.expert_used_count", kU32, 1U);
         b.add("qwen2moe.expert_shared_feed_forward_length", kU32, 0xFFFFFFFFU);
       }},
      {"qwen2moe", "qwen2moe.expert_shared_count asks for shared experts",
       [](Builder& b) { b.add("qwen2moe.expert_shared_count", kU32, 1U); }},
      {"qwen2moe", "qwen2moe.expert_weights_scale asks for", number("qwen2moe.expert_weights_scale", 2)},
      {"llama", "llama.rope.freq_base_swa asks for", number("llama.rope.freq_base_swa", 10000)},
  };
  for (const Case& one : cases) {
    TinyFile tiny;
    tiny.architecture = one.architecture;
    tiny.more_metadata = one.add;
    EXPECT_THAT(config_refusal(tiny), HasSubstr(one.named));
  }
  TinyFile windows;
  windows.architecture = "gemma3";
  windows.more_metadata = [](Builder& b) {
    b.add("gemma3.attention.sliding_window", kU32, 8U);
    b.add<float>("gemma3.rope.freq_base_swa", kF32, 0.5F);
  };
  EXPECT_THAT(config_refusal(windows), HasSubstr("gemma3.rope.freq_base_swa is 0.5; allowed: 1 or more"));
}

// Of deepseek2, beside what makes a file of it.
TEST(ModelConfig, RefusesWhatLatentAttentionCannotBe) {
  struct Case {
    const char* key;
    double value;
    const char* said;
  };
  const auto message = [](const Case& one, bool latent = true) {
    TinyFile tiny;
    tiny.architecture = "deepseek2";
    tiny.more_metadata = [&](Builder& b) {
      const std::string own = std::string("deepseek2.") + one.key;
      const auto add = [&](const char* key, std::uint32_t value) {
        if (own != std::string("deepseek2.") + key) b.add(std::string("deepseek2.") + key, kU32, value);
      };
      if (latent) add("attention.kv_lora_rank", 4);
      add("rope.dimension_count", 4), add("expert_count", 4), add("expert_used_count", 2);
      if (std::floor(one.value) == one.value && one.value >= 0) {
        b.add(own, kU32, static_cast<std::uint32_t>(one.value));
      } else {
        b.add(own, kF32, static_cast<float>(one.value));
      }
    };
    return config_refusal(tiny);
  };
  EXPECT_EQ(message({"leading_dense_block_count", 2, ""}), "");
  EXPECT_EQ(message({"expert_group_count", 1, ""}), "");
  EXPECT_EQ(message({"expert_shared_count", 0, ""}), "");
  EXPECT_THAT(message({"expert_shared_count", 1, ""}, false), HasSubstr("deepseek2.attention.kv_lora_rank"));
  for (const Case& one : {Case{"leading_dense_block_count", 3, "is 3; allowed: 0 .. 2"},
                          {"expert_shared_count", 65, "is 65; allowed: 0 .. 64"},
                          {"attention.kv_lora_rank", 0, "is 0; allowed: 1 .. 65536"},
                          {"attention.key_length_mla", 0, "is 0; allowed: 1 .. 65536"},
                          {"attention.key_length_mla", 4, "rope.dimension_count' is 4; allowed: 2 .. 3"},
                          {"attention.value_length_mla", 65537, "is 65537; allowed: 1 .. 65536"},
                          {"rope.dimension_count", 8, "is 8; allowed: 2 .. 7"},
                          {"expert_weights_scale", 0, "is 0; allowed: a number > 0"},
                          {"expert_weights_scale", -0.5, "is -0.5; allowed: a number > 0"},
                          {"expert_group_count", 8, "is 8; allowed: 0 .. 1"},
                          {"expert_gating_func", 2, "asks for another function than softmax"},
                          {"attention.q_lora_rank", 8, "asks for queries of latent rows"},
                          {"rope.scaling.yarn_log_multiplier", -0.5, "is -0.5; allowed: a number > 0"}}) {
    EXPECT_THAT(message(one), AllOf(HasSubstr(std::string("deepseek2.")), HasSubstr(one.said))) << one.key;
  }
}

TEST(ModelConfig, ReadsDeepseek2) {
  TinyFile tiny;
  tiny.architecture = "deepseek2";
  tiny.more_metadata = [](Builder& b) {
    for (const auto& [key, value] : {std::pair<const char*, std::uint32_t>{"attention.kv_lora_rank", 4},
                                     {"attention.key_length", 8},
                                     {"attention.key_length_mla", 7},
                                     {"attention.value_length_mla", 5},
                                     {"rope.dimension_count", 4},
                                     {"expert_count", 4},
                                     {"expert_used_count", 2},
                                     {"expert_feed_forward_length", 6},
                                     {"expert_shared_count", 3},
                                     {"leading_dense_block_count", 1}}) {
      b.add(std::string("deepseek2.") + key, kU32, value);
    }
    b.add_text("deepseek2.rope.scaling.type", "yarn").add("deepseek2.rope.scaling.factor", kF32, 40.0F);
    b.add("deepseek2.rope.scaling.yarn_log_multiplier", kF32, 0.0707F);
  };
  const ModelConfig config = config_of(tiny);
  EXPECT_EQ(std::tuple(config.heads_kv, config.d_head, config.d_value, config.latent),
            std::tuple(2, 7, 5, 4));
  EXPECT_EQ(std::tuple(config.feed_forward, config.dense_feed_forward, config.shared_feed_forward),
            std::tuple(6, 24, 18));
  EXPECT_TRUE(config.layer_specs[0].dense && !config.layer_specs[1].dense);
  EXPECT_TRUE(config.weights_of_all);
  EXPECT_DOUBLE_EQ(config.rotations.front().magnitude, 1);
  const double sharper = 1 + 0.1 * 0.707 * std::log(40.0);
  EXPECT_NEAR(*config.attention_scale, sharper * sharper / std::sqrt(7.0), 1e-7);
}

// LongRoPE needs both tensors and the length that decides between them.
TEST(ModelConfig, RefusesHalfALongRope) {
  struct Case {
    const char* tensor;
    std::vector<float> factors;
    const char* named;
  };
  for (const Case& one :
       {Case{"rope_factors_long.weight", {1, 2, 3, 4}, "'rope_factors_short.weight' is missing"},
        Case{"rope_factors_short.weight", {1, 2, 3, 4}, "'rope_factors_long.weight' is missing"},
        Case{"rope_factors_short.weight", {1, 2, 3}, "rope_factors_short.weight"},
        Case{"rope_factors_short.weight", {1, 2, 0, 4}, "holds 0; allowed: numbers > 0"},
        Case{"rope_factors_short.weight", {1, 2, NAN, 4}, "holds nan; allowed: numbers > 0"}}) {
    TinyFile tiny;
    tiny.architecture = "phi3";
    tiny.rope_tensor = one.tensor;
    tiny.rope_freqs = one.factors;
    EXPECT_THAT(config_refusal(tiny), HasSubstr(one.named));
  }
  TinyFile other;
  other.rope_tensor = "rope_factors_long.weight";
  other.rope_freqs = {1, 2, 3, 4};
  EXPECT_THAT(load_refusal(other), HasSubstr("rope_factors_long.weight"));
}

// A window is left alone where it holds the context, whatever their sizes.
TEST(ModelConfig, WindowsOnEachSideOfTheContext) {
  for (const std::uint32_t context : {512U, 65536U, 131072U, 1U << 31}) {
    for (const std::uint32_t window :
         {0U, 1U, 511U, 512U, 65535U, 65536U, 65537U, 131071U, 131072U, context - 1}) {
      TinyFile tiny;
      tiny.context = std::min(context, (1U << 31) - 1);
      tiny.more_metadata = [&](Builder& b) { b.add("llama.attention.sliding_window", kU32, window); };
      const bool inside = window > 0 && window < tiny.context;
      EXPECT_EQ(config_refusal(tiny).empty(), !inside) << window << " of " << tiny.context;
    }
    TinyFile tiny;
    tiny.context = context;
    EXPECT_EQ(config_refusal(tiny).empty(), context <= 131072) << context;
  }
}

TEST(ModelConfig, AcceptsLimitsThemselves) {
  TinyFile tiny;
  tiny.epsilon = false;
  tiny.more_metadata = [](Builder& b) {
    b.add<float>("llama.attention.layer_norm_rms_epsilon", kF32, 1.0F);
    b.add<float>("llama.rope.freq_base", kF32, 1.0F);
    b.add<float>("llama.rope.scaling.factor", kF32, 1.0F);
    b.add<std::uint32_t>("llama.rope.dimension_count", kU32, 8);
  };
  EXPECT_EQ(load_refusal(tiny), "");
  tiny = TinyFile();
  tiny.more_metadata = [](Builder& b) {
    b.add_text("llama.rope.scaling.type", "yarn");
    b.add<float>("llama.rope.scaling.factor", kF32, 2.0F);
    b.add<float>("llama.rope.freq_base", kF32, 1.0F);
  };
  EXPECT_THAT(load_refusal(tiny), HasSubstr("llama.rope.freq_base is 1; allowed: above 1 with YaRN"));
  tiny.more_metadata = [](Builder& b) {
    b.add_text("llama.rope.scaling.type", "yarn");
    b.add<float>("llama.rope.scaling.factor", kF32, 2.0F);
    b.add<float>("llama.rope.freq_base", kF32, 1.5F);
    b.add<std::uint32_t>("llama.attention.sliding_window", kU32, 0);
  };
  EXPECT_EQ(load_refusal(tiny), "");
  // 2^20 numbers a token.
  tiny = TinyFile();
  tiny.head_count = 16;
  for (const std::uint32_t length : {65536U, 32768U}) {
    tiny.more_metadata = [&](Builder& b) {
      b.add<std::uint32_t>("llama.attention.key_length", kU32, length);
      b.add<std::uint32_t>("llama.attention.value_length", kU32, 65536);
    };
    EXPECT_EQ(config_of(tiny).d_value, 65536);
  }
  tiny.head_count = 32;
  const auto bytes = tiny.build();
  EXPECT_THAT(refusal([&] { (void)read_model_config(GgufFile::parse(bytes, "m.gguf")); }),
              HasSubstr("allowed: up to 1048576 numbers a token"));
}

// A vocabulary beyond 2^31 - 1, whose ids are 32 bits. Its file is a hole, which takes no disk.
TEST(ModelConfig, RefusesAVocabularyBeyond32Bits) {
  constexpr std::uint64_t kRows = std::uint64_t{1} << 31;
  constexpr std::uint64_t kRowBytes = 18;  // of Q4_0, 32 elements
  for (const std::uint64_t rows : {kRows - 1, kRows}) {
    Builder b;
    b.add_text("general.architecture", "llama");
    for (const auto& [key, value] : {std::pair<const char*, std::uint32_t>{"context_length", 512},
                                     {"block_count", 2},
                                     {"embedding_length", 32},
                                     {"feed_forward_length", 24},
                                     {"attention.head_count", 2}}) {
      b.add<std::uint32_t>(std::string("llama.") + key, kU32, value);
    }
    b.add<float>("llama.attention.layer_norm_rms_epsilon", kF32, 1e-5F);
    b.add_tensor("token_embd.weight", {32, rows}, 2, 0);
    const std::vector<std::byte> header = b.build();
    const std::string name = ::testing::TempDir() + "/headwater-vocabulary.gguf";
    std::ofstream(name, std::ios::binary)
        .write(reinterpret_cast<const char*>(header.data()), static_cast<std::streamsize>(header.size()));
    std::filesystem::resize_file(name, (header.size() + 31) / 32 * 32 + rows * kRowBytes);
    const auto read = [&] { return read_model_config(GgufFile::open(name)).vocabulary; };
    if (rows < kRows) {
      EXPECT_EQ(read(), static_cast<std::int64_t>(rows));
    } else {
      EXPECT_THAT(refusal([&] { (void)read(); }), HasSubstr("token_embd.weight"));
    }
    std::filesystem::remove(name);
  }
}

// Without a key length and a count of rotated dimensions both come from the width and the heads.
TEST(ModelConfig, BlamesTheKeyThatIsWrong) {
  TinyFile tiny;
  tiny.head_count = 16;
  tiny.head_count_kv = 16;
  EXPECT_THAT(load_refusal(tiny),
              HasSubstr("llama.attention.key_length is missing, and 16 query heads make rows of 1 of a "
                        "width of 16; allowed: an even number"));
}

TEST(ModelConfig, LengthsOfKeysAndOfValuesDefaultToWidthOverHeads) {
  for (const std::uint32_t length : {2U, 64U, 128U}) {
    for (const char* name : {"key", "value"}) {
      TinyFile tiny;  // 2 query heads, 16 wide
      tiny.more_metadata = [&](Builder& b) {
        b.add<std::uint32_t>(std::string("llama.attention.") + name + "_length", kU32, length);
      };
      const bool of_keys = name == std::string("key");
      EXPECT_EQ(config_of(tiny).d_head, of_keys ? length : 8);
      EXPECT_EQ(config_of(tiny).d_value, of_keys ? 8 : length);
      tiny.head_count = tiny.head_count_kv = 3;
      EXPECT_THAT(load_refusal(tiny),
                  HasSubstr(std::string("llama.attention.") + (of_keys ? "value" : "key") +
                            "_length is missing, and 3 query heads do not divide"));
    }
  }
}

TEST(ModelConfig, IgnoresFactorsBesideTypeNone) {
  TinyFile tiny;
  tiny.more_metadata = [](Builder& b) {
    b.add_text("llama.rope.scaling.type", "none");
    b.add<float>("llama.rope.scaling.factor", kF32, 4.0F);
    b.add<float>("llama.rope.scale_linear", kF32, 8.0F);
    b.add<std::uint32_t>("llama.rope.scaling.original_context_length", kU32, 64);
    b.add<std::uint8_t>("llama.rope.scaling.finetuned", kBool, 1);
  };
  EXPECT_EQ(config_of(tiny).rotations.front().inverse, config_of(TinyFile{}).rotations.front().inverse);
}

// The new key is the one that counts where both are there, as with llama.cpp.
TEST(ModelConfig, ReadsTheOldFactorOnlyWithoutTheNew) {
  const double plain = config_of(TinyFile{}).rotations.front().inverse[1];
  TinyFile tiny;
  tiny.more_metadata = [](Builder& b) {
    b.add<float>("llama.rope.scaling.factor", kF32, 4.0F);
    b.add<float>("llama.rope.scale_linear", kF32, 8.0F);
  };
  EXPECT_DOUBLE_EQ(config_of(tiny).rotations.front().inverse[1], plain / 4);
  tiny.more_metadata = [](Builder& b) { b.add<float>("llama.rope.scale_linear", kF32, 8.0F); };
  EXPECT_DOUBLE_EQ(config_of(tiny).rotations.front().inverse[1], plain / 8);
}

/// Frequencies and magnitude as the paper's own code has them (Peng et al., 2023), of r rotated elements.
RopeFrequencies yarn_by_definition(std::int64_t r, double theta, double factor, double context, double fast,
                                   double slow, double magnitude) {
  const auto dimension = [&](double rotations) {
    return static_cast<double>(r) * std::log(context / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(dimension(fast)), 0.0);
  double high = std::min(std::ceil(dimension(slow)), static_cast<double>(r - 1));
  if (low == high) high += 0.001;
  RopeFrequencies wanted;
  wanted.magnitude = magnitude * (0.1 * std::log(factor) + 1);
  for (std::int64_t i = 0; i < r / 2; ++i) {
    const double plain = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(r));
    const double kept = 1 - std::min(1.0, std::max(0.0, (static_cast<double>(i) - low) / (high - low)));
    wanted.inverse.push_back(plain / factor * (1 - kept) + plain * kept);
  }
  return wanted;
}

// Each number under its own key; a context that is not there is the model's.
TEST(ModelConfig, ReadsEveryNumberOfYarn) {
  struct Case {
    float factor;
    std::uint32_t original;
    float fast, slow, magnitude, theta;
    std::uint32_t rotated;
  };
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    for (const auto& one : {Case{4, 32768, 0, 0, 0, 1e6F, 0},
                            {2, 0, 0, 0, 0, 1e4F, 0},
                            {8, 131072, 64, 2, 0, 5e5F, 0},
                            {4, 4096, 16, 0, 0.5F, 1e4F, 64},
                            {4, 4096, 0, 8, 1.25F, 1e4F, 0},
                            {40, 65536, 5, 3, 0, 1e4F, 32}}) {
      TinyFile tiny;
      tiny.architecture = architecture;
      tiny.context = 70000;
      tiny.more_metadata = [&](Builder& b) {
        const std::string scaling = architecture + ".rope.scaling.";
        b.add<std::uint32_t>(architecture + ".attention.key_length", kU32, 128);
        b.add_text(scaling + "type", "yarn").add(scaling + "factor", kF32, one.factor);
        b.add(architecture + ".rope.freq_base", kF32, one.theta);
        if (one.original > 0) b.add(scaling + "original_context_length", kU32, one.original);
        if (one.fast > 0) b.add(scaling + "yarn_beta_fast", kF32, one.fast);
        if (one.slow > 0) b.add(scaling + "yarn_beta_slow", kF32, one.slow);
        if (one.magnitude > 0) b.add(scaling + "attn_factor", kF32, one.magnitude);
        if (one.rotated > 0) b.add(architecture + ".rope.dimension_count", kU32, one.rotated);
      };
      const auto or_else = [](auto value, double otherwise) {
        return value > 0 ? static_cast<double>(value) : otherwise;
      };
      const std::int64_t r = one.rotated > 0 ? one.rotated : 128;
      const RopeFrequencies wanted = yarn_by_definition(
          r, static_cast<double>(one.theta), static_cast<double>(one.factor), or_else(one.original, 70000),
          or_else(one.fast, 32), or_else(one.slow, 1), or_else(one.magnitude, 1));
      const RopeFrequencies got = config_of(tiny).rotations.front();
      ASSERT_EQ(got.inverse.size(), wanted.inverse.size());
      EXPECT_NEAR(got.magnitude, wanted.magnitude, 1e-12);
      for (std::size_t i = 0; i < got.inverse.size(); ++i) {
        EXPECT_NEAR(got.inverse[i], wanted.inverse[i], 1e-12 * wanted.inverse[i])
            << architecture << ", factor " << one.factor << ", pair " << i;
      }
    }
  }
}

// A tensor of divisors beside a scaling: both slow down.
TEST(ModelConfig, DivisorsAndAScalingTogether) {
  TinyFile tiny;
  tiny.rope_freqs = {1, 2, 3, 4};
  const auto plain = config_of(TinyFile{}).rotations.front().inverse;
  for (const char* const type : {"none", "linear", "yarn"}) {
    tiny.more_metadata = [&](Builder& b) {
      b.add_text("llama.rope.scaling.type", type).add("llama.rope.scaling.factor", kF32, 4.0F);
    };
    const auto yarn = yarn_by_definition(8, 10000.0, 4, 512, 32, 1, 1).inverse;
    const auto got = config_of(tiny).rotations.front().inverse;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const double scaled = type == std::string("none")     ? plain[i]
                            : type == std::string("linear") ? plain[i] / 4
                                                            : yarn[i];
      EXPECT_NEAR(got[i], scaled / static_cast<double>(i + 1), 1e-12 * got[i]) << type << ", pair " << i;
    }
  }
}

/// Values of a rotation by their keys without the architecture.
using Rotation = std::map<std::string, std::variant<std::string, float, std::int64_t>>;

void write_rotation(Builder& b, const std::string& architecture, const Rotation& values) {
  for (const auto& [name, value] : values) {
    const std::string key = architecture + "." + name;
    if (const auto* const text = std::get_if<std::string>(&value)) {
      b.add_text(key, *text);
    } else if (const auto* const number = std::get_if<float>(&value)) {
      b.add(key, kF32, *number);
    } else {
      b.add(key, kU32, static_cast<std::uint32_t>(std::get<std::int64_t>(value)));
    }
  }
}

/// The configuration of a file that says `written`, of which `replaced` takes the place.
ModelConfig replaced_config(TinyFile tiny, const Rotation& written, const Rotation& replaced) {
  const auto more = tiny.more_metadata;
  tiny.more_metadata = [&](Builder& b) { more(b), write_rotation(b, tiny.architecture, written); };
  const auto bytes = tiny.build();
  GgufFile file = GgufFile::parse(bytes, "m.gguf");
  for (const auto& [name, value] : replaced)
    file.replace({tiny.architecture + "." + name, value, "--" + name});
  return read_model_config(file);
}

void expect_same_rotations(const ModelConfig& got, const ModelConfig& wanted) {
  ASSERT_EQ(got.rotations.size(), wanted.rotations.size());
  for (std::size_t i = 0; i < got.rotations.size(); ++i) {
    EXPECT_EQ(got.rotations[i].inverse, wanted.rotations[i].inverse) << "rotation " << i;
    EXPECT_EQ(got.rotations[i].magnitude, wanted.rotations[i].magnitude) << "rotation " << i;
  }
}

// What stands in place of a file's value is what that file would be with it, bit for bit, whatever the file says itself, of
// models that round pairs, that do not, that have a second rotation and that leave layers alone. Finds: a key that is not
// replaced, or replaced under another name; a value of the file that shines through; a number of other precision; windows
// that follow.
TEST(ModelConfig, ValuesInPlaceOfTheFilesAreAsIfWritten) {
  const Rotation files[] = {
      {},
      {{"rope.freq_base", 1e6F}},
      {{"rope.scale_linear", 8.0F}},
      {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 8.0F}},
      {{"rope.scaling.type", "none"}, {"rope.scaling.factor", 8.0F}, {"rope.scaling.attn_factor", 1.25F}},
      {{"rope.scaling.type", "yarn"},
       {"rope.scaling.factor", 2.0F},
       {"rope.scaling.original_context_length", std::int64_t{4096}},
       {"rope.scaling.attn_factor", 0.75F},
       {"rope.scaling.yarn_beta_fast", 16.0F},
       {"rope.scaling.yarn_beta_slow", 2.0F},
       {"rope.freq_base", 5e5F}}};
  const Rotation flags[] = {{{"rope.freq_base", 2e5F}},
                            {{"rope.scaling.type", "none"}},
                            {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 3.3F}},
                            {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}},
                            {{"rope.scaling.type", "yarn"},
                             {"rope.scaling.factor", 4.7F},
                             {"rope.scaling.original_context_length", std::int64_t{300}},
                             {"rope.scaling.attn_factor", 1.1F},
                             {"rope.scaling.yarn_beta_fast", 20.3F},
                             {"rope.scaling.yarn_beta_slow", 0.7F},
                             {"rope.freq_base", 7e4F}}};
  for (const char* const architecture : {"llama", "qwen3", "gemma3", "smollm3", "gpt-oss"}) {
    TinyFile tiny;
    tiny.architecture = architecture;
    tiny.more_metadata = [&](Builder& b) {
      b.add(std::string(architecture) + ".attention.key_length", kU32, 128U);
      const bool windows = architecture == std::string("gemma3") || architecture == std::string("gpt-oss");
      if (windows) b.add(std::string(architecture) + ".attention.sliding_window", kU32, 100U);
    };
    for (const Rotation& written : files) {
      const ModelConfig plain = replaced_config(tiny, written, {});
      for (const Rotation& asked : flags) {
        SCOPED_TRACE(::testing::Message()
                     << architecture << ", file " << &written - files << ", flags " << &asked - flags);
        Rotation both = asked;
        both.insert(written.begin(), written.end());
        const ModelConfig wanted = replaced_config(tiny, both, {});
        const ModelConfig got = replaced_config(tiny, written, asked);
        expect_same_rotations(got, wanted);
        EXPECT_EQ(got.context, plain.context);
        for (std::size_t i = 0; i < got.layer_specs.size(); ++i) {
          EXPECT_EQ(got.layer_specs[i].rotation, plain.layer_specs[i].rotation);
        }
        if (got.rotations.size() > 1) {
          EXPECT_EQ(got.rotations[1].inverse, plain.rotations[1].inverse);
        }
      }
    }
  }
}

// A factor alone is the file's own kind of scaling, and linear where it has none, as with llama.cpp. Finds: a kind that a
// factor changes.
TEST(ModelConfig, AFactorInPlaceOfTheFilesKeepsItsKind) {
  const Rotation factor = {{"rope.scaling.factor", 4.0F}};
  const auto plain = config_of(TinyFile{}).rotations.front().inverse;
  const auto linear = replaced_config({}, {}, factor).rotations.front();
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(linear.inverse[i], plain[i] / 4);
  EXPECT_EQ(linear.magnitude, 1.0);
  const Rotation yarn = {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 2.0F}};
  EXPECT_EQ(replaced_config({}, yarn, factor).rotations.front().magnitude, 1 + 0.1 * std::log(4.0));
}

// How far a conversation may go without a warning: a factor of the caller counts from what YaRN was told the model was trained
// on, else from the context; what the file says itself is in its context. Finds: another start, a product beyond all ids.
TEST(ModelConfig, AFactorInPlaceOfTheFilesStretchesTheContext) {
  const Rotation yarn = {{"rope.scaling.type", "yarn"},
                         {"rope.scaling.factor", 4.0F},
                         {"rope.scaling.original_context_length", std::int64_t{300}}};
  struct Case {
    Rotation written, replaced;
    std::int64_t reach;
  };
  const Case cases[] = {{{}, {}, 512},
                        {yarn, {}, 512},
                        {{}, {{"rope.freq_base", 1e6F}}, 512},
                        {{}, {{"rope.scaling.factor", 2.5F}}, 1280},
                        {{}, yarn, 1200},
                        {yarn, {{"rope.scaling.factor", 8.0F}}, 2400},
                        {yarn, {{"rope.scaling.factor", 1.5F}}, 512},
                        {yarn, {{"rope.scaling.type", "none"}}, 512},
                        {{}, {{"rope.scaling.factor", 3e38F}}, (std::int64_t{1} << 31) - 1}};
  for (const Case& one : cases) {
    const ModelConfig config = replaced_config({}, one.written, one.replaced);
    EXPECT_EQ(config.context, 512);
    EXPECT_EQ(config.reach, one.reach) << "case " << &one - cases;
  }
}

// A window that holds the file's context cuts into one that is stretched beyond it. Finds: a stretched model without its
// windows.
TEST(ModelConfig, WindowsOfAStretchedContext) {
  const Rotation factor = {{"rope.scaling.factor", 4.0F}};
  for (const std::uint32_t window : {512U, 2047U, 2048U}) {
    TinyFile tiny;
    tiny.more_metadata = [&](Builder& b) {
      b.add(tiny.architecture + ".attention.sliding_window", kU32, window);
    };
    const bool cuts = window < 2048;
    const std::string refused = refusal([&] { (void)replaced_config(tiny, {}, factor); });
    EXPECT_EQ(refused.find("sliding_window is " + std::to_string(window) + " of a context of 2048") !=
                  std::string::npos,
              cuts)
        << refused;
    EXPECT_EQ(refused.empty(), !cuts);
    EXPECT_EQ(config_refusal(tiny), "");
    tiny.architecture = "gemma3";
    EXPECT_EQ(replaced_config(tiny, {}, factor).windowed_layers(), cuts ? 2 : 0);
    EXPECT_EQ(config_of(tiny).windowed_layers(), 0);
  }
}

// A refusal says who gave the value, and the value. Finds: the file's key blamed for it; a value that changes nothing and is
// taken in silence; a scaling on top of LongRoPE.
TEST(ModelConfig, RefusesValuesInPlaceOfTheFilesByTheirSource) {
  const Rotation none = {};
  const Rotation yarn = {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}};
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    Rotation written, replaced;
    const char* said;
  };
  const Case cases[] = {
      {none, {{"rope.freq_base", 0.3F}}, "--rope.freq_base is 0.3; allowed: 1 or more"},
      {none, {{"rope.freq_base", -1.0F}}, "--rope.freq_base is -1; allowed: a number > 0"},
      {none, {{"rope.freq_base", NAN}}, "--rope.freq_base holds nan; it must be finite"},
      {yarn, {{"rope.freq_base", 1.0F}}, "--rope.freq_base is 1; allowed: above 1 with YaRN"},
      {none, {{"rope.scaling.factor", 0.7F}}, "--rope.scaling.factor is 0.7; allowed: at least 1"},
      {none, {{"rope.scaling.factor", 0.0F}}, "--rope.scaling.factor is 0; allowed: a number > 0"},
      {yarn, {{"rope.scaling.factor", infinity}}, "--rope.scaling.factor holds inf; it must be finite"},
      {none, {{"rope.scaling.type", "ntk"}}, "--rope.scaling.type is 'ntk'; allowed: none, linear, yarn"},
      {none,
       {{"rope.scaling.type", "yarn"}},
       "--rope.scaling.type is yarn, and llama.rope.scaling.factor is missing; allowed: with a rope scale"},
      {{{"rope.scaling.type", "none"}},
       {{"rope.scaling.factor", 4.0F}},
       "--rope.scaling.factor is 4, and the scaling is none; allowed: with linear or yarn"},
      {yarn,
       {{"rope.scaling.type", "none"}, {"rope.scaling.yarn_beta_fast", 4.0F}},
       "--rope.scaling.yarn_beta_fast is 4, and the scaling is none; allowed: with yarn"},
      {none,
       {{"rope.scaling.attn_factor", 1.0F}},
       "--rope.scaling.attn_factor is 1, and the scaling is none; allowed: with yarn"},
      {none,
       {{"rope.scaling.yarn_ext_factor", 1.0F}},
       "--rope.scaling.yarn_ext_factor is 1, and the scaling is none; allowed: with yarn"},
      {none,
       {{"rope.scaling.factor", 4.0F}, {"rope.scaling.yarn_beta_slow", 1.0F}},
       "--rope.scaling.yarn_beta_slow is 1, and the scaling is linear; allowed: with yarn"},
      {none,
       {{"rope.scaling.factor", 4.0F}, {"rope.scaling.original_context_length", std::int64_t{64}}},
       "--rope.scaling.original_context_length is 64, and the scaling is linear; allowed: with yarn"},
      {yarn,
       {{"rope.scaling.original_context_length", std::int64_t{0}}},
       "--rope.scaling.original_context_length is 0; allowed: 1 .. 2147483647"},
      {yarn,
       {{"rope.scaling.yarn_beta_slow", -0.1F}},
       "--rope.scaling.yarn_beta_slow is -0.1; allowed: a number > 0"}};
  for (const Case& one : cases) {
    EXPECT_EQ(refusal([&] { (void)replaced_config({}, one.written, one.replaced); }),
              std::string("'m.gguf': ") + one.said);
  }
  EXPECT_EQ(refusal([&] { (void)replaced_config({}, yarn, {{"rope.scaling.yarn_ext_factor", 1.0F}}); }), "");
}

// Finds: a scaling, or the length that decides between its rotations, that reaches a model with LongRoPE.
TEST(ModelConfig, LongRopeTakesABaseAndNoScaling) {
  const std::string path = std::string(ARCHITECTURES) + "/phi3-long.gguf";
  const auto read = [&](const Replacement& one) {
    return read_model_config(open_model_file(path, {&one, 1}));
  };
  const ModelConfig plain = read_model_config(GgufFile::open(path));
  const ModelConfig based = read({"rope.freq_base", 5e5F, "--rope-freq-base"});
  EXPECT_EQ(based.long_beyond, plain.long_beyond);
  ASSERT_EQ(based.rotations.size(), 2U);
  for (std::size_t r = 0; r < 2; ++r) EXPECT_NE(based.rotations[r].inverse, plain.rotations[r].inverse);
  for (const Replacement& one : {Replacement{"rope.scaling.type", "none", "--rope-scaling"},
                                 {"rope.scaling.factor", 4.0F, "--rope-scale"}}) {
    EXPECT_THAT(refusal([&] { (void)read(one); }),
                AllOf(HasSubstr(one.source + " is "),
                      HasSubstr(", and the model has a scaling of its own, LongRoPE; allowed: without it")));
  }
}

TEST(RopeScaling, LinearSlowsEveryPairDown) {
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::linear;
  scaling.factor = 4;
  const auto plain = rope_frequencies(64, 10000.0, {}, {});
  const auto slow = rope_frequencies(64, 10000.0, {}, scaling);
  EXPECT_EQ(slow.magnitude, 1.0);
  for (std::size_t i = 0; i < 32; ++i) EXPECT_DOUBLE_EQ(slow.inverse[i], plain.inverse[i] / 4);
}

// By the formula, for the pairs of a small row and of Llama 3's, which slows the slow half of 64 pairs down.
TEST(RopeScaling, DivisorsAreDividedBy) {
  for (const std::int64_t r : {8, 128}) {
    std::vector<float> divisors;
    for (std::int64_t i = 0; i < r / 2; ++i) {
      divisors.push_back(i < r / 4 ? 1.0F : 1.0F + static_cast<float>(i) / 8.0F);
    }
    const auto slow = rope_frequencies(r, 500000.0, divisors, {});
    ASSERT_EQ(slow.inverse.size(), divisors.size());
    EXPECT_EQ(slow.magnitude, 1.0);
    for (std::size_t i = 0; i < divisors.size(); ++i) {
      const double plain = std::pow(500000.0, -2.0 * static_cast<double>(i) / static_cast<double>(r));
      EXPECT_DOUBLE_EQ(slow.inverse[i], plain / static_cast<double>(divisors[i])) << i << " of " << r;
    }
  }
}

/// The ends of the ramp are whole pairs: one pair of `slack` on either side (a factor theta^(2/r) in turns).
void expect_yarn(const RopeFrequencies& plain, const RopeFrequencies& yarn, double context, double slack) {
  int kept = 0;
  int divided = 0;
  double last = 1.0;
  for (std::size_t i = 0; i < plain.inverse.size(); ++i) {
    const double ratio = yarn.inverse[i] / plain.inverse[i];
    const double turns = context * plain.inverse[i] / (2 * std::numbers::pi);
    EXPECT_LE(ratio, last + 1e-12) << "the blend must not rise";
    last = ratio;
    if (turns > 32 * slack) {
      EXPECT_DOUBLE_EQ(ratio, 1.0) << i;
      ++kept;
    } else if (turns < 1 / slack) {
      EXPECT_DOUBLE_EQ(ratio, 0.25) << i;
      ++divided;
    }
  }
  EXPECT_GT(kept, 10);
  EXPECT_GT(divided, 10);
}

// Peng et al. (2023), section 3.2, by its definition: with lambda the wavelength of a pair in tokens, a pair that turns
// more than beta_fast times in the original context stays, one that turns less than beta_slow times is divided by s.
TEST(RopeScaling, YarnKeepsFastPairsAndInterpolatesSlowOnes) {
  RopeScaling scaling;
  scaling.kind = RopeScaling::Kind::yarn;
  scaling.factor = 4;
  const std::int64_t r = 128;
  const double theta = 1e6;
  const auto plain = rope_frequencies(r, theta, {}, {});
  for (const std::int64_t context : {32768, 131072}) {
    scaling.original_context = context;
    const auto yarn = rope_frequencies(r, theta, {}, scaling);
    EXPECT_DOUBLE_EQ(yarn.magnitude, 0.1 * std::log(4.0) + 1.0);
    expect_yarn(plain, yarn, static_cast<double>(context), std::pow(theta, 2.0 / static_cast<double>(r)));
  }
  scaling.original_context = 32768;
  const auto yarn = rope_frequencies(r, theta, {}, scaling);
  // r ln(context / (2 pi rotations)) / (2 ln theta) is 23.596 for 32 rotations and 39.651 for one: the ramp goes from
  // pair 23 to pair 40, as in the published code.
  const std::pair<std::size_t, double> ramp[] = {
      {23, 1.0}, {24, 1 - 0.75 / 17}, {31, 1 - 0.75 * 8 / 17}, {39, 1 - 0.75 * 16 / 17}, {40, 0.25}};
  for (const auto& [pair, ratio] : ramp)
    EXPECT_NEAR(yarn.inverse[pair] / plain.inverse[pair], ratio, 1e-12) << pair;
}

}  // namespace
}  // namespace headwater::runtime::testing
