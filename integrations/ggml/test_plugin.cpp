// A small host of the plug-in: test_ggml FOLDER_OF_GGML PLUGIN OTHER_VERSION. It builds nodes as llama.cpp does, and compares with
// a loop in double, with Headwater's own sessions (bits), and with ggml's CPU backend (bits, where a node is handed back). Each
// part runs in a process of its own: settings are read once.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>
#include "headwater/headwater.hpp"

namespace {

int failures = 0;
std::string part;

#define EXPECT(condition, ...)                                                      \
  do {                                                                              \
    if (!(condition)) {                                                             \
      ++failures;                                                                   \
      std::printf("%s:%d: %s: %s: ", __FILE__, __LINE__, part.c_str(), #condition); \
      std::printf(__VA_ARGS__);                                                     \
      std::printf("\n");                                                            \
    }                                                                               \
  } while (0)

constexpr int kThreads = 2;
constexpr ggml_fp16_t kVisible = 0x0000, kHidden = 0xFC00, kNan = 0x7E00;

struct Case {
  std::int64_t n = 64, seen = 1, first = 0, pad = 256;  // row i sees keys first .. first + seen + i - 1
  std::int64_t d = 64, dv = 64, heads = 4, heads_kv = 2;
  ggml_type type = GGML_TYPE_F16;
  bool sinks = false;
  float softcap = 0, max_bias = 0;
  std::int64_t streams = 1, between = 0;  // between: elements between two rows of the cache that are no rows
  unsigned seed = 1;
};

/// The tensors of a node, as llama.cpp builds them: views of a cache [cell][head][element], Q permuted.
struct Built {
  ggml_context_ptr context;
  ggml_backend_buffer_ptr buffer;
  ggml_tensor *q, *k, *v, *mask, *sinks = nullptr, *out;
  ggml_cgraph* graph;
  Case c;
  std::int64_t keys;

  [[nodiscard]] ggml_fp16_t* mask_row(std::int64_t row) const {
    return static_cast<ggml_fp16_t*>(mask->data) + row * keys;
  }
  [[nodiscard]] std::vector<char> run(ggml_backend_t backend) const {
    std::memset(out->data, 0xA5, ggml_nbytes(out));
    EXPECT(ggml_backend_graph_compute(backend, graph) == GGML_STATUS_SUCCESS, "compute");
    const char* const bytes = static_cast<const char*>(out->data);
    return {bytes, bytes + ggml_nbytes(out)};
  }
};

void fill(ggml_tensor* rows, std::mt19937& random, float spread) {
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> values(static_cast<std::size_t>(ggml_nelements(rows)));
  for (float& value : values) value = normal(random);
  ggml_quantize_chunk(rows->type, values.data(), rows->data, 0, ggml_nrows(rows), rows->ne[0], nullptr);
}

Built build(const Case& c) {
  Built b;
  b.c = c;
  b.keys = (c.first + c.seen + c.n - 1 + c.pad - 1) / c.pad * c.pad;
  b.context.reset(ggml_init({1 << 20, nullptr, true}));
  ggml_context* const ctx = b.context.get();
  ggml_tensor* const q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, c.d, c.heads, c.n, c.streams);
  const auto cache = [&](std::int64_t width) {
    return ggml_new_tensor_3d(ctx, c.type, width * c.heads_kv + c.between, b.keys, c.streams);
  };
  const auto view = [&](ggml_tensor* of, std::int64_t width) {
    ggml_tensor* const rows = ggml_view_4d(ctx, of, width, c.heads_kv, b.keys, c.streams,
                                           ggml_row_size(c.type, width), of->nb[1], of->nb[2], 0);
    return ggml_permute(ctx, rows, 0, 2, 1, 3);
  };
  ggml_tensor* const keys = cache(c.d);
  ggml_tensor* const values = cache(c.dv);
  b.q = ggml_permute(ctx, q, 0, 2, 1, 3);
  b.k = view(keys, c.d), b.v = view(values, c.dv);
  b.mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, b.keys, c.n, 1, c.streams);
  b.out = ggml_flash_attn_ext(ctx, b.q, b.k, b.v, b.mask, 1 / std::sqrt(static_cast<float>(c.d)), c.max_bias,
                              c.softcap);
  if (c.sinks)
    b.sinks = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, c.heads), ggml_flash_attn_ext_add_sinks(b.out, b.sinks);
  b.graph = ggml_new_graph_custom(ctx, 16, false);
  ggml_build_forward_expand(b.graph, b.out);
  b.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx, ggml_backend_cpu_buffer_type()));
  std::mt19937 random(c.seed);
  fill(q, random, 1), fill(keys, random, 1), fill(values, random, 1);
  if (c.sinks) fill(b.sinks, random, 2);
  for (std::int64_t i = 0; i < c.n * c.streams; ++i) {
    ggml_fp16_t* const row = b.mask_row(i);
    std::fill_n(row, b.keys, kHidden);
    std::fill_n(row + c.first, c.seen + i % c.n, kVisible);
  }
  return b;
}

