// What a model's metadata may say, and that everything else is refused by name. Rotations are in rotation_config_test.cpp.

#include "runtime/model/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <tuple>

#include "tests/model/tiny_file.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
    Values metadata;
    std::function<void(TinyFile&)> change = [](TinyFile&) {};
  };
  const std::vector<Case> cases = {
      {"general.architecture is 'gpt2'; allowed: qwen3, qwen3moe, qwen35, qwen2, llama, gpt-oss, gemma3",
       {},
       [](TinyFile& t) { t.architecture = "gpt2"; }},
      {"blk.0.post_attention_norm.weight", {}, [](TinyFile& t) { t.architecture = "gemma3"; }},
      {"blk.0.attn_qkv.weight", {}, [](TinyFile& t) { t.architecture = "phi3"; }},
      {"llama.attention.head_count_kv", {}, [](TinyFile& t) { t.head_count_kv = 3; }},
      {"llama.attention.layer_norm_rms_epsilon", {}, [](TinyFile& t) { t.epsilon = false; }},
      {"llama.attention.sliding_window", {{"attention.sliding_window", 128}}},
      {"llama.expert_used_count", {{"expert_count", 8}}},
      {"blk.0.ffn_gate_inp.weight", {{"expert_count", 8}, {"expert_used_count", 2}}},
      {"soft caps", {{"final_logit_softcapping", 30.0F}}},
      {"llama.logit_scale", {{"logit_scale", 0.5F}}},
      {"llama.rope.scaling.type is 'longrope'", {{"rope.scaling.type", "longrope"}}},
      {"llama.rope.scaling.factor", {{"rope.scaling.type", "linear"}}},
      {"llama.rope.scaling.factor is 0.5", {{"rope.scaling.factor", 0.5F}}},
      {"llama.rope.scale_linear is 0.5", {{"rope.scale_linear", 0.5F}}},
      {"llama.rope.scaling.attn_factor", {{"rope.scaling.attn_factor", -1.0F}}},
      {"'llama.rope.scaling.yarn_attn_factor' is not supported", {{"rope.scaling.yarn_attn_factor", 1.5F}}},
      {"'llama.rope.scaling.yarn_log_multiplier' is not supported",
       {{"rope.scaling.yarn_log_multiplier", 0.1F}}},
      {"'llama.rope.scaling.yarn_ext_factor' is not supported", {{"rope.scaling.yarn_ext_factor", 0.5F}}},
      {"'llama.rope.scaling.alpha' is not supported", {{"rope.scaling.alpha", 2.0F}}},
      {"llama.attention.key_length is 63; allowed: an even number", {{"attention.key_length", 63}}},
      {"llama.attention.key_length is 1; allowed: at least 2",
       {{"attention.key_length", 1}, {"rope.dimension_count", 2}}},
      {"llama.rope.dimension_count", {{"rope.dimension_count", 5}}},
      {"llama.rope.freq_base", {{"rope.freq_base", -1.0F}}},
      {"llama.rope.freq_base is 0.5; allowed: 1 or more", {{"rope.freq_base", 0.5F}}},
      {"llama.attention.layer_norm_rms_epsilon is 2; allowed: above 0, up to 1",
       {{"attention.layer_norm_rms_epsilon", 2.0F}},
       [](TinyFile& t) { t.epsilon = false; }},
      {"llama.attention.causal",
       {},
       [](TinyFile& t) {
         t.more_metadata = [](Builder& b) { b.add<std::uint8_t>("llama.attention.causal", kBool, 0); };
       }},
      {"blk.1.ffn_up.weight", {}, [](TinyFile& t) { t.left_out = "blk.1.ffn_up.weight"; }},
      {"'blk.0.attn_sinks.weight'", {}, [](TinyFile& t) { t.added = "blk.0.attn_sinks.weight"; }},
      {"'blk.2.attn_norm.weight'", {}, [](TinyFile& t) { t.added = "blk.2.attn_norm.weight"; }},
      {"attn_q_norm", {}, [](TinyFile& t) { t.architecture = "qwen3"; }},
      {"rope_freqs.weight",
       {},
       [](TinyFile& t) {
         t.rope_freqs.assign({1, 1, 0, 1});
       }},
      {"holds NaN", {}, [](TinyFile& t) { t.filling = NAN; }},
  };
  for (const Case& one : cases) {
    TinyFile tiny = tiny_file("llama", one.metadata);
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
  EXPECT_EQ(load_refusal(tiny_file("llama", {{"expert_count", 0},
                                             {"attention.sliding_window", 512},  // never left
                                             {"logit_scale", 1.0F}})),
            "");
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
  const Values hundred = {{"attention.sliding_window", 100}};
  const auto windows = [&](
                           Values more, const std::function<void(Builder&)>& add = [](Builder&) {}) {
    more.insert(hundred.begin(), hundred.end());
    TinyFile tiny = tiny_file("gemma3", more);
    tiny.more_metadata = add;
    const ModelConfig config = config_of(tiny);
    std::vector<std::int64_t> found;
    for (const LayerSpec& layer : config.layer_specs) {
      found.push_back(layer.window);
      EXPECT_EQ(layer.rotation, layer.window > 0 ? 1 : 0);
    }
    EXPECT_EQ(config.rotations.size(), config.windowed_layers() > 0 ? 2U : 1U);
    return found;
  };
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(windows({}), (Windows{100, 100}));
  EXPECT_EQ(windows({{"attention.sliding_window_pattern", 2}}), (Windows{100, 0}));
  EXPECT_EQ(windows({{"attention.sliding_window_pattern", 1}}), (Windows{0, 0}));
  const auto of_layers = [](Builder& b) {
    b.add_array<std::uint8_t>("gemma3.attention.sliding_window_pattern", kBool, {0, 1});
  };
  EXPECT_EQ(windows({}, of_layers), (Windows{0, 100}));
  // One that holds the whole context changes nothing.
  EXPECT_EQ(windows({{"context_length.of_another", 1}}), (Windows{100, 100}));
  for (const std::uint32_t context : {99U, 100U, 101U}) {
    TinyFile tiny = tiny_file("gemma3", hundred);
    tiny.context = context;
    const ModelConfig config = config_of(tiny);
    EXPECT_EQ(config.windowed_layers(), context > 100 ? 2 : 0) << context;
    // A window that holds the context changes nothing else.
    for (const LayerSpec& layer : config.layer_specs) EXPECT_EQ(layer.rotation, 1) << context;
  }
}

