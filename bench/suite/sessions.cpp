// What a server does to a session of 32 layers with 32768 tokens between its steps, whose rows are narrow: nothing there
// reads them. And what it does in its steps: several sequences in one call, rows of its own. Pairs take turns, so that what
// slows the machine slows both; ratios are medians over the rounds.

#include <benchmark/benchmark.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/suite/suite.hpp"
#include "cli/commands/bench/read_rate.hpp"
#include "headwater/engine.hpp"
#include "headwater/state.hpp"

namespace headwater::bench {

namespace {

constexpr std::int64_t kTokens = 32768;
constexpr std::int64_t kChunk = 256;

class LongSession {
 public:
  explicit LongSession(Select select)
      : session_(open(select)), rows_(kTokens * shape().n_head * shape().d_head) {
    std::mt19937 bits(1);
    std::normal_distribution<float> normal;
    for (float& x : rows_) x = normal(bits);
    out_.resize(rows_.size());
    step(Step::prefill(kTokens));
  }

  [[nodiscard]] Session& session() { return *session_; }

  /// One layer of the open step of n tokens.
  void attend(std::int64_t layer, std::int64_t n) {
    const Rows rows = Rows::head_major(rows_.data(), DType::f32, n, shape().d_head);
    session_->attend(layer, rows, rows, rows,
                     MutableRows::head_major(out_.data(), DType::f32, n, shape().d_value));
  }

  void step(const Step& step) {
    session_->begin(step);
    for (std::int64_t layer = 0; layer < shape().n_layer; ++layer) attend(layer, step.n);
    session_->end();
  }

 private:
  static std::unique_ptr<Session> open(Select select) {
    Shape shape;
    shape.n_layer = 32;
    shape.n_head = 32;
    shape.n_head_kv = 8;
    shape.d_head = shape.d_value = 8;
    shape.capacity = kTokens + 2 * kChunk;
    Options options;
    options.select = select;
    options.chunk = kChunk;
    options.local = options.heavy = kChunk / 4;
    options.checkpoints = select == Select::h2o ? 2 : 0;
    return engine("cpu").open(shape, options);
  }
  [[nodiscard]] const Shape& shape() const { return session_->shape(); }