std::vector<float> row_of(const ggml_tensor* rows, std::int64_t index, std::int64_t head) {
  std::vector<float> row(static_cast<std::size_t>(rows->ne[0]));
  const char* const at = static_cast<const char*>(rows->data) +
                         static_cast<std::size_t>(index) * rows->nb[1] +
                         static_cast<std::size_t>(head) * rows->nb[2];
  if (rows->type == GGML_TYPE_F32) {
    std::memcpy(row.data(), at, row.size() * sizeof(float));
  } else {
    ggml_get_type_traits(rows->type)->to_float(at, row.data(), rows->ne[0]);
  }
  return row;
}

/// The largest error of `out` as a multiple of what an F32 computation of such sums may be off (so below 1 is right): each logit
/// by d + 4 roundings of its terms, the weights by twice that and 2^-20, the sums by a rounding a key.
double error_of(const Built& b, const std::vector<char>& out) {
  const Case& c = b.c;
  double worst = 0;
  const std::int64_t stride = c.n > 300 ? 97 : 13;
  for (std::int64_t i = 0; i < c.n; i += stride) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::vector<float> q = row_of(b.q, i, h);
      std::vector<double> logits, sum(static_cast<std::size_t>(c.dv));
      double most = 0, top = -std::numeric_limits<double>::infinity(), total = 0, largest = 0;
      for (std::int64_t key = 0; key < c.seen + i; ++key) {
        const std::vector<float> k = row_of(b.k, c.first + key, h / (c.heads / c.heads_kv));
        double dot = 0, size = 0;
        for (std::size_t x = 0; x < q.size(); ++x)
          dot += double{q[x]} * k[x], size += std::fabs(double{q[x]} * k[x]);
        const double scale = 1 / std::sqrt(static_cast<float>(c.d));
        logits.push_back(c.softcap > 0 ? c.softcap * std::tanh(dot * scale / c.softcap) : dot * scale);
        most = std::max(most, size * scale), top = std::max(top, logits.back());
      }
      const double sink = c.sinks ? static_cast<const float*>(b.sinks->data)[h] : -INFINITY;
      top = std::max(top, sink);
      for (std::int64_t key = 0; key < c.seen + i; ++key) {
        const double weight = std::exp(logits[static_cast<std::size_t>(key)] - top);
        const std::vector<float> v = row_of(b.v, c.first + key, h / (c.heads / c.heads_kv));
        for (std::size_t x = 0; x < v.size(); ++x) {
          sum[x] += weight * v[x], largest = std::max(largest, std::fabs(double{v[x]}));
        }
        total += weight;
      }
      total += std::exp(sink - top);
      const double unit = std::ldexp(1, -24);
      const double allowed = largest * (2 * static_cast<double>(c.d + 4) * unit * most +
                                        static_cast<double>(c.seen + i + 8) * unit + std::ldexp(1, -20));
      const auto* const row = reinterpret_cast<const float*>(out.data()) + (i * c.heads + h) * c.dv;
      for (std::int64_t x = 0; x < c.dv; ++x) {
        const double error = std::fabs(row[x] - sum[static_cast<std::size_t>(x)] / total) / allowed;
        worst = std::max(worst, std::isfinite(row[x]) ? error : INFINITY);
      }
    }
  }
  return worst;
}

