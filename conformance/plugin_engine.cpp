#include "conformance/plugin_engine.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "conformance/allocation_counter.hpp"
#include "conformance/case.hpp"
#include "conformance/float_controls.hpp"
#include "conformance/plugin_guard.hpp"
#include "conformance/session_files.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr std::size_t kLongestMessage = 1023;
constexpr std::int64_t kMostWarnings = 100;
constexpr unsigned char kUnwritten = 0xcc;  // a value that no plug-in should return

[[noreturn]] void broken(const std::string& what) { throw Violation("plug-in: " + what); }

// Runs one function of the table: allocations inside are the engine's own, exceptions must not come out, and the oracles
// must not compute otherwise from then on.
template <class Call>
headwater_status invoke(const char* function, const Call& call) {
  const AllocationPause theirs(false);
  const FloatControls before;
  headwater_status status = HEADWATER_INTERNAL;
  try {
    status = call();
  } catch (...) {
    const AllocationPause ours(true);
    broken(fmt::format("{}() let a C++ exception out", function));
  }
  if (before.changed()) {
    const AllocationPause ours(true);
    const std::string difference = before.difference();
    before.restore();
    broken(fmt::format("{}() left other floating-point controls ({}); allowed: those it was called with",
                       function, difference));
  }
  return status;
}

// A status that is not OK becomes the Error that it stands for.
void require_ok(const headwater_engine_table& table, const char* function, headwater_status status) {
  if (status == HEADWATER_OK) return;
  if (status < HEADWATER_INVALID_ARGUMENT || status > HEADWATER_UNSUPPORTED) {
    broken(fmt::format("{}() returned status {}; allowed: 0 .. {}", function, status,
                       static_cast<int>(HEADWATER_UNSUPPORTED)));
  }
  const char* text = table.last_error();
  if (text == nullptr) broken(fmt::format("last_error() is NULL after a failed {}()", function));
  const std::size_t length = ::strnlen(text, kLongestMessage + 1);
  if (length == 0 || length > kLongestMessage) {
    broken(fmt::format("last_error() after {}() has {} bytes; allowed: 1 .. {}", function,
                       length == 0 ? "no" : "too many", kLongestMessage));
  }
  const std::string message(text, length);
  if (message.find('\n') != std::string::npos) {
    broken(fmt::format("last_error() after {}() is more than one line", function));
  }
  // The exception is freed by the case, where allocations count: so must be its making.
  const AllocationPause counted(false);
  throw Error(static_cast<ErrorCode>(status), message);
}

template <class Enum>
Enum enumerator(std::int32_t value, std::int32_t last, const char* what) {
  if (value < 0 || value > last) broken(fmt::format("{} is {}; allowed: 0 .. {}", what, value, last));
  return static_cast<Enum>(value);
}

// The session that open(), load() or fork() makes. `handed_back` sees what the function was given, whatever it returned.
template <class Make, class HandedBack>
headwater_session* made_by(const headwater_engine_table& table, const std::string& function, const Make& make,
                           const HandedBack& handed_back) {
  Guarded<headwater_session*> handle(1, kUnwritten);
  const headwater_status status = invoke(function.c_str(), [&] { return make(handle.data()); });
  handed_back();
  handle.check(function + ": session");
  if (status != HEADWATER_OK && handle.value() != nullptr) {
    broken(fmt::format("a failed {}() did not set *session to NULL", function));
  }
  require_ok(table, function.c_str(), status);
  if (handle.value() == nullptr) broken(fmt::format("{}() succeeded with *session NULL", function));
  return handle.value();
}

MemoryBytes bytes_of(const headwater_memory_bytes& said) {
  return {said.kv, said.scores, said.memory_sets, said.workspace};
}

ChunkMode chunk_mode(std::int32_t value, const char* what) {
  return enumerator<ChunkMode>(value, HEADWATER_CHUNK_DECODE, what);
}

Guarded<headwater_rows> guarded_rows(const Rows& rows) {
  return Guarded<headwater_rows>::input(
      {rows.data, rows.row_stride, rows.head_stride, static_cast<std::int32_t>(rows.type), 0});
}

Guarded<headwater_mutable_rows> guarded_rows(const MutableRows& rows) {
  return Guarded<headwater_mutable_rows>::input(
      {rows.data, rows.row_stride, rows.head_stride, static_cast<std::int32_t>(rows.type), 0});
}

// Checks what C's pointers do not say: the sizes of sinks and slopes, and numbers that are NaN, which is C's "not said".
void check_what_c_cannot_say(const Shape& shape, const Options& options) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::invalid_argument, what); };
  const auto per_head = [&](const std::string& field, const std::vector<float>& values) {
    const bool one_each = shape.n_head > 0 && values.size() == static_cast<std::size_t>(shape.n_head);
    if (values.empty() || one_each) return;
    refuse(fmt::format("{} has {} entries; allowed: 0 or n_head = {}", field, values.size(), shape.n_head));
  };
  const auto number = [&](const std::string& field, const std::optional<double>& value) {
    if (value && std::isnan(*value)) refuse(field + " is nan; allowed: a finite number");
  };
  per_head("sinks", options.sinks);
  per_head("alibi", options.alibi);
  number("scale", options.scale);
  for (std::size_t l = 0; l < options.layers.size(); ++l) {
    const LayerOptions& own = options.layers[l];
    const std::string of = fmt::format("layers[{}].", l);
    number(of + "scale", own.scale);
    number(of + "softcap", own.softcap);
    if (own.sinks) per_head(of + "sinks", *own.sinks);
  }
}

