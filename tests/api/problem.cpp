#include "tests/api/problem.hpp"

#include <algorithm>
#include <cstring>
#include <random>

namespace headwater::api_test {

std::vector<const Engine*> runnable_engines() {
  std::vector<const Engine*> runnable;
  for (const Engine* engine : engines()) {
    if (engine->unavailable_because().empty()) runnable.push_back(engine);
  }
  // `cpu` has the tables of the engine that it stands for; conformance.default_engine runs it under its own name.
  std::erase_if(runnable, [all = runnable](const Engine* engine) {
    return engine->name() == "cpu" && std::any_of(all.begin(), all.end(), [&](const Engine* other) {
             return other != engine && other->isa() == engine->isa();
           });
  });
  return runnable;
}

std::string test_name(const testing::TestParamInfo<const Engine*>& info) {
  std::string name(info.param->name());
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

Shape small_shape(std::int64_t capacity) {
  return {.n_layer = 2, .n_head = 4, .n_head_kv = 2, .d_head = 8, .d_value = 6, .capacity = capacity};
}

Options small_options() {
  Options options;
  options.batch = 16;
  options.chunk = 8;
  options.local = 3;
  options.heavy = 2;
  options.threads = 2;
  return options;
}

LayerInput random_input(const Shape& shape, std::int64_t n, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  const auto fill = [&](std::int64_t heads, std::int64_t width) {
    std::vector<float> tensor(static_cast<std::size_t>(n * heads * width));
    std::generate(tensor.begin(), tensor.end(), [&] { return uniform(generator); });
    return tensor;
  };
  LayerInput input;
  input.q = fill(shape.n_head, shape.d_head);
  input.k = fill(shape.n_head_kv, shape.d_head);
  input.v = fill(shape.n_head_kv, shape.d_value);
  return input;
}

Rows rows_from(const std::vector<float>& tensor, std::int64_t first, std::int64_t heads, std::int64_t width) {
  return Rows::token_major(tensor.data() + first * heads * width, DType::f32, heads, width);
}

std::vector<float> run_step(Session& session, const Step& step, const LayerInput& input, std::int64_t first) {
  const Shape& shape = session.shape();
  const auto layer_size = static_cast<std::size_t>(step.n * shape.n_head * shape.d_value);
  std::vector<float> out(layer_size * static_cast<std::size_t>(shape.n_layer));
  session.begin(step);
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    session.attend(layer, rows_from(input.q, first, shape.n_head, shape.d_head),
                   rows_from(input.k, first, shape.n_head_kv, shape.d_head),
                   rows_from(input.v, first, shape.n_head_kv, shape.d_value),
                   MutableRows::token_major(out.data() + static_cast<std::size_t>(layer) * layer_size,
                                            DType::f32, shape.n_head, shape.d_value));
  }
  session.end();
  return out;
}

void append_contents(const Session& session, Results& results) {
  const Shape& shape = session.shape();
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const ScoreView scores = session.scores(layer);
    const std::int64_t bytes = scores.type == ScoreType::bf16 ? 2 : 4;
    const MemoryView memory = session.memory(layer);
    for (std::int64_t h = 0; h < shape.n_head; ++h) {
      const auto* row = static_cast<const unsigned char*>(scores.data) + h * scores.head_stride * bytes;
      results.scores.insert(results.scores.end(), row, row + session.tokens() * bytes);
      const std::int32_t* positions = memory.data + h * memory.head_stride;
      results.memory.insert(results.memory.end(), positions, positions + memory.count);
    }
  }
}

}  // namespace headwater::api_test