/// The same node by a session of the library.
struct Asked {
  std::int64_t memory = 512, pinned = 8, chunk = 1024, dense_below = 2048, tail = 64;
};
std::vector<char> by_session(const Built& b, const Asked& asked) {
  using namespace headwater;
  const Case& c = b.c;
  const std::int64_t total = c.seen + c.n - 1;
  Options options = preset(Quality::balanced);
  options.local = 32, options.heavy = asked.memory - 32, options.pinned = asked.pinned,
  options.chunk = asked.chunk;
  options.kv_owner = KvOwner::caller, options.clamp = false, options.threads = kThreads;
  options.scale = 1 / std::sqrt(static_cast<float>(c.d)), options.softcap = c.softcap;
  if (c.sinks) {
    const auto* const sinks = static_cast<const float*>(b.sinks->data);
    options.sinks.assign(sinks, sinks + c.heads);
  }
  const DType type = c.type == GGML_TYPE_F16    ? DType::f16
                     : c.type == GGML_TYPE_BF16 ? DType::bf16
                                                : DType::f32;
  const auto session = engine().open({1, c.heads, c.heads_kv, c.d, c.dv, total, type}, options);
  StoredRows rows;
  rows.keys = static_cast<const char*>(b.k->data) + c.first * b.k->nb[1];
  rows.values = static_cast<const char*>(b.v->data) + c.first * b.v->nb[1];
  rows.rows = total;
  rows.key_row_stride = b.k->nb[1] / dtype_size(type), rows.key_head_stride = b.k->nb[2] / dtype_size(type);
  rows.value_row_stride = b.v->nb[1] / dtype_size(type),
  rows.value_head_stride = b.v->nb[2] / dtype_size(type);
  std::vector<float> out(static_cast<std::size_t>(c.n * c.heads * c.dv));
  std::int64_t done = 0;
  const auto step = [&](const Step& s) {
    session->begin(s);
    const float* const q = static_cast<const float*>(b.q->data) + done * c.heads * c.d;
    session->attend_stored(
        0, Rows::token_major(q, DType::f32, c.heads, c.d), rows,
        MutableRows::token_major(out.data() + done * c.heads * c.dv, DType::f32, c.heads, c.dv));
    session->end();
    done += s.n;
  };
  if (c.seen > 1) {
    session->begin(Step::decode(c.seen - 1));
    session->attend_stored(0, {}, rows, {});
    session->end();
  }
  const std::int64_t sparse = total > asked.dense_below ? std::max<std::int64_t>(0, c.n - asked.tail) : 0;
  if (sparse > 0) step(Step::prefill(sparse, std::max(sparse, asked.chunk + 1)));
  if (sparse < c.n) step(Step::decode(c.n - sparse));
  const char* const bytes = reinterpret_cast<const char*>(out.data());
  return {bytes, bytes + out.size() * sizeof(float)};
}

/// The plug-in, loaded, with a backend of its own and one of ggml.
struct Loaded {
  ggml_backend_reg_t registry;
  ggml_backend_dev_t device = nullptr;
  ggml_backend_ptr backend, cpu;