// What is not claimed is not asked of the plug-in, whose header may be older.
void check_claimed(const Claims& claims, const Options& options) {
  if (options.checkpoints != 0 && !claims.truncate) {
    throw Error(ErrorCode::unsupported,
                fmt::format("checkpoints is {}; allowed: 0: the plug-in does not claim truncate",
                            options.checkpoints));
  }
  if (options.allocator.allocate != nullptr && !claims.host_memory) {
    throw Error(ErrorCode::unsupported, "allocator is given; allowed: none: the plug-in does not claim it");
  }
  if (!options.layers.empty() && !claims.layers) {
    throw Error(ErrorCode::unsupported,
                fmt::format("layers has {} entries; allowed: none: the plug-in does not claim layers",
                            options.layers.size()));
  }
  if (options.kv_owner == KvOwner::caller && !claims.stored_rows) {
    throw Error(ErrorCode::unsupported,
                "kv_owner is 1 (caller); allowed: 0 (session): the plug-in does not claim stored_rows");
  }
  if (options.kv_bits != 0 && !claims.kv_bits) {
    throw Error(ErrorCode::unsupported,
                fmt::format("kv_bits is {}; allowed: 0: the plug-in does not claim it", options.kv_bits));
  }
}

// Entries of options.layers are longer than this header's: a plug-in must take layer_size from one to the next.
constexpr std::size_t kLayerSize = sizeof(headwater_layer_options) + sizeof(double);

// Sinks of the layers that have their own, one layer after the other. C has no empty ones: -inf for each head.
std::vector<float> sinks_of_layers(const Shape& shape, const std::vector<LayerOptions>& layers) {
  constexpr std::int64_t kMostHeads = 65536;
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const auto heads = static_cast<std::size_t>(std::clamp<std::int64_t>(shape.n_head, 0, kMostHeads));
  std::vector<float> all;
  for (const LayerOptions& own : layers) {
    if (own.sinks && own.sinks->empty()) all.insert(all.end(), heads, kNone);
    if (own.sinks) all.insert(all.end(), own.sinks->begin(), own.sinks->end());
  }
  return all;
}

std::vector<unsigned char> native(const Shape& shape, const std::vector<LayerOptions>& layers,
                                  const float* sinks) {
  constexpr double kNotSaid = std::numeric_limits<double>::quiet_NaN();
  std::vector<unsigned char> bytes(layers.size() * kLayerSize);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const LayerOptions& own = layers[l];
    headwater_layer_options entry{};
    entry.window = own.window;
    entry.scale = own.scale.value_or(kNotSaid);
    entry.softcap = own.softcap.value_or(kNotSaid);
    entry.sinks = own.sinks ? sinks : nullptr;
    if (own.sinks) sinks += shape.n_head;
    entry.d_head = own.d_head;
    entry.d_value = own.d_value;
    std::memcpy(bytes.data() + l * kLayerSize, &entry, sizeof entry);
  }
  return bytes;
}

// Shape and options as a plug-in is handed them.
struct Asked {
  Asked(const headwater_engine_table& table, const Shape& of, const Options& asked)
      : options(asked),
        shape(Guarded<headwater_shape>::input({of.n_layer, of.n_head, of.n_head_kv, of.d_head, of.d_value,
                                               of.capacity, static_cast<std::int32_t>(of.kv_type), 0})),
        sinks(options.sinks),
        alibi(options.alibi),
        dense_layers(options.dense_layers),
        layer_sinks(sinks_of_layers(of, options.layers)),
        layers(native(of, options.layers, layer_sinks.data())),
        given(Guarded<headwater_options>::input(native_options(table))) {}

  void check(const std::string& call) const {
    shape.check(call + ": shape");
    given.check(call + ": options");
    sinks.check(call + ": sinks");
    alibi.check(call + ": alibi");
    dense_layers.check(call + ": dense_layers");
    layers.check(call + ": layers");
    layer_sinks.check(call + ": sinks of layers");
  }
  void spoil() {
    shape.spoil();
    given.spoil();
    sinks.spoil();
    alibi.spoil();
    dense_layers.spoil();
    layers.spoil();
    layer_sinks.spoil();
  }

  Options options;
  Guarded<headwater_shape> shape;
  Guarded<float> sinks;
  Guarded<float> alibi;
  Guarded<std::int64_t> dense_layers;
  Guarded<float> layer_sinks;
  Guarded<unsigned char> layers;
  Guarded<headwater_options> given;

