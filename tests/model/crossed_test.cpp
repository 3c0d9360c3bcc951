// Models, prompts and options as people combine them: any two levels of two factors meet in at least one problem. Each problem
// has the bits of another way to the same tokens; where rows are stored as they are, every stage of chosen tokens is held
// to the forward pass in double.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

#include "conformance/cover_pairs.hpp"
#include "runtime/generate/conversation.hpp"
#include "tests/model/made_model.hpp"
#include "tests/model/parts.hpp"
#include "tests/model/support.hpp"

namespace headwater::runtime::testing {
namespace {

/// What the slots say, one after the other: by slot, the logits after each turn and each appended token.
using Said = std::vector<std::vector<float>>;

struct Problem {
  MadeSizes sizes;
  Precision precision = Precision::f32;
  TransformerOptions options;
  std::int64_t dense_tail = 0;
  std::vector<std::int64_t> turns;  ///< tokens of each, in the first slots
  std::int64_t appended = 3;        ///< after each turn
  Said (*other_way)(const MadeModel&, const Problem&) = nullptr;

  [[nodiscard]] std::vector<std::int32_t> ids(int slot, std::int64_t first, std::int64_t n) const {
    std::vector<std::int32_t> ids;
    for (std::int64_t i = first; i < first + n; ++i)
      ids.push_back(static_cast<std::int32_t>((7919 * i + 104729 * slot + i * i % 31) % sizes.vocabulary));
    return ids;
  }
  [[nodiscard]] std::int64_t turn(int slot, std::size_t at) const {
    return (slot < 2 ? turns[at] : (turns[at] + 3) / 4) + slot % 2 * 3;
  }
};

void keep(std::vector<float>& said, const Conversation& talk) {
  said.insert(said.end(), talk.logits().begin(), talk.logits().end());
}

/// All slots of one transformer, which take their turns before any of them goes on; tokens are appended to all at once,
/// in another order each time. `before_turn`: called with a conversation and the tokens of the turn that follows.
Said talk_together(
    Transformer& transformer, const Problem& problem, bool ahead = false,
    const std::function<void(Conversation&, std::int64_t)>& before_turn = [](Conversation&, std::int64_t) {
    }) {
  std::vector<Conversation> talks;
  for (int slot = 0; slot < transformer.slots(); ++slot)
    talks.emplace_back(transformer, problem.dense_tail, slot);
  Said said(talks.size());
  for (std::size_t turn = 0; turn < problem.turns.size(); ++turn) {
    for (std::size_t slot = 0; slot < talks.size(); ++slot) {
      const std::int64_t n = problem.turn(static_cast<int>(slot), turn);
      before_turn(talks[slot], n);
      talks[slot].feed_ahead(problem.ids(static_cast<int>(slot), talks[slot].tokens(), n));
      Conversation* const self = &talks[slot];
      if (!ahead) Conversation::take_logits({&self, 1});
    }
    for (std::size_t slot = 0; slot < talks.size(); ++slot) {
      Conversation* const self = &talks[slot];
      if (ahead) Conversation::take_logits({&self, 1});
      keep(said[slot], talks[slot]);
    }
    for (std::int64_t i = 0; i < problem.appended; ++i) {
      std::vector<Conversation*> order;
      std::vector<std::int32_t> ids;
      for (std::size_t at = 0; at < talks.size(); ++at) {
        const std::size_t slot = (at + static_cast<std::size_t>(i)) % talks.size();
        order.push_back(&talks[slot]);
        ids.push_back(problem.ids(static_cast<int>(slot), talks[slot].tokens(), 1).front());
      }
      Conversation::append(order, ids);
      for (std::size_t slot = 0; slot < talks.size(); ++slot) keep(said[slot], talks[slot]);
    }
  }
  return said;
}

Said talk(const MadeModel& model, const Problem& problem) {
  Transformer transformer(model.load(problem.precision), problem.options);
  return talk_together(transformer, problem);
}

/// One conversation, alone.
std::vector<float> talk_alone(Transformer& transformer, const Problem& problem, int slot,
                              const LayerObserver& observer = {}) {
  Conversation talk(transformer, problem.dense_tail);
  std::vector<float> said;
  for (std::size_t turn = 0; turn < problem.turns.size(); ++turn) {
    talk.set_layer_observer(observer);
    talk.feed(problem.ids(slot, talk.tokens(), problem.turn(slot, turn)));
    keep(said, talk);
    transformer.set_observer(observer);
    for (std::int64_t i = 0; i < problem.appended; ++i) {
      talk.append(problem.ids(slot, talk.tokens(), 1).front());
      keep(said, talk);
    }
  }
  return said;
}

Said each_alone(const MadeModel& model, const Problem& problem) {
  TransformerOptions options = problem.options;
  options.slots = 1;
  const auto loaded = model.load(problem.precision);
  Said said;
  for (int slot = 0; slot < problem.options.slots; ++slot) {
    Transformer transformer(loaded, options);
    said.push_back(talk_alone(transformer, problem, slot));
  }
  return said;
}

Said on_other_threads(const MadeModel& model, const Problem& problem) {
  Problem other = problem;
  other.options.attention.threads = problem.options.attention.threads == 3 ? 4 : 3;
  return talk(model, other);
}

Said after_other_talks(const MadeModel& model, const Problem& problem) {
  Transformer transformer(model.load(problem.precision), problem.options);
  Problem other = problem;
  for (std::int64_t& n : other.turns) n += 5;
  (void)talk_together(transformer, other);
  for (int slot = 0; slot < transformer.slots(); ++slot) transformer.reset(slot);
  return talk_together(transformer, problem);
}

/// Every turn is begun with other tokens, ends inside a layer, and is taken back.
Said after_interrupts(const MadeModel& model, const Problem& problem) {
  TransformerOptions options = problem.options;
  options.attention.checkpoints = 100;  // rule h2o goes back as well
  Transformer transformer(model.load(problem.precision), options);
  double end = 0;
  return talk_together(transformer, problem, false, [&](Conversation& talk, std::int64_t n) {
    const std::int64_t before = talk.tokens();
    end += 0.3;
    EXPECT_THROW(talk.feed(problem.ids(99, before, n),
                           [&](double share) {
                             if (share > end - std::floor(end)) throw std::runtime_error("interrupted");
                           }),
                 std::runtime_error);
    talk.recover();
    EXPECT_EQ(talk.tokens(), before);
  });
}

Said in_parts(const MadeModel& model, const Problem& problem, const std::vector<std::int64_t>& cuts,
              bool ahead) {
  Parts parts(cuts, problem.options,
              [&](const ModelPart& part) { return model.load(problem.precision, part); });
  return talk_together(parts.front(), problem, ahead);
}
Said in_two_parts_ahead(const MadeModel& model, const Problem& problem) {
  return in_parts(model, problem, {1}, true);
}
Said a_part_for_each_layer(const MadeModel& model, const Problem& problem) {
  std::vector<std::int64_t> cuts(static_cast<std::size_t>(problem.sizes.layers - 1));
  std::iota(cuts.begin(), cuts.end(), 1);
  return in_parts(model, problem, cuts, false);
}

using Level = std::function<void(Problem&)>;

// Later factors read what earlier ones have chosen.
std::vector<std::vector<Level>> factors() {
  using P = Problem;
  const auto types = [](std::vector<TensorType> all) {
    return Level([all = std::move(all)](P& p) { p.sizes.types = all; });
  };
  const auto heads = [](std::int64_t query, std::int64_t kv, std::int64_t d, std::int64_t dv,
                        std::int64_t rotated) {
    return Level([=](P& p) {
      p.sizes.heads = query, p.sizes.heads_kv = kv;
      p.sizes.d_head = d, p.sizes.d_value = dv, p.sizes.rotated = rotated;
    });
  };
  const auto widths = [](std::int64_t width, std::int64_t feed_forward) {
    return Level([=](P& p) { p.sizes.width = width, p.sizes.feed_forward = feed_forward; });
  };
  const auto cache = [](DType type) {
    return Level([=](P& p) {
      p.options = options(2000, type);
      if (type == DType::bf16) p.options.engine = "cpu";
    });
  };
  const auto way = [](Said (*other)(const MadeModel&, const Problem&)) {
    return Level([=](P& p) { p.other_way = other; });
  };
  return {
      {cache(DType::f32), cache(DType::f16), cache(DType::bf16)},
      {[](P& p) { p.precision = Precision::f32; }, [](P& p) { p.precision = native_precision(); }},
      {[](P& p) { p.sizes.architecture = "llama"; }, [](P& p) { p.sizes.architecture = "qwen3"; },
       [](P& p) { p.sizes.architecture = "gemma3"; }, [](P& p) { p.sizes.architecture = "granite"; },
       [](P& p) { p.sizes.architecture = "olmo2"; }, [](P& p) { p.sizes.architecture = "qwen3moe"; },
       [](P& p) { p.sizes.architecture = "gpt-oss"; }, [](P& p) { p.sizes.architecture = "qwen2"; },
       [](P& p) { p.sizes.architecture = "qwen2", p.sizes.biases = "qkv"; },
       [](P& p) { p.sizes.architecture = "cohere2"; }, [](P& p) { p.sizes.architecture = "mistral3"; },
       [](P& p) { p.sizes.architecture = "qwen2moe"; }, [](P& p) { p.sizes.architecture = "deepseek2"; }},
      {[](P& p) { p.sizes.layers = 2; }, [](P& p) { p.sizes.layers = 5; }},
      {widths(256, 768), widths(512, 256), widths(288, 480), widths(768, 1024)},
      {heads(2, 2, 128, 128, 128), heads(8, 2, 64, 64, 64), heads(14, 2, 64, 64, 32), heads(6, 1, 80, 48, 80),
       heads(16, 16, 16, 32, 16)},
      {[](P& p) { p.sizes.vocabulary = 300; }, [](P& p) { p.sizes.vocabulary = 1030; },
       [](P& p) { p.sizes.vocabulary = 4099; }},
      {types({TensorType::f32}), types({TensorType::f16}), types({TensorType::bf16}),
       types({TensorType::q8_0}), types({TensorType::q4_k, TensorType::q4_k, TensorType::q6_k}),
       types({TensorType::mxfp4, TensorType::iq4_nl, TensorType::q8_0}),
       types({TensorType::q2_k, TensorType::iq4_xs, TensorType::q3_k, TensorType::q6_k}),
       types({TensorType::q5_k, TensorType::f16, TensorType::q5_0, TensorType::q8_0, TensorType::q4_k}),
       types({TensorType::q4_0, TensorType::f32, TensorType::q4_1, TensorType::q6_k, TensorType::bf16,
              TensorType::q5_1, TensorType::q8_0})},
      {[](P& p) { p.sizes.tied = false; }, [](P& p) { p.sizes.tied = true; }},
      {[](P& p) { p.sizes.rope_factor = 1; }, [](P& p) { p.sizes.rope_factor = 4; }},
      {[](P& p) { p.options.attention.chunk = 32; }, [](P& p) { p.options.attention.chunk = 48; },
       [](P& p) { p.options.attention.chunk = 128; }},
      {[](P& p) { p.options.attention.batch = p.options.attention.chunk; },
       [](P& p) { p.options.attention.batch = 2 * p.options.attention.chunk + 20; },
       [](P& p) { p.options.attention.batch = 2000; }},
      {[](P& p) { p.options.attention.local = 8, p.options.attention.heavy = 16; },
       [](P& p) { p.options.attention.local = 24, p.options.attention.heavy = 0; },
       [](P& p) {
         p.options.attention.local = 8, p.options.attention.heavy = 16;
         p.options.attention.select = Select::blocks;
         p.options.attention.key_block = p.options.attention.pool = 4, p.options.attention.query_block = 16;
       },
       [](P& p) {
         p.options.attention.local = 8, p.options.attention.heavy = 16;
         p.options.attention.select = Select::sketches;
         p.options.attention.query_block = 16;
       },
       [](P& p) { p.options.attention.dense = true; }},
      {[](P&) {},
       [](P& p) { p.options.attention.pinned = std::min<std::int64_t>(4, p.options.attention.heavy); }},
      {[](P&) {}, [](P& p) { p.options.attention.dense_layers = {p.sizes.layers - 1}; },
       [](P& p) { p.options.attention.dense_below = 100; }},
      {[](P& p) { p.options.attention.threads = 1; }, [](P& p) { p.options.attention.threads = 2; },
       [](P& p) { p.options.attention.threads = 5; }},
      {[](P& p) { p.options.slots = 1; }, [](P& p) { p.options.slots = 3; },
       [](P& p) { p.options.slots = 16; }},
      {[](P& p) { p.dense_tail = 0; }, [](P& p) { p.dense_tail = 1; }, [](P& p) { p.dense_tail = 19; }},
      {[](P& p) {
         p.turns = {200, 60};
       },
       [](P& p) { p.turns = {300}; },
       [](P& p) {
         p.turns = {20, 150, 1};
       }},
      {way(on_other_threads), way(each_alone), way(after_other_talks), way(after_interrupts),
       way(in_two_parts_ahead), way(a_part_for_each_layer)},
  };
}

std::string described(const Problem& p) {
  constexpr const char* kRules[] = {"h2o", "blocks", "sketches"};
  const Options& a = p.options.attention;
  std::string text = fmt::format(
      "{} {}: {} layers, width {}, heads {}/{}, d {}/{}, feed-forward {}, vocabulary {}{}, factor {}, cache "
      "{}, "
      "chunk {}, batch {}, {}+{}, {}, dense {}, {} dense layers, below {}, pinned {}, {} threads, {} slots, "
      "tail {}, turns",
      p.sizes.architecture, precision_name(p.precision), p.sizes.layers, p.sizes.width, p.sizes.heads,
      p.sizes.heads_kv, p.sizes.d_head, p.sizes.d_value, p.sizes.feed_forward, p.sizes.vocabulary,
      p.sizes.tied ? " tied" : "", p.sizes.rope_factor, dtype_name(p.options.cache_type), a.chunk, a.batch,
      a.local, a.heavy, kRules[static_cast<int>(a.select)], a.dense, a.dense_layers.size(), a.dense_below,
      a.pinned, a.threads, p.options.slots, p.dense_tail);
  for (const std::int64_t n : p.turns) text += fmt::format(" {}", n);
  text += ", types";
  for (const TensorType type : p.sizes.types) text += fmt::format(" {}", tensor_type_info(type).name);
  return text;
}

void expect_forward_pass(const MadeModel& model, const Problem& problem) {
  const std::vector<TensorType>& types = problem.sizes.types;
  const bool quantised = std::any_of(
      types.begin(), types.end(), [](TensorType type) { return tensor_type_info(type).block_elements > 1; });
  const double slack = problem.precision == Precision::bf16 ? 0.05 : quantised ? 2e-3 : 0;
  TransformerOptions options = problem.options;
  options.slots = 1;
  Transformer transformer(model.load(problem.precision), options);
  // The first chunk attends to everything; so do an appended token and the last step.
  const std::int64_t end = problem.turns.front();
  std::int64_t all = 0;
  for (std::size_t turn = 0; turn < problem.turns.size(); ++turn)
    all += problem.turn(0, turn) + problem.appended;
  const std::vector<std::int64_t> dense = {
      0, 15, 16, 17, std::min(end, options.attention.chunk) - 1, end, end + 2, all - 1, all, all + 4};
  std::vector<std::int64_t> tokens = dense;
  tokens.insert(tokens.end(), {end - 2, end - 1});
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  StageCheck check(model, transformer, tokens, slack);
  (void)talk_alone(transformer, problem, 0, check.observer());
  check.expect_logits(all - 1);
  transformer.run(Step::decode(5), problem.ids(0, all, 5));
  check.expect_logits(all);
  check.expect_stages();
  check.expect_stored();
  check.expect_dense(dense);
}

/// Every kParts-th problem from the parameter's on: one part finds a fault sooner.
class CrossedModels : public ::testing::TestWithParam<std::size_t> {
 public:
  static constexpr std::size_t kParts = 8;
};
INSTANTIATE_TEST_SUITE_P(, CrossedModels, ::testing::Range<std::size_t>(0, CrossedModels::kParts));

TEST_P(CrossedModels, HaveTheBitsOfOtherWaysAndTheForwardPassInDouble) {
  const auto all = factors();
  std::vector<std::size_t> levels;
  for (const auto& factor : all) levels.push_back(factor.size());
  conformance::Random random(1);
  int passes = 0;
  const std::vector<std::vector<std::size_t>> rows = conformance::cover_pairs(levels, random);
  for (std::size_t at = GetParam(); at < rows.size(); at += kParts) {
    const std::vector<std::size_t>& row = rows[at];
    Problem problem;
    for (std::size_t factor = 0; factor < all.size(); ++factor) all[factor][row[factor]](problem);
    SCOPED_TRACE(described(problem));
    const MadeModel model(problem.sizes);
    const Said wanted = talk(model, problem);
    const Said got = problem.other_way(model, problem);
    ASSERT_EQ(got.size(), wanted.size());
    // Not the values themselves: a failure would print them all.
    for (std::size_t slot = 0; slot < wanted.size(); ++slot) EXPECT_TRUE(got[slot] == wanted[slot]) << slot;
    if (problem.options.cache_type == DType::f32) expect_forward_pass(model, problem), ++passes;
    if (HasFailure()) return;
  }
  EXPECT_GT(passes, 1);
}

}  // namespace
}  // namespace headwater::runtime::testing