  explicit Loaded(const char* plugin) : registry(ggml_backend_load(plugin)) {
    EXPECT(registry, "%s does not load", plugin);
    if (!registry) std::exit(1);
    device = ggml_backend_reg_dev_get(registry, 0);
    backend = make();
    cpu.reset(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    threads(cpu.get());
  }
  static void threads(ggml_backend_t backend) {
    const auto registry = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(registry, "ggml_backend_set_n_threads"));
    set(backend, kThreads);
  }
  [[nodiscard]] ggml_backend_ptr make() const {
    ggml_backend_ptr made(ggml_backend_dev_init(device, nullptr));
    threads(made.get());
    return made;
  }
  [[nodiscard]] bool takes(const Built& b) const { return ggml_backend_dev_supports_op(device, b.out); }
  [[nodiscard]] std::string counters() const {
    char line[1024] = "";
    const auto get = reinterpret_cast<void (*)(char*, std::size_t)>(
        ggml_backend_reg_get_proc_address(registry, "headwater_ggml_counters"));
    get(line, sizeof line);
    return line;
  }
  /// Computed by ggml, to the bit, whether the scheduler asked before or not.
  void handed_back(const Built& b, const char* what, const char* reason) const {
    const std::string before = counters();
    EXPECT(b.run(backend.get()) == b.run(cpu.get()), "%s differs from ggml", what);
    EXPECT(counters() != before && counters().find(std::string(reason) + " ") != std::string::npos, "%s: %s",
           what, counters().c_str());
  }
};

// ---- Parts ----

void dense(const Loaded& p) {
  double ours = 0, theirs = 0;
  const auto check = [&](const Case& c) {
    const Built b = build(c);
    EXPECT(p.takes(b), "n %ld d %ld", c.n, c.d);
    const double error = error_of(b, b.run(p.backend.get()));
    EXPECT(error < 1, "error %.3g of what is allowed: n %ld seen %ld d %ld dv %ld heads %ld/%ld type %d",
           error, c.n, c.seen, c.d, c.dv, c.heads, c.heads_kv, c.type);
    if (c.type == GGML_TYPE_F16) {
      ours = std::max(ours, error), theirs = std::max(theirs, error_of(b, b.run(p.cpu.get())));
    }
  };
  for (const ggml_type type :
       {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0}) {
    check({.n = 65, .seen = 130, .heads = 9, .heads_kv = 3, .type = type});
    check({.n = 128, .d = 128, .dv = 128, .heads = 16, .heads_kv = 8, .type = type});
    check({.n = 70, .seen = 300, .first = 37, .d = 256, .dv = 256, .heads = 4, .heads_kv = 4, .type = type});
    check({.n = 64, .seen = 20, .d = 192, .dv = 128, .type = type, .sinks = true});
    check({.n = 100, .seen = 157, .d = 64, .dv = 96, .type = type, .softcap = 5});
  }
  check({.n = 90, .seen = 11, .d = 40, .dv = 72, .between = 3});
  check({.n = 64, .seen = 1, .pad = 1, .heads = 3, .heads_kv = 1});
  check({.n = 1024, .seen = 1025, .heads = 2, .heads_kv = 1});
  std::printf("dense: largest error, as a part of what F32 may be off: ours %.3f, ggml's %.3f\n", ours,
              theirs);
  // That the comparison can fail: one weight more.
  const Built b = build({.n = 64, .seen = 200});
  const std::vector<char> right = b.run(p.backend.get());
  Built shifted = build({.n = 64, .seen = 200});
  shifted.c.seen = 201;
  EXPECT(error_of(shifted, right) > 1, "a row that misses one key of 200 passes");
}

void sparse(const Loaded& p, const Asked& asked, const std::vector<Case>& cases) {
  for (const Case& c : cases) {
    const Built b = build(c);
    EXPECT(p.takes(b), "n %ld", c.n);
    const std::string before = p.counters();
    const std::vector<char> out = b.run(p.backend.get());
    EXPECT(out == by_session(b, asked), "n %ld seen %ld differs from a session", c.n, c.seen);
    const bool is_sparse = c.seen + c.n - 1 > asked.dense_below && c.n > asked.tail;
    const bool counted = p.counters().substr(0, p.counters().find(',')) != before.substr(0, before.find(','));
    EXPECT(counted == is_sparse, "n %ld seen %ld: %s", c.n, c.seen, p.counters().c_str());
    if (is_sparse && c.seen > 4 * asked.memory) {
      EXPECT(error_of(b, out) > 1, "n %ld seen %ld has the precision of dense attention", c.n, c.seen);
    }
  }
}