 private:
  headwater_options native_options(const headwater_engine_table& table) {
    const bool blocks =
        options.select != Select::h2o;  // the sizes of rule `blocks` are not read with h2o (SEL-1)
    // Tables of older headers may refuse what they do not know.
    const bool knows_hosts = table.struct_size > offsetof(headwater_engine_table, abort);
    const bool knows_pages = table.struct_size > offsetof(headwater_engine_table, fork);
    const bool has_layers = !options.layers.empty();
    return {.struct_size = sizeof(headwater_options),
            .batch = options.batch,
            .chunk = options.chunk,
            .local = options.local,
            .heavy = options.heavy,
            .clamp = options.clamp ? 1 : 0,
            .dense = options.dense ? 1 : 0,
            .scale = options.scale.value_or(std::numeric_limits<double>::quiet_NaN()),
            .softcap = options.softcap,
            .sinks = options.sinks.empty() ? nullptr : sinks.data(),
            .alibi = options.alibi.empty() ? nullptr : alibi.data(),
            .score_type = static_cast<std::int32_t>(options.score_type),
            .schedule = static_cast<std::int32_t>(options.schedule),
            .threads = options.threads,
            .reserved = 0,
            .row_memory = static_cast<std::int32_t>(options.row_memory),
            .reserved2 = 0,
            .stream = options.stream,
            .device_plus_1 = options.device ? *options.device + 1 : 0,
            .reserved3 = 0,
            .select = static_cast<std::int32_t>(options.select),
            .reserved4 = 0,
            .key_block = blocks ? options.key_block : 0,
            .query_block = blocks ? options.query_block : 0,
            .pool = blocks ? options.pool : 0,
            .refine = blocks ? options.refine : 0,
            .pinned = options.pinned,
            .dense_below = options.dense_below,
            .dense_layers = options.dense_layers.empty() ? nullptr : dense_layers.data(),
            .dense_layer_count = static_cast<std::int64_t>(options.dense_layers.size()),
            .checkpoints = options.checkpoints,
            .parallel_for = knows_hosts ? options.parallel_for : nullptr,
            .parallel_context = knows_hosts ? options.parallel_context : nullptr,
            .kv_owner = static_cast<std::int32_t>(options.kv_owner),
            .reserved5 = 0,
            .layers = has_layers ? reinterpret_cast<headwater_layer_options*>(layers.data()) : nullptr,
            .layer_count = static_cast<std::int64_t>(options.layers.size()),
            .layer_size = has_layers ? kLayerSize : 0,
            .page = knows_pages ? options.page : 0,
            .allocate = options.allocator.allocate,
            .release = options.allocator.release,
            .allocator_context = options.allocator.context,
            .least_weight = options.select == Select::sketches ? options.least_weight : 0.0,
            .kv_bits = options.kv_bits};
  }
};

class PluginSession final : public Session {
 public:
  /// Takes a session of the plug-in that is open.
  PluginSession(const headwater_engine_table& table, const Claims& claims, const Shape& shape,
                std::shared_ptr<const Asked> asked, headwater_session* session)
      : table_(table), claims_(claims), shape_(shape), asked_(std::move(asked)), session_(session) {
    try {
      read_options();
    } catch (...) {
      table_.close(session_);
      throw;
    }
  }
  ~PluginSession() override {
    const FloatControls before;
    table_.close(session_);
    before.restore();  // a destructor cannot report an error
  }
  PluginSession(const PluginSession&) = delete;
  PluginSession& operator=(const PluginSession&) = delete;

