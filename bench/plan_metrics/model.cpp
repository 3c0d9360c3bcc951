#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/plan_metrics/rows.hpp"
#include "runtime/model/transformer.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::bench {
namespace {

/// A prefill of the bundled model, in calls of the logical batch.
void prefill(runtime::Transformer& transformer, std::span<const std::int32_t> ids) {
  transformer.reset();
  const auto all = static_cast<std::int64_t>(ids.size());
  while (!ids.empty()) {
    const auto some = ids.first(std::min(ids.size(), static_cast<std::size_t>(transformer.max_step())));
    const bool opens = static_cast<std::int64_t>(ids.size()) == all;
    transformer.run(Step::prefill(static_cast<std::int64_t>(some.size()), opens ? all : 0), some);
    ids = ids.subspan(some.size());
  }
}

}  // namespace

std::string model_against_dense(const std::string& engine) {
  const auto file = std::make_shared<const runtime::GgufFile>(
      runtime::GgufFile::open(HEADWATER_MODELS "/headwater-tiny-f16.gguf"));
  const auto model = runtime::Model::load(file, {runtime::native_precision(), 1});
  std::ifstream stream(HEADWATER_MODELS "/eval-16k.txt");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto ids = runtime::Tokenizer::from_gguf(*file)->encode(text, true, false);
  std::string result;
  for (const std::int64_t tokens : {1024, 2048, 4096, 8192, 16384}) {
    const auto prompt = std::span(ids).first(static_cast<std::size_t>(tokens));
    std::vector<std::unique_ptr<runtime::Transformer>> both;
    for (const bool dense : {false, true}) {
      runtime::TransformerOptions options;
      options.engine = engine;
      options.attention.threads = 1;
      options.attention.dense = dense;
      options.cache_type = DType::bf16;
      options.capacity = tokens;
      both.push_back(std::make_unique<runtime::Transformer>(model, options));
    }
    std::vector<double> attention[2];
    const auto run = [&](std::size_t which) {
      runtime::Transformer& one = *both[which];
      one.clear_times();
      prefill(one, prompt);
      attention[which].push_back(one.times().attention + one.times().selection);
    };
    const std::vector<double> whole =
        medians_in_turn(tokens > 4096 ? 3 : 7, {[&] { run(0); }, [&] { run(1); }});
    result += fmt::format(
        "{}{}: {:.2f}x / {:.2f}x",
        result.empty() ? "headwater-tiny on eval-16k.txt, whole model / its attention (by the wall): " : ", ",
        tokens, whole[1] / whole[0], median(attention[1]) / median(attention[0]));
  }
  return result;
}

}  // namespace headwater::bench