void small_sparse(const Loaded& p) {
  std::vector<Case> cases;
  for (const std::int64_t n : {64, 95, 96, 97, 128, 161, 300}) {
    for (const std::int64_t seen : {1, 257 - 64, 258 - 64, 500, 1000})
      cases.push_back({.n = n, .seen = seen});
  }
  cases.push_back(
      {.n = 200, .seen = 700, .first = 45, .d = 128, .dv = 64, .heads = 9, .heads_kv = 3, .sinks = true});
  cases.push_back({.n = 200, .seen = 700, .heads = 16, .heads_kv = 8, .type = GGML_TYPE_BF16, .softcap = 20});
  cases.push_back({.n = 200, .seen = 700, .d = 256, .dv = 256, .type = GGML_TYPE_F32, .between = 5});
  sparse(p, {64, 4, 64, 256, 32}, cases);
}

void default_sparse(const Loaded& p) {
  std::vector<Case> cases;
  for (const std::int64_t n : {64, 65, 1023, 1024, 1025, 1088, 1089}) {
    for (const std::int64_t total : {2048, 2049, 3000}) {
      cases.push_back({.n = n, .seen = total - n + 1, .heads = 9, .heads_kv = 3});
    }
  }
  sparse(p, {}, cases);
}

void short_tails(const Loaded& p) {
  EXPECT(p.takes(build({.n = 1100})), "n 1100");  // tails belong to calls that are shorter than this one
  sparse(p, {.tail = 0}, {{.n = 1100, .seen = 1500}});
  sparse(p, {}, {{.n = 1099, .seen = 1500}});
}