  void begin(const Step& step) override;
  void attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v, const MutableRows& out,
              const LseOutput& lse) override;
  void attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows, const MutableRows& out,
                     const LseOutput& lse) override;
  void end() override;
  void reset() override;
  void abort() override;
  void truncate(std::int64_t n) override;
  [[nodiscard]] std::unique_ptr<Session> fork() override;
  void save(const std::string& path, const std::string& fingerprint);
  [[noreturn]] static void refuse_unclaimed(const char* what) { refuse(what); }
  [[nodiscard]] SessionState state() const override;
  [[nodiscard]] bool failed() const override;
  [[nodiscard]] std::int64_t tokens() const override;
  [[nodiscard]] const Shape& shape() const override { return shape_; }
  [[nodiscard]] const EffectiveOptions& options() const override { return options_; }
  [[nodiscard]] MemoryBytes memory_bytes() const override;
  [[nodiscard]] std::span<const Chunk> plan() const override;
  [[nodiscard]] std::span<const Chunk> chunks() const override;
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override {
    read_row("read_key", table_.read_key, layer_shape(layer).d_head, layer, head_kv, position, row);
  }
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override {
    read_row("read_value", table_.read_value, layer_shape(layer).d_value, layer, head_kv, position, row);
  }
  void set_observer(Observer observer) override;
  void set_interrupt(Interrupt interrupt) override;

 private:
  // Sizes of a layer; of the session where it has no such layer.
  [[nodiscard]] Shape layer_shape(std::int64_t layer) const {
    return layer >= 0 && layer < shape_.n_layer ? options_.shape_of(shape_, layer) : shape_;
  }
  void read_options();
  void require_claimed(const Rows& q, const MutableRows& out, const LseOutput& lse) const;
  template <class Call, class HandedBack>
  void run_attend(const char* name, const Call& call, const HandedBack& handed_back);
  // Rows that are not there are a NULL where the plug-in takes one (DEC-2).
  template <class View>
  [[nodiscard]] View* pointer_to(Guarded<View>& rows) const {
    return claims_.rows_alone && rows.value().data == nullptr ? nullptr : rows.data();
  }
  void require_no_failed_observer() const;
  void require_callbacks_in_attend() const;
  void require_step(const char* function, headwater_status status);
  bool called_in_attend(const char* callback) noexcept;
  static void on_record(void* user, const headwater_chunk_record* record) noexcept;
  static std::int32_t on_interrupt(void* user) noexcept;
  void take_record(const headwater_chunk_record* record);

  // Asks for one value: session, then a pointer to it.
  template <class Value>
  Value ask(const char* name, headwater_status (*function)(const headwater_session*, Value*)) const {
    const AllocationPause ours(true);
    Guarded<Value> value(1, kUnwritten);
    const headwater_status status = invoke(name, [&] { return function(session_, value.data()); });
    value.check(name);
    require_ok(table_, name, status);
    return value.value();
  }
  template <class Value, class Function>
  Value ask_at(const char* name, std::int64_t index, const Function& function) const {
    const AllocationPause ours(true);
    Guarded<Value> value(1, kUnwritten);
    const headwater_status status = invoke(name, [&] { return function(session_, index, value.data()); });
    value.check(name);
    require_ok(table_, name, status);
    return value.value();
  }
  template <class Value>
  Value ask_struct(const char* name,
                   headwater_status (*function)(const headwater_session*, Value*, std::size_t)) const {
    const AllocationPause ours(true);
    Guarded<Value> value(1, kUnwritten);
    const headwater_status status =
        invoke(name, [&] { return function(session_, value.data(), sizeof(Value)); });
    value.check(name);
    require_ok(table_, name, status);
    return value.value();
  }
  void read_row(const char* name,
                headwater_status (*function)(const headwater_session*, std::int64_t, std::int64_t,
                                             std::int64_t, float*, std::int64_t),
                std::int64_t width, std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const;

  const headwater_engine_table& table_;
  const Claims& claims_;
  Shape shape_;
  // Spoiled after open(), and kept, by forks too: a plug-in that kept the pointers instead of the values computes with NaN.
  std::shared_ptr<const Asked> asked_;
  headwater_session* session_;
  EffectiveOptions options_;
  mutable std::vector<Chunk> plan_;
  mutable std::vector<Chunk> said_chunks_;
  std::vector<Chunk> chunks_;  // kept here: only tables with save() have a question for those of all steps
  std::size_t chunks_before_ = 0;  // of them before the step that is open

  Observer observer_;
  Interrupt interrupt_;
  std::exception_ptr callback_error_;  // of the attend() that runs
  bool observer_failed_ = false;       // STATE-5: only abort() and reset() are legal
  bool open_ = false;                  // a step
  bool decoding_ = false;              // the open step
  bool failed_ = false;                // of a table that cannot say so, by its statuses
  std::atomic<std::thread::id> attending_{};
  std::atomic<const char*> called_elsewhere_{nullptr};  // the callback
};

void PluginSession::read_options() {
  const auto said = ask_struct<headwater_effective_options>("session_options", table_.session_options);
  options_.batch = said.batch;
  options_.chunk = said.chunk;
  options_.local = said.local;
  options_.heavy = said.heavy;
  options_.scale = said.scale;
  options_.softcap = said.softcap;
  options_.sparse = enumerator<std::int32_t>(said.sparse, 1, "session_options: sparse") == 1;
  options_.score_type =
      enumerator<ScoreType>(said.score_type, HEADWATER_SCORE_F32, "session_options: score_type");
  options_.schedule = enumerator<Schedule>(said.schedule, HEADWATER_CHUNK_MAJOR, "session_options: schedule");
  options_.threads = said.threads;
  options_.select = enumerator<Select>(said.select, HEADWATER_SELECT_SKETCHES, "session_options: select");
  options_.key_block = said.key_block;
  options_.query_block = said.query_block;
  options_.pool = said.pool;
  options_.refine = said.refine;
  options_.pinned = said.pinned;
  options_.dense_below = said.dense_below;
  options_.checkpoints = said.checkpoints;
  options_.kv_owner = enumerator<KvOwner>(said.kv_owner, HEADWATER_KV_OF_CALLER, "session_options: kv_owner");
  options_.page = said.page;
  options_.least_weight = said.least_weight;
  options_.kv_bits = said.kv_bits;
  options_.dense_layers = asked_->options.dense_layers;
  options_.layers = asked_->options.layers;
  const bool sized = said.key_block > 0 && said.query_block > 0 && said.pool > 0 && said.refine > 0;
  if (options_.select == Select::blocks && !sized) {
    broken(fmt::format("session_options: rule blocks with key_block {}, query_block {}, pool {}, refine {}",
                       said.key_block, said.query_block, said.pool, said.refine));
  }
  const auto warnings = ask<std::int64_t>("warning_count", table_.warning_count);
  if (warnings < 0 || warnings > kMostWarnings) {
    broken(fmt::format("warning_count() gives {}; allowed: 0 .. {}", warnings, kMostWarnings));
  }
  for (std::int64_t i = 0; i < warnings; ++i) {
    const char* text = ask_at<const char*>("warning", i, table_.warning);
    if (text == nullptr || ::strnlen(text, kLongestMessage + 1) > kLongestMessage) {
      broken(fmt::format("warning {} is no text of at most {} bytes", i, kLongestMessage));
    }
    options_.warnings.emplace_back(text);
  }
}