  std::unique_ptr<Session> session_;
  std::vector<float> rows_;
  std::vector<float> out_;
};

double seconds_of(const auto& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Takes back a prefill of two chunks, or a step that failed half-way, and puts one layer back.
void run(benchmark::State& state, Select select, bool whole) {
  LongSession on(select);
  Session& session = on.session();
  double layers = 0.0;
  for (auto _ : state) {
    session.begin(Step::prefill(kChunk + 1));
    for (std::int64_t layer = 0; layer < session.shape().n_layer; ++layer) {
      if (whole || layer % 2 == 0) on.attend(layer, kChunk + 1);
    }
    if (whole) {
      session.end();
      state.SetIterationTime(seconds_of([&] { session.truncate(kTokens); }));
    } else {
      state.SetIterationTime(seconds_of([&] { session.abort(); }));
    }
    layers += seconds_of([&] { benchmark::DoNotOptimize(session.memory(0).data); });
  }
  state.counters["layer_put_back_us"] = 1e6 * layers / static_cast<double>(state.iterations());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

/// Median of the quotients of two measurements that took turns.
double median_ratio(const std::vector<double>& above, const std::vector<double>& below) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < above.size(); ++i) ratios.push_back(above[i] / below[i]);
  return median(ratios);
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Wall and processor time of some calls, a round each.
struct Timed {
  std::vector<double> wall, processor;
  void run(const auto& call) {
    const double before = processor_seconds();
    wall.push_back(seconds_of(call));
    processor.push_back(processor_seconds() - before);
  }
};

void run_fork(benchmark::State& state, Select select) {
  LongSession on(select);
  double first_step = 0.0;
  for (auto _ : state) {
    std::unique_ptr<Session> fork;
    state.SetIterationTime(seconds_of([&] { fork = on.session().fork(); }));
    first_step += seconds_of([&] { fork->begin(Step::decode()); });
    fork->abort();
  }
  state.counters["first_begin_us"] = 1e6 * first_step / static_cast<double>(state.iterations());
}

constexpr std::int64_t kContext = 4096;
constexpr std::int64_t kWidth = 128;

/// A layer of 16 heads over 8, d = 128, BF16, and rows for it.
struct WideLayer {
  WideLayer() {
    shape.n_head = 16;
    shape.n_head_kv = 8;
    shape.d_head = shape.d_value = kWidth;
    shape.capacity = 2 * kContext;
    shape.kv_type = DType::bf16;
    std::mt19937 bits(2);
    std::normal_distribution<float> normal;
    rows.resize(static_cast<std::size_t>(kContext * shape.n_head * kWidth));
    for (std::uint16_t& x : rows) {  // cut to BF16
      const float value = normal(bits);
      std::uint32_t word = 0;
      std::memcpy(&word, &value, sizeof word);
      x = static_cast<std::uint16_t>(word >> 16);
    }
    out.resize(rows.size());
  }
  [[nodiscard]] Rows view(std::int64_t heads) const {
    return Rows::token_major(rows.data(), DType::bf16, heads, kWidth);
  }
  [[nodiscard]] MutableRows result() {
    return MutableRows::token_major(out.data(), DType::bf16, shape.n_head, kWidth);
  }

  Shape shape;
  std::vector<std::uint16_t> rows;
  std::vector<std::uint16_t> out;
};

/// Save, load, and a copy of the file by the system, in turn; the page cache holds all of it.
void run_files(benchmark::State& state, Select select) {
  namespace files = std::filesystem;
  WideLayer layer;
  layer.shape.n_layer = 8;
  layer.shape.capacity = 4 * kContext;
  Options options;
  options.select = select;
  const auto session = engine("cpu").open(layer.shape, options);
  while (session->tokens() < layer.shape.capacity) {
    session->begin(Step::decode(kContext));
    for (std::int64_t l = 0; l < layer.shape.n_layer; ++l)
      session->attend(l, {}, layer.view(8), layer.view(8), {});
    session->end();
  }
  const files::path folder = files::temp_directory_path() / ("headwater_bench_" + std::to_string(::getpid()));
  files::create_directory(folder);
  const std::string path = folder / "session.safetensors";
  const files::path copy = folder / "copy.safetensors";
  Timed save_time, load_time, copy_time;
  for (auto _ : state) {
    save_time.run([&] { save(*session, path, "bench"); });
    copy_time.run([&] { files::copy_file(path, copy, files::copy_options::overwrite_existing); });
    load_time.run([&] { (void)load(engine("cpu"), layer.shape, options, path, "bench"); });
    state.SetIterationTime(save_time.wall.back());
  }
  state.counters["MB"] = static_cast<double>(files::file_size(path)) / 1e6;
  state.counters["copy_ms"] = 1e3 * median(copy_time.wall);
  state.counters["load_ms"] = 1e3 * median(load_time.wall);
  state.counters["save_of_copy"] = median_ratio(copy_time.wall, save_time.wall);
  state.counters["load_of_copy"] = median_ratio(copy_time.wall, load_time.wall);
  state.counters["save_of_copy_cpu"] = median_ratio(copy_time.processor, save_time.processor);
  state.counters["load_of_copy_cpu"] = median_ratio(copy_time.processor, load_time.processor);
  files::remove_all(folder);
}

/// Eight sequences that decode a token each: eight calls on one thread, then one call on one thread and on two.
void run_together(benchmark::State& state) {
  constexpr std::size_t kSequences = 8;
  WideLayer layer;
  const auto sessions = [&](int threads) {
    std::vector<std::unique_ptr<Session>> all;
    Options options;
    options.threads = threads;
    for (std::size_t i = 0; i < kSequences; ++i) {
      all.push_back(engine("cpu").open(layer.shape, options));
      all.back()->begin(Step::decode(kContext));
      all.back()->attend(0, {}, layer.view(8), layer.view(8), {});
      all.back()->end();
    }
    return all;
  };
  const auto one = sessions(1);
  const auto two = sessions(2);
  const auto step = [&](const auto& all, bool together) {
    std::vector<SequenceCall> calls;
    for (const auto& session : all) {
      session->begin(Step::decode());
      SequenceCall call;
      call.session = session.get();
      call.q = layer.view(16);
      call.k = call.v = layer.view(8);
      call.out = layer.result();
      calls.push_back(call);
    }
    if (together) {
      attend_together(calls);
    } else {
      for (const SequenceCall& call : calls) call.session->attend(0, call.q, call.k, call.v, call.out);
    }
    for (const auto& session : all) session->end();
  };
  // What the memory allows: bare reads of as many bytes, on one thread and on two.
  const LineBytes bytes(kSequences * static_cast<std::size_t>(kContext * 8 * 2 * kWidth) *
                        sizeof(std::uint16_t));
  std::vector<double> read_one, read_two;
  Timed alone, together, on_two;
  int round = 0;
  for (auto _ : state) {
    for (int turn = 0; turn < 3; ++turn) {  // each comes first as often as the others
      const int which = (turn + round) % 3;
      if (which == 0) alone.run([&] { step(one, false); });
      if (which == 1) together.run([&] { step(one, true); });
      if (which == 2) on_two.run([&] { step(two, true); });
    }
    read_one.push_back(read_seconds(bytes, 1));
    read_two.push_back(read_seconds(bytes, 2));
    ++round;
    state.SetIterationTime(alone.wall.back());
  }
  state.counters["one_thread"] = median_ratio(alone.wall, together.wall);
  state.counters["one_thread_cpu"] = median_ratio(alone.processor, together.processor);
  state.counters["two_threads"] = median_ratio(alone.wall, on_two.wall);
  // Were both threads never waiting for a processor.
  state.counters["two_threads_cpu"] = 2 * median_ratio(alone.processor, on_two.processor);
  state.counters["two_threads_read"] = median_ratio(read_one, read_two);
  const auto best = [](const Timed& timed) {
    return *std::min_element(timed.wall.begin(), timed.wall.end());
  };
  state.counters["two_threads_best"] = best(alone) / best(on_two);
}

/// Prefill over rows of the caller in pages of `page` tokens, in no order, against own rows.
void run_stored(benchmark::State& state, Select select, std::int64_t page) {
  WideLayer layer;
  const std::int64_t row = layer.shape.n_head_kv * kWidth;
  std::vector<std::int32_t> table(static_cast<std::size_t>(kContext / page));
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), std::mt19937(3));
  std::vector<std::uint16_t> cache(static_cast<std::size_t>(kContext * row));
  for (std::int64_t t = 0; t < kContext; ++t) {
    const std::int64_t at = table[static_cast<std::size_t>(t / page)] * page + t % page;
    std::copy_n(layer.rows.begin() + t * row, row, cache.begin() + at * row);
  }
  StoredRows stored;
  stored.keys = stored.values = cache.data();
  stored.rows = kContext;
  stored.key_row_stride = stored.value_row_stride = row;
  stored.key_head_stride = stored.value_head_stride = kWidth;
  stored.table = table.data(), stored.table_size = std::ssize(table);
  stored.page_rows = page, stored.pages = std::ssize(table);
  stored.key_page_stride = stored.value_page_stride = page * row;
  Options options;
  options.select = select;
  options.threads = 1;
  const auto own = engine("cpu").open(layer.shape, options);
  options.kv_owner = KvOwner::caller;
  const auto over = engine("cpu").open(layer.shape, options);
  Timed own_time, over_time;
  const auto prefill = [&](Session& session, const auto& attend) {
    session.reset();
    session.begin(Step::prefill(kContext));
    attend();
    session.end();
  };
  for (auto _ : state) {
    own_time.run([&] {
      prefill(*own, [&] { own->attend(0, layer.view(16), layer.view(8), layer.view(8), layer.result()); });
    });
    over_time.run(
        [&] { prefill(*over, [&] { over->attend_stored(0, layer.view(16), stored, layer.result()); }); });
    state.SetIterationTime(over_time.wall.back());
  }
  state.counters["of_own"] = median_ratio(over_time.wall, own_time.wall);
  state.counters["of_own_cpu"] = median_ratio(over_time.processor, own_time.processor);
}

}  // namespace