void handed_back(const Loaded& p) {
  const auto masks = [&](const char* what, const std::function<void(Built&)>& change,
                         const Case& c = {.n = 70, .seen = 31}) {
    Built b = build(c);
    EXPECT(p.takes(b), "%s", what);
    change(b);
    p.handed_back(b, what, "mask not causal");
  };
  masks("two sequences", [](Built& b) {
    for (std::int64_t i = 35; i < 70; ++i) std::fill_n(b.mask_row(i), 60, kHidden);
  });
  masks("a window", [](Built& b) {
    for (std::int64_t i = 0; i < 70; ++i) std::fill_n(b.mask_row(i), i, kHidden);
  });
  masks("a hole", [](Built& b) { b.mask_row(50)[20] = kHidden; });
  masks("a column is missing", [](Built& b) {
    for (std::int64_t i = 0; i < 70; ++i) b.mask_row(i)[9] = kHidden;
  });
  masks("NaN", [](Built& b) { b.mask_row(60)[3] = kNan; });
  masks("a bias", [](Built& b) { b.mask_row(60)[3] = ggml_fp32_to_fp16(-0.5F); });
  masks("a key after", [](Built& b) { b.mask_row(10)[250] = kVisible; });
  masks("a row that sees nothing", [](Built& b) { std::fill_n(b.mask_row(0), b.keys, kHidden); });
  masks("none sees anything", [](Built& b) { std::fill_n(b.mask_row(0), 70 * b.keys, kHidden); });
  masks("all see everything", [](Built& b) { std::fill_n(b.mask_row(0), 70 * b.keys, kVisible); });
  masks("two rows alike", [](Built& b) { b.mask_row(40)[70] = kHidden; });
  masks("no room for the rows", [](Built& b) { std::fill_n(b.mask_row(0), b.keys, kVisible); });
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    masks("one entry", [&](Built& b) {
      ggml_fp16_t& entry = b.mask_row(random() % 70)[random() % b.keys];
      entry = entry == kHidden ? (random() % 2 ? kVisible : kNan)
                               : (random() % 2 ? kHidden : ggml_fp32_to_fp16(1));
    });
  }
  // Nodes that the scheduler is told not to send are right, too.
  const auto declined = [&](const Case& c, const char* reason) {
    const Built b = build(c);
    EXPECT(!p.takes(b), "%s is not declined", reason);
    p.handed_back(b, reason, reason);
  };
  declined({.n = 63, .seen = 100}, "few rows");
  declined({.n = 1, .seen = 100}, "few rows");
  declined({.n = 64, .max_bias = 8}, "alibi");
  declined({.n = 64, .streams = 2}, "streams");
  declined({.n = 64, .type = GGML_TYPE_Q5_1}, "type");
  declined({.n = 64, .d = 1056, .dv = 64}, "size");
  // What ggml itself would end the process for is only asked about.
  const auto hostile = [&](const char* what, const std::function<void(Built&)>& change) {
    Built b = build({.n = 64});
    change(b);
    EXPECT(!p.takes(b), "%s is not declined", what);
  };
  hostile("no mask", [](Built& b) { b.out->src[3] = nullptr; });
  hostile("no keys", [](Built& b) { b.out->src[1] = nullptr; });
  hostile("a mask for each head", [](Built& b) { b.mask->ne[2] = 4; });
  hostile("a mask too short", [](Built& b) { b.mask->ne[1] = 63; });
  hostile("a mask too narrow", [](Built& b) { b.mask->nb[1] = 8; });
  hostile("odd strides", [](Built& b) { b.k->nb[1] += 1; });
  hostile("rows that overlap", [](Built& b) { b.v->nb[1] = 2; });
  hostile("huge strides", [](Built& b) { b.k->nb[2] = SIZE_MAX - 1; });
  hostile("elements apart", [](Built& b) { b.q->nb[0] = 8; });
  hostile("huge contexts", [](Built& b) { b.k->ne[1] = b.v->ne[1] = b.mask->ne[0] = INT64_MAX; });
  hostile("heads that do not divide", [](Built& b) { b.k->ne[2] = b.v->ne[2] = 3; });
  hostile("no heads", [](Built& b) { b.k->ne[2] = b.v->ne[2] = 0; });
  hostile("heads of another number", [](Built& b) { b.v->ne[2] = 1; });
  hostile("an output of other sizes", [](Built& b) { b.out->ne[1] = 5; });
  hostile("an output of other strides", [](Built& b) { b.out->nb[1] *= 2; });
  hostile("queries of another type", [](Built& b) { b.q->type = GGML_TYPE_F16; });
  hostile("a precision", [](Built& b) { b.out->op_params[3] = 77; });
  hostile("a scale that is none", [](Built& b) { std::memset(b.out->op_params, 0xFF, 4); });
  hostile("a type that is none", [](Built& b) { b.k->type = b.v->type = GGML_TYPE_COUNT; });
  Built nan = build({.n = 64, .sinks = true});
  static_cast<float*>(nan.sinks->data)[1] = NAN;
  p.handed_back(nan, "a sink that is no number", "failed");
}

void two_at_once(const Loaded& p) {
  const Built first = build({.n = 300, .seen = 900, .seed = 3}),
              second = build({.n = 200, .seen = 2000, .d = 128, .dv = 128});
  const std::vector<char> a = first.run(p.backend.get()), b = second.run(p.backend.get());
  const auto other = p.make(), third = p.make();
  int wrong[2] = {};
  std::thread one([&] {
    for (int i = 0; i < 6; ++i) wrong[0] += first.run(other.get()) != a;
  });
  std::thread two([&] {
    for (int i = 0; i < 6; ++i) wrong[1] += second.run(third.get()) != b;
  });
  one.join(), two.join();
  EXPECT(wrong[0] + wrong[1] == 0, "%d and %d of 6", wrong[0], wrong[1]);
}