void PluginSession::require_no_failed_observer() const {
  if (observer_failed_) throw Error(ErrorCode::wrong_state, "the observer threw; allowed: abort(), reset()");
}

void PluginSession::require_callbacks_in_attend() const {
  const char* callback = called_elsewhere_;
  if (callback == nullptr) return;
  broken(fmt::format("the {} was called outside of attend(), or from another thread than that of attend()",
                     callback));
}

// What begin_prefill, begin_decode, attend and end return.
void PluginSession::require_step(const char* function, headwater_status status) {
  require_callbacks_in_attend();
  const bool refused = status == HEADWATER_INVALID_ARGUMENT || status == HEADWATER_CAPACITY_EXCEEDED ||
                       status == HEADWATER_UNSUPPORTED;
  if (open_ && status != HEADWATER_OK && !refused) failed_ = true;
  require_ok(table_, function, status);
}

void PluginSession::begin(const Step& step) {
  const AllocationPause ours(true);
  require_no_failed_observer();
  if (step.kind == Step::Kind::prefill) {
    require_step("begin_prefill", invoke("begin_prefill", [&] {
                   return table_.begin_prefill(session_, step.n, step.turn_length);
                 }));
  } else if (step.kind != Step::Kind::decode || step.turn_length != 0) {
    throw Error(ErrorCode::invalid_argument, "a step that C has no function for");
  } else {
    require_step("begin_decode",
                 invoke("begin_decode", [&] { return table_.begin_decode(session_, step.n); }));
  }
  open_ = true;
  decoding_ = step.kind == Step::Kind::decode;
  const std::span<const Chunk> opened = plan();
  chunks_before_ = chunks_.size();
  chunks_.insert(chunks_.end(), opened.begin(), opened.end());
}

void PluginSession::attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                           const MutableRows& out, const LseOutput& lse) {
  require_claimed(q, out, lse);
  const AllocationPause ours(true);
  Guarded<headwater_rows> q_rows = guarded_rows(q);
  Guarded<headwater_rows> k_rows = guarded_rows(k);
  Guarded<headwater_rows> v_rows = guarded_rows(v);
  Guarded<headwater_mutable_rows> out_rows = guarded_rows(out);
  auto lse_rows = Guarded<headwater_lse_output>::input({lse.data, lse.row_stride, lse.head_stride});
  const bool with_lse = lse.data != nullptr;
  run_attend(
      with_lse ? "attend_lse" : "attend",
      [&] {
        headwater_rows* const queries = pointer_to(q_rows);
        headwater_mutable_rows* const outputs = pointer_to(out_rows);
        if (!with_lse) return table_.attend(session_, layer, queries, k_rows.data(), v_rows.data(), outputs);
        return table_.attend_lse(session_, layer, queries, k_rows.data(), v_rows.data(), outputs,
                                 lse_rows.data());
      },
      [&] {
        q_rows.check("attend: q");
        k_rows.check("attend: k");
        v_rows.check("attend: v");
        out_rows.check("attend: out");
        lse_rows.check("attend_lse: lse");
      });
}

