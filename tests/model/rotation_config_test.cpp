// The rotation that a model's metadata makes, that of values in place of the file's, and RoPE's scalings themselves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tests/model/tiny_file.hpp"

namespace headwater::runtime::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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

TEST(ModelConfig, IgnoresFactorsBesideTypeNone) {
  TinyFile tiny = tiny_file("llama", {{"rope.scaling.type", "none"},
                                      {"rope.scaling.factor", 4.0F},
                                      {"rope.scale_linear", 8.0F},
                                      {"rope.scaling.original_context_length", 64}});
  tiny.more_metadata = [](Builder& b) { b.add<std::uint8_t>("llama.rope.scaling.finetuned", kBool, 1); };
  EXPECT_EQ(config_of(tiny).rotations.front().inverse, config_of(TinyFile{}).rotations.front().inverse);
}

// The new key is the one that counts where both are there, as with llama.cpp.
TEST(ModelConfig, ReadsTheOldFactorOnlyWithoutTheNew) {
  const auto second = [](const Values& metadata) {
    return config_of(tiny_file("llama", metadata)).rotations.front().inverse[1];
  };
  EXPECT_DOUBLE_EQ(second({{"rope.scaling.factor", 4.0F}, {"rope.scale_linear", 8.0F}}), second({}) / 4);
  EXPECT_DOUBLE_EQ(second({{"rope.scale_linear", 8.0F}}), second({}) / 8);
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
    std::int64_t original;
    float fast, slow, magnitude, theta;
    std::int64_t rotated;
  };
  for (const std::string architecture : {"llama", "qwen2", "qwen3"}) {
    for (const auto& one : {Case{4, 32768, 0, 0, 0, 1e6F, 0},
                            {2, 0, 0, 0, 0, 1e4F, 0},
                            {8, 131072, 64, 2, 0, 5e5F, 0},
                            {4, 4096, 16, 0, 0.5F, 1e4F, 64},
                            {4, 4096, 0, 8, 1.25F, 1e4F, 0},
                            {40, 65536, 5, 3, 0, 1e4F, 32}}) {
      TinyFile tiny = tiny_file(architecture, {{"attention.key_length", 128},
                                               {"rope.scaling.type", "yarn"},
                                               {"rope.scaling.factor", one.factor},
                                               {"rope.freq_base", one.theta}});
      tiny.context = 70000;
      const auto add_positive = [&](const char* name, auto value) {
        if (value > 0) tiny.metadata[name] = value;
      };
      add_positive("rope.scaling.original_context_length", one.original);
      add_positive("rope.scaling.yarn_beta_fast", one.fast);
      add_positive("rope.scaling.yarn_beta_slow", one.slow);
      add_positive("rope.scaling.attn_factor", one.magnitude);
      add_positive("rope.dimension_count", one.rotated);
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
    tiny.metadata = {{"rope.scaling.type", type}, {"rope.scaling.factor", 4.0F}};
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

/// The configuration of a file that says `written`, of which `replaced` takes the place.
ModelConfig replaced_config(TinyFile tiny, const Values& written, const Values& replaced) {
  tiny.metadata.insert(written.begin(), written.end());
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
  const Values files[] = {
      {},
      {{"rope.freq_base", 1e6F}},
      {{"rope.scale_linear", 8.0F}},
      {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 8.0F}},
      {{"rope.scaling.type", "none"}, {"rope.scaling.factor", 8.0F}, {"rope.scaling.attn_factor", 1.25F}},
      {{"rope.scaling.type", "yarn"},
       {"rope.scaling.factor", 2.0F},
       {"rope.scaling.original_context_length", 4096},
       {"rope.scaling.attn_factor", 0.75F},
       {"rope.scaling.yarn_beta_fast", 16.0F},
       {"rope.scaling.yarn_beta_slow", 2.0F},
       {"rope.freq_base", 5e5F}}};
  const Values flags[] = {{{"rope.freq_base", 2e5F}},
                          {{"rope.scaling.type", "none"}},
                          {{"rope.scaling.type", "linear"}, {"rope.scaling.factor", 3.3F}},
                          {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}},
                          {{"rope.scaling.type", "yarn"},
                           {"rope.scaling.factor", 4.7F},
                           {"rope.scaling.original_context_length", 300},
                           {"rope.scaling.attn_factor", 1.1F},
                           {"rope.scaling.yarn_beta_fast", 20.3F},
                           {"rope.scaling.yarn_beta_slow", 0.7F},
                           {"rope.freq_base", 7e4F}}};
  for (const char* const architecture : {"llama", "qwen3", "gemma3", "smollm3", "gpt-oss"}) {
    TinyFile tiny = tiny_file(architecture, {{"attention.key_length", 128}});
    const bool windows = architecture == std::string("gemma3") || architecture == std::string("gpt-oss");
    if (windows) tiny.metadata["attention.sliding_window"] = std::int64_t{100};
    for (const Values& written : files) {
      const ModelConfig plain = replaced_config(tiny, written, {});
      for (const Values& asked : flags) {
        SCOPED_TRACE(::testing::Message()
                     << architecture << ", file " << &written - files << ", flags " << &asked - flags);
        Values both = asked;
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
  const Values factor = {{"rope.scaling.factor", 4.0F}};
  const auto plain = config_of(TinyFile{}).rotations.front().inverse;
  const auto linear = replaced_config({}, {}, factor).rotations.front();
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(linear.inverse[i], plain[i] / 4);
  EXPECT_EQ(linear.magnitude, 1.0);
  const Values yarn = {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 2.0F}};
  EXPECT_EQ(replaced_config({}, yarn, factor).rotations.front().magnitude, 1 + 0.1 * std::log(4.0));
}

// How far a conversation may go without a warning: a factor of the caller counts from what YaRN was told the model was trained
// on, else from the context; what the file says itself is in its context. Finds: another start, a product beyond all ids.
TEST(ModelConfig, AFactorInPlaceOfTheFilesStretchesTheContext) {
  const Values yarn = {{"rope.scaling.type", "yarn"},
                       {"rope.scaling.factor", 4.0F},
                       {"rope.scaling.original_context_length", 300}};
  struct Case {
    Values written, replaced;
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
  const Values factor = {{"rope.scaling.factor", 4.0F}};
  for (const std::int64_t window : {512, 2047, 2048}) {
    TinyFile tiny = tiny_file("llama", {{"attention.sliding_window", window}});
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
  const Values none = {};
  const Values yarn = {{"rope.scaling.type", "yarn"}, {"rope.scaling.factor", 4.0F}};
  const float infinity = std::numeric_limits<float>::infinity();
  struct Case {
    Values written, replaced;
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
       {{"rope.scaling.factor", 4.0F}, {"rope.scaling.original_context_length", 64}},
       "--rope.scaling.original_context_length is 64, and the scaling is linear; allowed: with yarn"},
      {yarn,
       {{"rope.scaling.original_context_length", 0}},
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