// Of cohere2 the layers that would see a window are rotated, those without are not, whatever the context holds.
TEST(ModelConfig, RotatesTheLayersOfWindows) {
  for (const std::int64_t window : {100, 600}) {
    const ModelConfig config = config_of(tiny_file("cohere2", {{"attention.sliding_window", window},
                                                               {"attention.sliding_window_pattern", 2},
                                                               {"attention.layer_norm_epsilon", 1e-5F},
                                                               {"logit_scale", 0.5F}}));
    EXPECT_EQ(config.windowed_layers(), window < 512 ? 1 : 0);
    EXPECT_EQ(config.layer_specs[0].rotation, 0);
    EXPECT_EQ(config.layer_specs[1].rotation, LayerSpec::kNotRotated);
  }
}

// The published Ministrals take back what YaRN multiplies rows by; without the key nothing is taken back.
TEST(ModelConfig, TemperatureAndMagnitudeOfMistral3) {
  const auto read = [](float multiplier, Values more) {
    more.insert({{"rope.scaling.type", "yarn"},
                 {"rope.scaling.factor", 16.0F},
                 {"rope.scaling.yarn_log_multiplier", multiplier}});
    return config_of(tiny_file("mistral3", more));
  };
  const double all = 1 + 0.1 * std::log(16.0);
  EXPECT_DOUBLE_EQ(read(0, {}).rotations.front().magnitude, all);
  EXPECT_DOUBLE_EQ(read(1, {}).rotations.front().magnitude, 1);
  EXPECT_DOUBLE_EQ(read(0.5F, {}).rotations.front().magnitude, all / (1 + 0.05 * std::log(16.0)));
  EXPECT_EQ(read(1, {}).temperature_scale, 0);
  Values more = {{"attention.temperature_scale", 0.25F}};
  EXPECT_EQ(read(1, more).temperature_scale, 0.25);
  EXPECT_EQ(read(1, more).temperature_length, 512);
  more["rope.scaling.original_context_length"] = std::int64_t{100};
  EXPECT_EQ(read(1, more).temperature_length, 100);
  more["attention.temperature_length"] = std::int64_t{7};
  EXPECT_EQ(read(1, more).temperature_length, 7);
}