void PluginSession::attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows,
                                  const MutableRows& out, const LseOutput& lse) {
  if (!claims_.stored_rows) refuse("attend_stored()");
  require_claimed(q, out, lse);
  const AllocationPause ours(true);
  Guarded<headwater_rows> q_rows = guarded_rows(q);
  Guarded<headwater_mutable_rows> out_rows = guarded_rows(out);
  auto lse_rows = Guarded<headwater_lse_output>::input({lse.data, lse.row_stride, lse.head_stride});
  std::vector<std::int32_t> pages;
  if (rows.table != nullptr && rows.table_size > 0) pages.assign(rows.table, rows.table + rows.table_size);
  Guarded<std::int32_t> table(pages);
  auto stored =
      Guarded<headwater_stored_rows>::input({.struct_size = sizeof(headwater_stored_rows),
                                             .keys = rows.keys,
                                             .values = rows.values,
                                             .rows = rows.rows,
                                             .key_row_stride = rows.key_row_stride,
                                             .key_head_stride = rows.key_head_stride,
                                             .value_row_stride = rows.value_row_stride,
                                             .value_head_stride = rows.value_head_stride,
                                             .table = rows.table == nullptr ? nullptr : table.data(),
                                             .table_size = rows.table_size,
                                             .page_rows = rows.page_rows,
                                             .pages = rows.pages,
                                             .key_page_stride = rows.key_page_stride,
                                             .value_page_stride = rows.value_page_stride});
  run_attend(
      "attend_stored",
      [&] {
        return table_.attend_stored(session_, layer, pointer_to(q_rows), stored.data(), pointer_to(out_rows),
                                    lse.data == nullptr ? nullptr : lse_rows.data());
      },
      [&] {
        q_rows.check("attend_stored: q");
        stored.check("attend_stored: rows");
        table.check("attend_stored: table");
        out_rows.check("attend_stored: out");
        lse_rows.check("attend_stored: lse");
      });
}

// What is not claimed is not asked of the plug-in.
void PluginSession::require_claimed(const Rows& q, const MutableRows& out, const LseOutput& lse) const {
  if (lse.data != nullptr && !claims_.lse) refuse("lse of attend()");
  const bool rows_alone = open_ && decoding_ && q.data == nullptr && out.data == nullptr;
  if (rows_alone && !claims_.rows_alone) refuse("attend() without queries");
}

// attend() and its kin: callbacks come in between, and may throw.
template <class Call, class HandedBack>
void PluginSession::run_attend(const char* name, const Call& call, const HandedBack& handed_back) {
  require_no_failed_observer();
  callback_error_ = nullptr;
  attending_ = std::this_thread::get_id();
  const headwater_status status = invoke(name, call);
  attending_ = std::thread::id{};
  handed_back();
  require_callbacks_in_attend();
  if (callback_error_ != nullptr) {
    observer_failed_ = true;
    std::rethrow_exception(std::exchange(callback_error_, nullptr));
  }
  require_step(name, status);
}

void PluginSession::end() {
  const AllocationPause ours(true);
  require_no_failed_observer();
  require_step("end", invoke("end", [&] { return table_.end(session_); }));
  open_ = false;
}

void PluginSession::reset() {
  const AllocationPause ours(true);
  const headwater_status status = invoke("reset", [&] { return table_.reset(session_); });
  require_callbacks_in_attend();
  require_ok(table_, "reset", status);
  observer_failed_ = open_ = failed_ = false;
  chunks_.clear();
}

void PluginSession::abort() {
  if (!claims_.abort) refuse("abort()");
  const AllocationPause ours(true);
  require_ok(table_, "abort", invoke("abort", [&] { return table_.abort(session_); }));
  if (open_) chunks_.resize(chunks_before_);
  observer_failed_ = open_ = failed_ = false;
}

void PluginSession::truncate(std::int64_t n) {
  if (!claims_.truncate) refuse("truncate()");
  const AllocationPause ours(true);
  require_ok(table_, "truncate", invoke("truncate", [&] { return table_.truncate(session_, n); }));
  while (!chunks_.empty() && chunks_.back().begin >= n) chunks_.pop_back();
  if (!chunks_.empty()) chunks_.back().end = std::min(chunks_.back().end, n);  // STATE-9
}

std::unique_ptr<Session> PluginSession::fork() {
  if (!claims_.fork) refuse("fork()");
  const AllocationPause ours(true);
  require_no_failed_observer();
  headwater_session* const forked = made_by(
      table_, "fork", [&](headwater_session** to) { return table_.fork(session_, to); }, [] {});
  if (forked == session_) broken("fork() gave the session itself");
  auto session = std::make_unique<PluginSession>(table_, claims_, shape_, asked_, forked);
  session->chunks_ = chunks_;
  return session;
}

void PluginSession::save(const std::string& path, const std::string& fingerprint) {
  if (!claims_.save) refuse("save()");
  const AllocationPause ours(true);
  require_no_failed_observer();
  require_ok(table_, "save", invoke("save", [&] {
               return table_.save(session_, path.c_str(),
                                  fingerprint.empty() ? nullptr : fingerprint.c_str());
             }));
}

SessionState PluginSession::state() const {
  return enumerator<SessionState>(ask<std::int32_t>("session_state", table_.session_state),
                                  HEADWATER_DECODING, "session_state");
}

bool PluginSession::failed() const {
  if (!tells_failure(table_)) return observer_failed_ || failed_;
  const auto said = enumerator<std::int32_t>(ask<std::int32_t>("session_failed", table_.session_failed), 1,
                                             "session_failed");
  return observer_failed_ || said == 1;  // C cannot throw: the plug-in is not told of it
}

std::int64_t PluginSession::tokens() const {
  return ask<std::int64_t>("session_tokens", table_.session_tokens);
}

MemoryBytes PluginSession::memory_bytes() const {
  return bytes_of(ask_struct<headwater_memory_bytes>("session_memory_bytes", table_.session_memory_bytes));
}

