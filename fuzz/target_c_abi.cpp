// libFuzzer target: wrong calls of the C ABI: any order of calls, NULL, structures of wrong sizes, set
// reserved fields, numbers out of range. A model of the protocol says which status each call must give; every failure
// leaves one line in headwater_last_error() and the session as it was; no byte after a structure is written. What the
// header forbids without a check (a dangling pointer, a row shorter than said) is not tried.

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "fuzz/byte_source.hpp"
#include "fuzz/c_abi_calls.hpp"
#include "fuzz/session_model.hpp"
#include "headwater/headwater.h"

namespace {

using headwater::Step;
using headwater::fuzz::Answer;
using headwater::fuzz::ByteSource;
using headwater::fuzz::call_engine_texts;
using headwater::fuzz::call_rotation;
using headwater::fuzz::Code;
using headwater::fuzz::hostile;
using headwater::fuzz::must;
using headwater::fuzz::said;
using headwater::fuzz::SessionModel;
using headwater::fuzz::wrong;

constexpr std::int64_t kMostTokens = 12;
constexpr unsigned char kCanary = 0xA5;
// All of ABI version 1.
constexpr std::size_t kFirstOptions = offsetof(headwater_options, row_memory);
constexpr std::size_t kFirstEffectiveOptions = offsetof(headwater_effective_options, select);

headwater_status status_of(const Code& code) {
  return code ? static_cast<headwater_status>(*code) : HEADWATER_OK;
}

struct Watch {
  std::int64_t chunks = 0;
  std::int64_t end = 0;
};

void watch(void* user, const headwater_chunk_record* record) {
  auto* seen = static_cast<Watch*>(user);
  if (record->struct_size != sizeof(headwater_chunk_record)) wrong("observer", "struct_size");
  if (record->chunk.begin >= record->chunk.end || record->lse == nullptr)
    wrong("observer", "an empty record");
  if (record->memory_count > record->memory_stride || record->memory_count < 0)
    wrong("observer", "memory_count");
  const bool sparse = record->chunk.mode == HEADWATER_CHUNK_SPARSE;
  if (sparse != (record->colsum_intra != nullptr)) wrong("observer", "column sums of a dense chunk");
  ++seen->chunks;
  seen->end = record->chunk.end;
}

class Caller {
 public:
  explicit Caller(ByteSource source) : source_(source) {}
  ~Caller() { headwater_close(session_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void run() {
    open();
    constexpr int kMostCalls = 40;
    for (int call = 0; call < kMostCalls && !source_.empty(); ++call) {
      one_call();
      check_model();
    }
  }

 private:
  void one_call() {
    switch (source_.range(0, 16)) {
      case 0:
      case 1: begin(); break;
      case 2:
      case 3:
      case 4: attend(); break;
      case 5: end(); break;
      case 6: reset(); break;
      case 7: inspect_layer(); break;
      case 8: inspect_session(); break;
      case 9: sized_structures(); break;
      case 10: call_engine_texts(source_); break;
      case 11: call_rotation(source_); break;
      case 12: observe(); break;
      case 13: abort_step(); break;
      case 14: truncate(); break;
      case 15: interrupt(); break;
      default:
        if (source_.range(0, 3) == 0) {
          open();
        } else {
          whole_step();
        }
    }
  }

  /// The session, or sometimes NULL; then every call is an invalid argument and the model stays as it was.
  headwater_session* handle() {
    null_ = source_.range(0, 15) == 0 || session_ == nullptr;
    before_ = model_;
    return null_ ? nullptr : session_;
  }
  headwater_status with_handle(const Code& code) {
    if (!null_) return status_of(code);
    model_ = before_;
    return HEADWATER_INVALID_ARGUMENT;
  }

  void open() {
    headwater_close(session_);
    session_ = nullptr;
    model_ = {};
    shape_ = {source_.range(1, 2),
              source_.range(1, 2),
              1,
              source_.range(1, 3),
              source_.range(1, 3),
              source_.range(1, kMostTokens),
              static_cast<std::int32_t>(source_.range(0, 2)),
              0};
    // The structure with room after it, as a program of a later version would hand it over.
    alignas(headwater_options) std::array<unsigned char, sizeof(headwater_options) + 16> bytes{};
    headwater_options options;
    must("options_init", headwater_options_init(&options, sizeof options), HEADWATER_OK);
    options.batch = source_.range(1, 8);
    options.chunk = source_.range(1, 5);
    options.local = source_.range(0, 4);
    options.heavy = source_.range(0, 4);
    options.clamp = static_cast<std::int32_t>(source_.range(0, 1));
    options.dense = source_.range(0, 7) == 0 ? 1 : 0;
    options.schedule = static_cast<std::int32_t>(source_.range(0, 1));
    options.score_type = static_cast<std::int32_t>(source_.range(0, 1));
    options.threads = 1;
    options.checkpoints = source_.range(0, 2);
    const std::array<float, 2> per_head{0.5F, -0.25F};
    if (source_.flag()) options.sinks = per_head.data();
    if (source_.flag()) options.alibi = per_head.data();
    const char* engine = source_.flag() ? "reference" : "cpu-portable";
    headwater_status wanted = HEADWATER_OK;
    bool no_session = false;
    const headwater_shape* shape = &shape_;
    const headwater_options* given = &options;
    switch (source_.range(0, 23)) {
      case 0:
        shape_.reserved = 1;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 1:
        shape_.kv_type = static_cast<std::int32_t>(source_.range(3, 200));
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 2:
        shape_.capacity = -hostile_positive();
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 3:
        shape_.n_head_kv = 3;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 4:
        options.struct_size = static_cast<std::size_t>(source_.range(0, 95));
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 5:
        options.struct_size = 4097 + static_cast<std::size_t>(hostile_positive());
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 6:
        options.reserved = -1;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 7:
        options.clamp = 2;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 8:
        options.softcap = std::bit_cast<double>(0x7FF0000000000000ULL);
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 9:
        shape = nullptr;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 10:
        no_session = true;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 11:
        engine = "no-such\nengine";
        wanted = HEADWATER_ENGINE_UNAVAILABLE;
        break;
      case 12:
        options.batch = 0;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 13:
      case 14: {
        // A later version's structure: taken where what we do not know is zero, refused where it is set.
        const bool set = source_.flag();
        options.struct_size = bytes.size();
        std::memcpy(bytes.data(), &options, sizeof options);
        if (set) bytes[sizeof options + static_cast<std::size_t>(source_.range(0, 15))] = 1;
        given = reinterpret_cast<const headwater_options*>(bytes.data());
        if (set) wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      }
      case 15:  // of engines that have none
        (source_.flag() ? options.row_memory : options.device_plus_1) = HEADWATER_DEVICE_MEMORY;
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 16:
        options.stream = &options;  // with rows of the host
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      case 17:  // the structure of ABI version 1: what it did not have is not read
        options.struct_size = kFirstOptions;
        options.row_memory = options.device_plus_1 = 77;
        options.stream = &options;
        break;
      case 18:  // rows of fewer than 32 elements, or another number of bits
        options.kv_bits = source_.flag() ? 8 : source_.range(1, 7);
        wanted = HEADWATER_INVALID_ARGUMENT;
        break;
      default: break;
    }
    headwater_session* opened =
        reinterpret_cast<headwater_session*>(&opened);  // must become NULL or a session
    must("open", headwater_open(engine, shape, given, no_session ? nullptr : &opened), wanted);
    if (no_session) return;
    if ((opened != nullptr) != (wanted == HEADWATER_OK)) wrong("open", "handle and status do not fit");
    session_ = opened;
    if (session_ != nullptr) model_ = model_of_session();
  }

  [[nodiscard]] SessionModel model_of_session() const {
    headwater_effective_options used{};
    must("session_options", headwater_session_options(session_, &used, sizeof used), HEADWATER_OK);
    headwater::Shape shape;
    shape.n_layer = shape_.n_layer;
    shape.capacity = shape_.capacity;
    headwater::EffectiveOptions options;
    options.batch = used.batch;
    options.chunk = used.chunk;
    options.local = used.local;
    options.heavy = used.heavy;
    options.sparse = used.sparse == 1;
    options.checkpoints = used.checkpoints;
    if (options.sparse != (used.local + used.heavy > 0)) wrong("session_options", "sparse");
    headwater::Claims claims;  // of both engines
    claims.abort = claims.truncate = claims.interrupt = true;
    return {shape, options, claims};
  }

  std::int64_t hostile_positive() {
    const std::int64_t value = hostile(source_);
    return value == std::numeric_limits<std::int64_t>::min() ? 0
           : value < 0                                       ? -value
                                                             : value % (std::int64_t{1} << 62);
  }

  void begin() {
    const bool prefill = source_.flag();
    const std::int64_t n = source_.range(0, 3) != 0 ? source_.range(1, 6) : hostile(source_);
    const std::int64_t turn = source_.flag() ? 0 : source_.flag() ? n : hostile(source_);
    headwater_session* session = handle();
    const Step step = prefill ? Step::prefill(n, turn) : Step::decode(n);
    const headwater_status wanted = with_handle(model_.begin(step));
    must("begin", prefill ? headwater_begin_prefill(session, n, turn) : headwater_begin_decode(session, n),
         wanted);
  }

  void whole_step() {
    if (session_ == nullptr || model_.open || model_.failed) return;
    const std::int64_t n = source_.range(1, 6);
    must("begin", headwater_begin_prefill(session_, n, 0), status_of(model_.begin(Step::prefill(n))));
    for (std::int64_t layer = 0; layer < shape_.n_layer && model_.open; ++layer)
      attend_layer(session_, layer, 9);
    if (model_.open) must("end", headwater_end(session_), status_of(model_.end()));
  }

  void attend() {
    const std::int64_t layer = source_.range(0, 7) != 0 ? source_.range(0, 1) : hostile(source_);
    const auto fault = static_cast<int>(source_.range(0, 15));
    headwater_session* session = handle();
    attend_layer(session, layer, fault);
  }

  void attend_layer(headwater_session* session, std::int64_t layer, int fault) {
    const std::int64_t n = model_.open ? model_.step_tokens : 1;
    const auto heads = shape_.n_head;
    const auto kv = shape_.n_head_kv;
    std::vector<float> q(static_cast<std::size_t>(n * heads * shape_.d_head), 0.5F);
    std::vector<float> k(static_cast<std::size_t>(n * kv * shape_.d_head), 0.25F);
    std::vector<float> v(static_cast<std::size_t>(n * kv * shape_.d_value), 1.5F);
    if (!q.empty()) q[0] = static_cast<float>(source_.range(-4, 4));
    if (!k.empty()) k.back() = static_cast<float>(source_.range(-4, 4));
    std::vector<float> out(static_cast<std::size_t>(n * heads * shape_.d_value), -77.0F);
    headwater_rows queries{q.data(), heads * shape_.d_head, shape_.d_head, HEADWATER_F32, 0};
    headwater_rows keys{k.data(), kv * shape_.d_head, shape_.d_head, HEADWATER_F32, 0};
    const headwater_rows values{v.data(), kv * shape_.d_value, shape_.d_value, HEADWATER_F32, 0};
    headwater_mutable_rows result{out.data(), heads * shape_.d_value, shape_.d_value, HEADWATER_F32, 0};
    bool sound = true;
    const headwater_rows* q_given = &queries;
    const headwater_mutable_rows* out_given = &result;
    switch (fault) {
      case 0:
        queries.data = nullptr;
        sound = false;
        break;
      case 1:
        keys.type = 3;
        sound = false;
        break;
      case 2:
        result.reserved = 7;
        sound = false;
        break;
      case 3:
        q_given = nullptr;
        sound = false;
        break;
      case 4:
        out_given = nullptr;
        sound = false;
        break;
      case 5:
        keys.type = -1;
        sound = false;
        break;
      default: break;
    }
    // A call that is wrong in two ways may say either.
    const bool twice_wrong = !sound && (model_.failed || !model_.open);
    headwater_status wanted = status_of(model_.attend(layer, sound));
    if (session == nullptr) {
      model_ = before_;
      wanted = HEADWATER_INVALID_ARGUMENT;
    }
    std::vector<float> lse(static_cast<std::size_t>(n * heads), -77.0F);
    const headwater_lse_output sums{lse.data(), heads, 1};
    const bool asked = source_.flag();
    const headwater_status got =
        said("attend", asked ? headwater_attend_lse(session, layer, q_given, &keys, &values, out_given, &sums)
                             : headwater_attend(session, layer, q_given, &keys, &values, out_given));
    const bool either = twice_wrong && got == HEADWATER_INVALID_ARGUMENT;
    if (got != wanted && !either)
      wrong("attend", "status " + std::to_string(got) + ", not " + std::to_string(wanted));
    if (got == HEADWATER_INTERRUPTED) return;  // outputs hold anything (INTR-1)
    for (const float sum : lse) {
      if (got == HEADWATER_OK && asked ? !std::isfinite(sum) : sum != -77.0F)
        wrong("attend_lse", "log-sum-exp");
    }
    for (const float value : out) {
      // Convex combinations of the values 1.5, or nothing at all; a sink only shrinks them.
      if (got == HEADWATER_OK ? !(value >= 0.0F && value <= 1.5001F) : value != -77.0F)
        wrong("attend", "output");
    }
  }

  void end() {
    headwater_session* session = handle();
    const headwater_status wanted = with_handle(model_.end());
    must("end", headwater_end(session), wanted);
  }

  void reset() {
    headwater_session* session = handle();
    if (!null_) model_.reset();
    must("reset", headwater_reset(session), null_ ? HEADWATER_INVALID_ARGUMENT : HEADWATER_OK);
  }

  void abort_step() {
    headwater_session* session = handle();
    const headwater_status wanted = with_handle(model_.abort());
    must("abort", headwater_abort(session), wanted);
  }

  void truncate() {
    const std::int64_t n = source_.range(0, 3) != 0 ? source_.range(0, model_.tokens) : hostile(source_);
    headwater_session* session = handle();
    const headwater_status wanted = with_handle(model_.truncate(n));
    must("truncate", headwater_truncate(session, n), wanted);
  }

  void interrupt() {
    constexpr std::array<Answer, 4> kAnswers{Answer::none, Answer::go_on, Answer::go_on, Answer::stop};
    const Answer answer = kAnswers[static_cast<std::size_t>(source_.range(0, 3))];
    headwater_session* session = handle();
    const headwater_status wanted = with_handle(model_.set_interrupt(answer));
    headwater_interrupt asked = nullptr;
    if (answer == Answer::go_on) asked = [](void*) -> std::int32_t { return 0; };
    if (answer == Answer::stop) asked = [](void*) -> std::int32_t { return -1; };
    must("set_interrupt", headwater_set_interrupt(session, asked, nullptr), wanted);
  }

  void inspect_layer() {
    headwater_session* session = handle();
    const std::int64_t layer = source_.range(0, 3) != 0 ? source_.range(0, 2) : hostile(source_);
    const bool sound = session != nullptr && layer >= 0 && layer < shape_.n_layer;
    const headwater_status wanted = sound ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT;
    headwater_score_view scores{};
    must("scores", headwater_scores(session, layer, &scores), wanted);
    headwater_memory_view memory{};
    must("memory", headwater_memory(session, layer, &memory), wanted);
    if (sound) {
      for (std::int64_t h = 0; h < shape_.n_head; ++h) {
        for (std::int64_t i = 0; i < memory.width; ++i) {
          const std::int32_t entry = memory.data[h * memory.head_stride + i];
          if (i >= memory.count ? entry != -1 : entry < 0 || entry >= model_.tokens + model_.step_tokens)
            wrong("memory", "entry " + std::to_string(entry));
        }
      }
    }
    const std::int64_t head = source_.range(0, 3) != 0 ? 0 : hostile(source_);
    const std::int64_t first = source_.range(0, 3) != 0 ? source_.range(0, 4) : hostile(source_);
    const std::int64_t count = source_.range(0, 3) != 0 ? source_.range(0, 4) : hostile(source_);
    std::array<float, kMostTokens> copied{};
    const bool inside = sound && head >= 0 && head < shape_.n_head && first >= 0 && first <= model_.tokens &&
                        count >= 0 && count <= model_.tokens - first;
    must("copy_scores", headwater_copy_scores(session, layer, head, first, count, copied.data()),
         inside ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
    for (const float score : copied) {
      if (!(score >= 0.0F)) wrong("copy_scores", "a score below 0");
    }
    read_rows(session, layer, first);
  }

  void read_rows(headwater_session* session, std::int64_t layer, std::int64_t position) {
    std::array<float, 4> row{};
    const std::int64_t width = source_.range(0, 3) != 0 ? shape_.d_head : hostile(source_);
    const std::int64_t head = source_.range(0, 3) != 0 ? 0 : hostile(source_);
    const bool stored = position >= 0 && position < model_.tokens;
    const bool attended = position >= model_.tokens && position < model_.tokens + model_.step_tokens;
    const bool sound = session != nullptr && layer >= 0 && layer < shape_.n_layer && head >= 0 &&
                       head < shape_.n_head_kv && width == shape_.d_head;
    const headwater_status got =
        said("read_key", headwater_read_key(session, layer, head, position, row.data(), width));
    // Rows of an open or failed step: some are stored, some not yet.
    if (sound && attended) return;
    const headwater_status wanted = sound && stored ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT;
    if (got != wanted) wrong("read_key", "status " + std::to_string(got) + ", not " + std::to_string(wanted));
  }

  void inspect_session() {
    headwater_session* session = handle();
    const headwater_status wanted = session == nullptr ? HEADWATER_INVALID_ARGUMENT : HEADWATER_OK;
    std::int64_t count = -1;
    must("plan_count", headwater_plan_count(session, &count), wanted);
    must("plan_count", headwater_plan_count(session, nullptr), HEADWATER_INVALID_ARGUMENT);
    if (session != nullptr && count != static_cast<std::int64_t>(model_.plan().size()))
      wrong("plan_count", "the plan");
    headwater_chunk chunk{};
    const std::int64_t index = hostile(source_);
    const bool inside = session != nullptr && index >= 0 && index < count;
    must("plan_chunk", headwater_plan_chunk(session, index, &chunk),
         inside ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
    if (inside) {
      const headwater::Chunk wanted_chunk = model_.plan()[static_cast<std::size_t>(index)];
      if (chunk.begin != wanted_chunk.begin || chunk.end != wanted_chunk.end) wrong("plan_chunk", "the plan");
    }
    std::int64_t warnings = -1;
    must("warning_count", headwater_warning_count(session, &warnings), wanted);
    const char* text = nullptr;
    const bool said_one = session != nullptr && index >= 0 && index < warnings;
    must("warning", headwater_warning(session, index, &text),
         said_one ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
    if (said_one && (text == nullptr || *text == '\0')) wrong("warning", "an empty one");
  }

  /// Structures that travel with their size: never a byte after it, zeros where this library knows nothing.
  void sized_structures() {
    headwater_session* session = handle();
    alignas(8) std::array<unsigned char, 256> bytes;
    bytes.fill(kCanary);
    const auto claimed = static_cast<std::size_t>(source_.range(0, 200));
    const auto call = [&](const char* name, std::size_t least, bool needs_session, auto&& ask) {
      bytes.fill(kCanary);
      const bool fine = claimed >= least && (session != nullptr || !needs_session);
      must(name, ask(claimed), fine ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
      for (std::size_t i = fine ? claimed : 0; i < bytes.size(); ++i) {
        if (bytes[i] != kCanary) wrong(name, "byte " + std::to_string(i) + " was written");
      }
    };
    call("options_init", kFirstOptions, false, [&](std::size_t size) {
      return headwater_options_init(reinterpret_cast<headwater_options*>(bytes.data()), size);
    });
    call("options_preset", kFirstOptions, false, [&](std::size_t size) {
      return headwater_options_preset("reference", HEADWATER_QUALITY_BALANCED,
                                      reinterpret_cast<headwater_options*>(bytes.data()), size);
    });
    call("session_options", kFirstEffectiveOptions, true, [&](std::size_t size) {
      return headwater_session_options(session, reinterpret_cast<headwater_effective_options*>(bytes.data()),
                                       size);
    });
    call("memory_bytes", sizeof(headwater_memory_bytes), true, [&](std::size_t size) {
      return headwater_session_memory_bytes(session, reinterpret_cast<headwater_memory_bytes*>(bytes.data()),
                                            size);
    });
    const auto huge = static_cast<std::size_t>(source_.wide()) | 4097U;
    must("options_init", headwater_options_init(reinterpret_cast<headwater_options*>(bytes.data()), huge),
         HEADWATER_INVALID_ARGUMENT);
    must("options_init", headwater_options_init(nullptr, claimed), HEADWATER_INVALID_ARGUMENT);
  }

  void observe() {
    headwater_session* session = handle();
    must("set_observer", headwater_set_observer(session, source_.flag() ? &watch : nullptr, &seen_),
         session == nullptr ? HEADWATER_INVALID_ARGUMENT : HEADWATER_OK);
  }

  void check_model() {
    if (session_ == nullptr) return;
    std::int32_t state = -1, failed = -1;
    std::int64_t tokens = -1;
    must("session_state", headwater_session_state(session_, &state), HEADWATER_OK);
    must("session_tokens", headwater_session_tokens(session_, &tokens), HEADWATER_OK);
    must("session_failed", headwater_session_failed(session_, &failed), HEADWATER_OK);
    if (failed != (model_.failed ? 1 : 0)) wrong("session_failed", std::to_string(failed));
    if (state != static_cast<std::int32_t>(model_.state())) wrong("session_state", std::to_string(state));
    if (tokens != model_.tokens)
      wrong("session_tokens", std::to_string(tokens) + ", not " + std::to_string(model_.tokens));
    must("session_tokens", headwater_session_tokens(session_, nullptr), HEADWATER_INVALID_ARGUMENT);
  }

  ByteSource source_;
  headwater_session* session_ = nullptr;
  headwater_shape shape_{};
  SessionModel model_;
  SessionModel before_;
  bool null_ = false;
  Watch seen_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Caller(ByteSource({data, size})).run();
  return 0;
}