void register_sessions() {
  for (const Select select : {Select::h2o, Select::blocks}) {
    for (const bool whole : {true, false}) {
      const std::string name = std::string(whole ? "truncate" : "abort") + "/layers:32/n:32768/" +
                               (select == Select::h2o ? "h2o" : "blocks");
      benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { run(state, select, whole); })
          ->Unit(benchmark::kMicrosecond)
          ->UseManualTime()
          ->Iterations(20);
    }
    const std::string rule = select == Select::h2o ? "h2o" : "blocks";
    benchmark::RegisterBenchmark(("fork/layers:32/n:32768/" + rule).c_str(),
                                 [=](benchmark::State& state) { run_fork(state, select); })
        ->Unit(benchmark::kMicrosecond)
        ->UseManualTime()
        ->Iterations(20);
    benchmark::RegisterBenchmark(("save/layers:8/n:16384/" + rule).c_str(),
                                 [=](benchmark::State& state) { run_files(state, select); })
        ->Unit(benchmark::kMillisecond)
        ->UseManualTime()
        ->Iterations(7);
    for (const std::int64_t page : {16, 256}) {
      benchmark::RegisterBenchmark(("stored/n:4096/page:" + std::to_string(page) + "/" + rule).c_str(),
                                   [=](benchmark::State& state) { run_stored(state, select, page); })
          ->Unit(benchmark::kMillisecond)
          ->UseManualTime()
          ->Iterations(15);
    }
  }
  benchmark::RegisterBenchmark("together/sequences:8/context:4096", run_together)
      ->Unit(benchmark::kMicrosecond)
      ->UseManualTime()
      ->Iterations(200);
}

}  // namespace headwater::bench