std::span<const Chunk> PluginSession::plan() const {
  const AllocationPause ours(true);
  const auto count = ask<std::int64_t>("plan_count", table_.plan_count);
  // Every chunk has a token.
  if (count < 0 || count > shape_.capacity) {
    broken(fmt::format("plan_count() gives {}; allowed: 0 .. capacity = {}", count, shape_.capacity));
  }
  plan_.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto chunk = ask_at<headwater_chunk>("plan_chunk", i, table_.plan_chunk);
    plan_.push_back({chunk.begin, chunk.end, chunk_mode(chunk.mode, "plan_chunk: mode")});
  }
  return plan_;
}

std::span<const Chunk> PluginSession::chunks() const {
  if (!claims_.save) return chunks_;
  const AllocationPause ours(true);
  const auto count = ask<std::int64_t>("session_chunk_count", table_.session_chunk_count);
  if (count < 0 || count > shape_.capacity) {
    broken(
        fmt::format("session_chunk_count() gives {}; allowed: 0 .. capacity = {}", count, shape_.capacity));
  }
  said_chunks_.clear();
  for (std::int64_t i = 0; i < count; ++i) {
    Guarded<std::int64_t> entries(1, kUnwritten);
    const auto said = ask_at<headwater_chunk>(
        "session_chunk", i, [&](const headwater_session* session, std::int64_t index, headwater_chunk* to) {
          return table_.session_chunk(session, index, to, entries.data());
        });
    entries.check("session_chunk: memory_count");
    const Chunk chunk{said.begin, said.end, chunk_mode(said.mode, "session_chunk: mode")};
    if (entries.value() != memory_count(chunk)) {
      broken(fmt::format("session_chunk() gives memory_count {} for chunk [{}, {}); allowed: {} (MEM-4)",
                         entries.value(), chunk.begin, chunk.end, memory_count(chunk)));
    }
    said_chunks_.push_back(chunk);
  }
  return said_chunks_;
}

ScoreView PluginSession::scores(std::int64_t layer) const {
  const auto view = ask_at<headwater_score_view>("scores", layer, table_.scores);
  if (view.data == nullptr) broken("scores: data is NULL");
  return {enumerator<ScoreType>(view.type, HEADWATER_SCORE_F32, "scores: type"), view.data, view.head_stride};
}

MemoryView PluginSession::memory(std::int64_t layer) const {
  const auto view = ask_at<headwater_memory_view>("memory", layer, table_.memory);
  return {view.data, view.head_stride, view.width, view.count};
}

void PluginSession::read_row(const char* name,
                             headwater_status (*function)(const headwater_session*, std::int64_t,
                                                          std::int64_t, std::int64_t, float*, std::int64_t),
                             std::int64_t width, std::int64_t layer, std::int64_t head_kv,
                             std::int64_t position, std::span<float> row) const {
  const AllocationPause ours(true);
  const std::size_t room = std::min(row.size(), static_cast<std::size_t>(width));
  Guarded<float> values(room, kUnwritten);
  const headwater_status status = invoke(name, [&] {
    return function(session_, layer, head_kv, position, values.data(), static_cast<std::int64_t>(room));
  });
  values.check(name);
  require_ok(table_, name, status);
  std::copy_n(values.data(), room, row.data());
}

void PluginSession::set_observer(Observer observer) {
  const AllocationPause ours(true);
  const headwater_observer function = observer ? &PluginSession::on_record : nullptr;
  require_ok(table_, "set_observer", invoke("set_observer", [&] {
               return table_.set_observer(session_, function, observer ? this : nullptr);
             }));
  observer_ = std::move(observer);  // a refused call leaves the one before
}

void PluginSession::set_interrupt(Interrupt interrupt) {
  if (!claims_.interrupt) refuse("set_interrupt()");
  const AllocationPause ours(true);
  const headwater_interrupt function = interrupt ? &PluginSession::on_interrupt : nullptr;
  require_ok(table_, "set_interrupt", invoke("set_interrupt", [&] {
               return table_.set_interrupt(session_, function, interrupt ? this : nullptr);
             }));
  interrupt_ = std::move(interrupt);  // a refused call leaves the one before
}

// Whether this is the thread of the attend() that runs. The plug-in's fault is remembered where it is not.
bool PluginSession::called_in_attend(const char* callback) noexcept {
  if (attending_.load() == std::this_thread::get_id()) return true;
  called_elsewhere_ = callback;
  return false;
}

void PluginSession::on_record(void* user, const headwater_chunk_record* record) noexcept {
  const AllocationPause ours(true);
  auto& session = *static_cast<PluginSession*>(user);
  if (!session.called_in_attend("observer")) return;
  if (session.callback_error_ != nullptr) return;  // the step has failed already
  try {
    session.take_record(record);
  } catch (...) {
    session.callback_error_ = std::current_exception();
  }
}