TEST(ModelConfig, RefusesWhatArchitecturesReadByName) {
  struct Case {
    const char* architecture;
    const char* named;
    Values metadata;
    std::function<void(Builder&)> add = [](Builder&) {};
  };
  constexpr const char* kPattern = "gemma3.attention.sliding_window_pattern";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case cases[] = {
      {"gemma3",
       "gemma3.attention.sliding_window_pattern' is 0; allowed: 1 .. ",
       {{"attention.sliding_window_pattern", 0}}},
      {"gemma3",
       "gemma3.attention.sliding_window_pattern has 3 elements; allowed: one for each of 2 layers",
       {},
       [](Builder& b) {
         b.add_array<std::uint8_t>(kPattern, kBool, {0, 1, 1});
       }},
      {"gemma3",
       kPattern,
       {},
       [](Builder& b) {
         b.add_array<std::uint32_t>(kPattern, kU32, {0, 1});
       }},
      {"gemma3", kPattern, {{"attention.sliding_window_pattern", "6"}}},
      {"gemma3", "gemma3.attention.sliding_window", {{"attention.sliding_window", std::int64_t{1} << 31}}},
      {"gemma3",
       "gemma3.attention.sliding_window",
       {},
       [](Builder& b) { b.add("gemma3.attention.sliding_window", kI32, -1); }},
      {"gemma3", "gemma3.final_logit_softcapping is -30", {{"final_logit_softcapping", -30.0F}}},
      {"gemma3", "gemma3.attn_logit_softcapping asks for soft caps", {{"attn_logit_softcapping", 50.0F}}},
      {"gemma3",
       "gemma3.rope.freq_base_swa is 0.5; allowed: 1 or more",
       {{"attention.sliding_window", 8}, {"rope.freq_base_swa", 0.5F}}},
      {"gemma2", "gemma2.attn_logit_softcapping is 0; allowed", {{"attn_logit_softcapping", 0.0F}}},
      {"gemma2", "gemma2.final_logit_softcapping", {{"final_logit_softcapping", nan}}},
      {"granite", "granite.embedding_scale is 0", {{"embedding_scale", 0.0F}}},
      {"granite", "granite.residual_scale is -1", {{"residual_scale", -1.0F}}},
      {"granite", "granite.logit_scale is 0", {{"logit_scale", 0.0F}}},
      {"granite", "granite.attention.scale", {{"attention.scale", nan}}},
      {"granite", "granite.expert_count asks for mixture of experts", {{"expert_count", 8}}},
      {"granite",
       "granite.attention.sliding_window is 8 of a context of 512",
       {{"attention.sliding_window", 8}}},
      {"cohere2", "cohere2.logit_scale is 0; allowed: a number > 0", {{"logit_scale", 0.0F}}},
      {"cohere2", "cohere2.logit_scale' holds nan", {{"logit_scale", nan}}},
      {"cohere2", "cohere2.logit_scale", {}},
      {"cohere2", "cohere2.attention.layer_norm_epsilon", {{"logit_scale", 0.5F}}},
      {"mistral3", "mistral3.attention.temperature_scale is -1", {{"attention.temperature_scale", -1.0F}}},
      {"mistral3", "mistral3.attention.temperature_scale' holds nan", {{"attention.temperature_scale", nan}}},
      {"mistral3",
       "mistral3.attention.temperature_length' is 0; allowed: 1 .. ",
       {{"attention.temperature_scale", 0.1F}, {"attention.temperature_length", 0}}},
      {"mistral3",
       "mistral3.rope.scaling.original_context_length' is 0; allowed: 1 .. ",
       {{"rope.scaling.original_context_length", 0}}},
      {"mistral3",
       "mistral3.rope.scaling.yarn_log_multiplier is -1",
       {{"rope.scaling.yarn_log_multiplier", -1.0F}}},
      {"mistral3",
       "'mistral3.rope.scaling.yarn_ext_factor' is not supported",
       {{"rope.scaling.yarn_ext_factor", 1.0F}}},
      {"qwen3moe",
       "qwen3moe.expert_used_count' is 3; allowed: 1 .. 2",
       {{"expert_count", 2}, {"expert_used_count", 3}}},
      {"qwen3moe", "qwen3moe.expert_used_count' is 0", {{"expert_count", 2}, {"expert_used_count", 0}}},
      {"qwen3moe", "qwen3moe.expert_count' is 1025; allowed: 0 .. 1024", {{"expert_count", 1025}}},
      {"qwen3moe",
       "qwen3moe.expert_feed_forward_length' is 0",
       {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_feed_forward_length", 0}}},
      {"qwen2moe",
       "qwen2moe.expert_shared_feed_forward_length' is 0; allowed: 1 .. ",
       {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_shared_feed_forward_length", 0}}},
      {"qwen2moe",
       "qwen2moe.expert_shared_feed_forward_length' is 4294967295; allowed: 1 .. 1048576",
       {{"expert_count", 2}, {"expert_used_count", 1}, {"expert_shared_feed_forward_length", 0xFFFFFFFF}}},
      {"qwen2moe", "qwen2moe.expert_shared_count asks for shared experts", {{"expert_shared_count", 1}}},
      {"qwen2moe", "qwen2moe.expert_weights_scale asks for", {{"expert_weights_scale", 2.0F}}},
      {"llama", "llama.rope.freq_base_swa asks for", {{"rope.freq_base_swa", 10000.0F}}},
  };
  for (const Case& one : cases) {
    TinyFile tiny = tiny_file(one.architecture, one.metadata);
    tiny.more_metadata = one.add;
    EXPECT_THAT(config_refusal(tiny), HasSubstr(one.named));
  }
}

// Of deepseek2, beside what makes a file of it.
TEST(ModelConfig, RefusesWhatLatentAttentionCannotBe) {
  struct Case {
    const char* key;
    double value;
    const char* said;
  };
  const auto message = [](const Case& one, bool latent = true) {
    Values metadata = {{"rope.dimension_count", 4}, {"expert_count", 4}, {"expert_used_count", 2}};
    if (latent) metadata["attention.kv_lora_rank"] = std::int64_t{4};
    if (std::floor(one.value) == one.value && one.value >= 0) {
      metadata[one.key] = static_cast<std::int64_t>(one.value);
    } else {
      metadata[one.key] = static_cast<float>(one.value);
    }
    return config_refusal(tiny_file("deepseek2", metadata));
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

TEST(ModelConfig, RefusesWhatRecurrentLayersCannotBe) {
  const Values sizes = {{"ssm.conv_kernel", 4},    {"ssm.state_size", 16}, {"ssm.group_count", 2},
                        {"ssm.time_step_rank", 4}, {"ssm.inner_size", 64}, {"full_attention_interval", 2}};
  struct Case {
    const char* key;
    std::int64_t value;
    const char* said;
  };
  const auto message = [&](const Case& one) {
    Values metadata = sizes;
    metadata[one.key] = one.value;
    return config_refusal(tiny_file("qwen35", metadata));
  };
  for (const Case& one :
       {Case{"ssm.conv_kernel", 1, "is 1; allowed: 2 .. 16"},
        {"ssm.conv_kernel", 17, "is 17; allowed: 2 .. 16"},
        {"ssm.state_size", 0, "is 0; allowed: 16 .. 1024"},
        {"ssm.state_size", 24, "is 24; allowed: multiples of 16"},
        {"ssm.state_size", 4294967295, "is 4294967295; allowed: 16 .. 1024"},
        {"ssm.state_size", 32, "ssm.inner_size is 64; allowed: 128, heads of values times"},
        {"ssm.group_count", 0, "is 0; allowed: 1 .. 1024"},
        {"ssm.group_count", 3, "ssm.time_step_rank is 4; allowed: multiples of the 3 of"},
        {"ssm.time_step_rank", 1025, "is 1025; allowed: 1 .. 1024"},
        {"full_attention_interval", 0, "is 0; allowed: 1 .. 65536"},
        {"full_attention_interval", 3, "all 2 layers are recurrent; allowed: one or more with"},
        {"attention.value_length", 9, "attention.value_length' is 9; allowed: "},
        {"nextn_predict_layers", 2, "is 2; allowed: 0 .. 1"}}) {
    EXPECT_THAT(message(one), HasSubstr(one.said)) << one.key;
  }
  for (const auto& [key, value] : sizes) {
    Values metadata = sizes;
    metadata.erase(key);
    if (key != "full_attention_interval") {
      EXPECT_THAT(config_refusal(tiny_file("qwen35", metadata)), HasSubstr(key)) << key;
    }
  }
  const ModelConfig config = config_of(tiny_file("qwen35", sizes));
  EXPECT_TRUE(config.layer_specs[0].recurrent);
  EXPECT_FALSE(config.layer_specs[1].recurrent);
  EXPECT_EQ(config.delta.channels(), 128);
  EXPECT_EQ(config.delta.state_floats(), 3 * 128 + 4 * 16 * 16);
  EXPECT_THAT(config_refusal(tiny_file("qwen3", {{"nextn_predict_layers", 1}})),
              HasSubstr("predict further tokens"));
}

TEST(ModelConfig, ReadsDeepseek2) {
  const ModelConfig config =
      config_of(tiny_file("deepseek2", {{"attention.kv_lora_rank", 4},
                                        {"attention.key_length", 8},
                                        {"attention.key_length_mla", 7},
                                        {"attention.value_length_mla", 5},
                                        {"rope.dimension_count", 4},
                                        {"expert_count", 4},
                                        {"expert_used_count", 2},
                                        {"expert_feed_forward_length", 6},
                                        {"expert_shared_count", 3},
                                        {"leading_dense_block_count", 1},
                                        {"rope.scaling.type", "yarn"},
                                        {"rope.scaling.factor", 40.0F},
                                        {"rope.scaling.yarn_log_multiplier", 0.0707F}}));
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

// A window is left alone where it holds the context, whatever their sizes.
TEST(ModelConfig, WindowsOnEachSideOfTheContext) {
  for (const std::uint32_t context : {512U, 65536U, 131072U, 1U << 31}) {
    for (const std::uint32_t window :
         {0U, 1U, 511U, 512U, 65535U, 65536U, 65537U, 131071U, 131072U, context - 1}) {
      TinyFile tiny;
      tiny.context = std::min(context, (1U << 31) - 1);
      tiny.metadata["attention.sliding_window"] = std::int64_t{window};
      const bool inside = window > 0 && window < tiny.context;
      EXPECT_EQ(config_refusal(tiny).empty(), !inside) << window << " of " << tiny.context;
    }
    TinyFile tiny;
    tiny.context = context;
    EXPECT_EQ(config_refusal(tiny).empty(), context <= 131072) << context;
  }
}

TEST(ModelConfig, AcceptsLimitsThemselves) {
  TinyFile tiny = tiny_file("llama", {{"attention.layer_norm_rms_epsilon", 1.0F},
                                      {"rope.freq_base", 1.0F},
                                      {"rope.scaling.factor", 1.0F},
                                      {"rope.dimension_count", 8}});
  tiny.epsilon = false;
  EXPECT_EQ(load_refusal(tiny), "");
  tiny = tiny_file("llama",
                   {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 2.0F}, {"rope.freq_base", 1.0F}});
  EXPECT_THAT(load_refusal(tiny), HasSubstr("llama.rope.freq_base is 1; allowed: above 1 with YaRN"));
  tiny.metadata["rope.freq_base"] = 1.5F;
  tiny.metadata["attention.sliding_window"] = std::int64_t{0};
  EXPECT_EQ(load_refusal(tiny), "");
  // 2^20 numbers a token.
  tiny = TinyFile();
  tiny.head_count = 16;
  for (const std::int64_t length : {65536, 32768}) {
    tiny.metadata = {{"attention.key_length", length}, {"attention.value_length", 65536}};
    EXPECT_EQ(config_of(tiny).d_value, 65536);
  }
  tiny.head_count = 32;
  EXPECT_THAT(config_refusal(tiny), HasSubstr("allowed: up to 1048576 numbers a token"));
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
  for (const std::int64_t length : {2, 64, 128}) {
    for (const char* name : {"key", "value"}) {
      TinyFile tiny;  // 2 query heads, 16 wide
      tiny.metadata = {{std::string("attention.") + name + "_length", length}};
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

}  // namespace
}  // namespace headwater::runtime::testing