void scheduled(const Loaded& p) {
  const Built b = build({.n = 128, .seen = 400});
  ggml_backend_t backends[] = {p.backend.get(), p.cpu.get()};
  const ggml_backend_sched_ptr scheduler(ggml_backend_sched_new(backends, nullptr, 2, 64, false, true));
  const std::vector<char> expected = b.run(p.backend.get());
  const std::string before = p.counters();
  std::memset(b.out->data, 0, ggml_nbytes(b.out));
  EXPECT(ggml_backend_sched_graph_compute(scheduler.get(), b.graph) == GGML_STATUS_SUCCESS, "compute");
  EXPECT(std::memcmp(expected.data(), b.out->data, expected.size()) == 0, "other bits");
  EXPECT(p.counters() != before, "the node was not given to the plug-in");
}

void reload(const char* plugin) {
  std::vector<char> first;
  for (int i = 0; i < 5; ++i) {
    Loaded p(plugin);
    const Built b = build({.n = 100, .seen = 600});
    const std::vector<char> out = b.run(p.backend.get());
    if (i == 0) first = out;
    EXPECT(out == first && p.counters().find("nodes: 1 sparse, 0 dense") == 0, "%d: %s", i,
           p.counters().c_str());
    p.backend.reset();
    ggml_backend_unload(p.registry);
  }
}

/// Runs a part in a child, so that it reads its own settings, and nothing that it breaks goes further.
void run(const char* name, const char* settings, const std::function<void()>& body) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    part = name, failures = 0;
    setenv("HEADWATER_GGML", settings, 1);
    body();
    std::fflush(stdout);
    std::_Exit(failures > 0 ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  const bool passed = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  std::printf("%s %s\n", passed ? "passed" : "FAILED", name);
  failures += !passed;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 4)
    return std::fputs("usage: test_ggml FOLDER_OF_GGML PLUGIN PLUGIN_OF_ANOTHER_VERSION\n", stderr), 2;
  const std::string cpu = std::string(arguments[1]) + "/libggml-cpu.so";
  const char* const plugin = arguments[2];
  const auto loaded = [&](const std::function<void(const Loaded&)>& body) {
    return [&, body] {
      ggml_backend_load(cpu.c_str());
      body(Loaded(plugin));
    };
  };
  run("dense", "dense=1,quiet=1", loaded(dense));
  run("small_sparse", "memory=64,pinned=4,chunk=64,dense_below=256,dense_tail=32,every_tail=1,quiet=1",
      loaded(small_sparse));
  run("default_sparse", "", loaded(default_sparse));
  run("short_tails", "every_tail=0,quiet=1", loaded(short_tails));
  run("handed_back", "quiet=1", loaded(handed_back));
  run("two_at_once", "dense_below=512,quiet=1", loaded(two_at_once));
  run("scheduled", "quiet=1", loaded(scheduled));
  run("reload", "dense_below=512,every_tail=1,quiet=1", [&] {
    ggml_backend_load(cpu.c_str());
    reload(plugin);
  });
  run("another_version", "", [&] {
    ggml_backend_load(cpu.c_str());
    EXPECT(!ggml_backend_load(arguments[3]), "it was loaded");
  });
  for (const char* const bad :
       {"memory=63", "memory=", "memory", "=5", "memory=512x", "memory=99999999999999999999", "x=1",
        "dense=2", "memory=64,pinned=33", "least_weight=1", "least_weight=nan", "chunk=1", " dense=1",
        "dense=1,,quiet=1", "threads=-1", "dense_tail=1\n2"}) {
    run(bad, bad, loaded([](const Loaded& p) {
          const Built b = build({.n = 64});
          EXPECT(!p.takes(b), "taken with settings that are not understood");
        }));
  }
  std::printf("%s\n", failures == 0 ? "all passed" : "FAILED");
  return failures == 0 ? 0 : 1;
}