std::int32_t PluginSession::on_interrupt(void* user) noexcept {
  const AllocationPause ours(true);
  auto& session = *static_cast<PluginSession*>(user);
  if (!session.called_in_attend("interrupt")) return 1;
  if (session.callback_error_ != nullptr) return 1;
  try {
    return session.interrupt_ && session.interrupt_() ? 1 : 0;
  } catch (...) {
    session.callback_error_ = std::current_exception();
    return 1;
  }
}

void PluginSession::take_record(const headwater_chunk_record* record) {
  if (record == nullptr) broken("the observer was called with a NULL record");
  if (record->struct_size < sizeof(headwater_chunk_record)) {
    broken(fmt::format("struct_size of a chunk record is {}; allowed: {} or more", record->struct_size,
                       sizeof(headwater_chunk_record)));
  }
  if (record->layer < 0 || record->layer >= shape_.n_layer || record->chunk.begin < 0 ||
      record->chunk.end > shape_.capacity || record->memory_count > shape_.capacity) {
    broken(
        fmt::format("a chunk record of layer {}, chunk [{}, {}), memory_count {}; allowed: {} layers, "
                    "capacity {}",
                    record->layer, record->chunk.begin, record->chunk.end, record->memory_count,
                    shape_.n_layer, shape_.capacity));
  }
  const ChunkRecord copy{
      record->layer,
      {record->chunk.begin, record->chunk.end, chunk_mode(record->chunk.mode, "mode of a chunk record")},
      record->memory_count,
      record->memory_stride,
      record->memory,
      record->colsum_inter,
      record->row_stride,
      record->colsum_intra,
      record->lse,
      record->query_blocks,
      record->candidate_blocks,
      record->block_votes,
      record->voted_tokens,
      record->token_votes};
  if (observer_) observer_(copy);
}

class PluginEngine final : public EngineWithFiles {
 public:
  explicit PluginEngine(const PluginLibrary& library) : library_(library) {}
  [[nodiscard]] std::string_view name() const override { return library_.identity().name; }
  [[nodiscard]] std::string_view isa() const override { return library_.identity().isa; }
  [[nodiscard]] std::string_view description() const override { return library_.identity().description; }
  [[nodiscard]] std::string unavailable_because() const override {
    return library_.identity().unavailable_because;
  }
  [[nodiscard]] Claims claims() const override { return library_.identity().claims; }
  [[nodiscard]] std::unique_ptr<Session> open(const Shape& shape, const Options& options) const override {
    return make(shape, options, "open", library_.table().open);
  }
  void save(Session& session, const std::string& path, const std::string& fingerprint) const override {
    dynamic_cast<PluginSession&>(session).save(path, fingerprint);
  }
  [[nodiscard]] std::unique_ptr<Session> load(const Shape& shape, const Options& options,
                                              const std::string& path,
                                              const std::string& fingerprint) const override {
    if (!claims().save) PluginSession::refuse_unclaimed("load()");
    return make(shape, options, "load",
                [&](const headwater_shape* of, const headwater_options* asked, headwater_session** to) {
                  return library_.table().load(of, asked, path.c_str(),
                                               fingerprint.empty() ? nullptr : fingerprint.c_str(), to);
                });
  }
  [[nodiscard]] MemoryEstimate estimate(const Shape& shape, const Options& options) const override {
    const AllocationPause ours(true);
    if (!claims().estimate) return Engine::estimate(shape, options);  // refuses
    check_what_c_cannot_say(shape, options);
    check_claimed(claims(), options);
    const headwater_engine_table& table = library_.table();
    Asked asked(table, shape, options);
    Guarded<headwater_memory_bytes> opened(1, kUnwritten);
    Guarded<headwater_memory_bytes> full(1, kUnwritten);
    const headwater_status status = invoke("estimate", [&] {
      return table.estimate(asked.shape.data(), asked.given.data(), opened.data(), full.data(),
                            sizeof(headwater_memory_bytes));
    });
    asked.check("estimate");
    opened.check("estimate: opened");
    full.check("estimate: full");
    require_ok(table, "estimate", status);
    return {bytes_of(opened.value()), bytes_of(full.value())};
  }

 private:
  template <class Function>
  [[nodiscard]] std::unique_ptr<Session> make(const Shape& shape, const Options& options, const char* name,
                                              const Function& function) const {
    const AllocationPause ours(true);
    check_what_c_cannot_say(shape, options);
    check_claimed(claims(), options);
    const headwater_engine_table& table = library_.table();
    const auto asked = std::make_shared<Asked>(table, shape, options);
    headwater_session* const session = made_by(
        table, name,
        [&](headwater_session** to) { return function(asked->shape.data(), asked->given.data(), to); },
        [&] {
          asked->check(name);
          asked->spoil();
        });
    return std::make_unique<PluginSession>(table, library_.identity().claims, shape, asked, session);
  }

  const PluginLibrary& library_;
};

}  // namespace

std::unique_ptr<Engine> plugin_engine(const PluginLibrary& library) {
  return std::make_unique<PluginEngine>(library);
}

}  // namespace headwater::conformance
