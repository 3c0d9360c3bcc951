#include "conformance/plugin_engine.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <limits>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "conformance/allocation_counter.hpp"
#include "conformance/case.hpp"
#include "conformance/float_controls.hpp"
#include "conformance/plugin_guard.hpp"
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

// Checks what C's pointers do not say: the sizes of sinks and slopes, and a scale that is NaN.
void check_what_c_cannot_say(const Shape& shape, const Options& options) {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::invalid_argument, what); };
  const auto per_head = [&](const char* field, const std::vector<float>& values) {
    const bool one_each = shape.n_head > 0 && values.size() == static_cast<std::size_t>(shape.n_head);
    if (values.empty() || one_each) return;
    refuse(fmt::format("{} has {} entries; allowed: 0 or n_head = {}", field, values.size(), shape.n_head));
  };
  per_head("sinks", options.sinks);
  per_head("alibi", options.alibi);
  if (options.scale && std::isnan(*options.scale)) refuse("scale is nan; allowed: a finite number");
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
  if (!options.layers.empty()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("layers has {} entries; allowed: none: plug-ins are not told of them",
                            options.layers.size()));
  }
  if (options.kv_owner == KvOwner::caller) {
    throw Error(ErrorCode::unsupported,
                "kv_owner is 1 (caller); allowed: 0 (session): plug-ins keep the rows");
  }
}

// Shape and options as a plug-in is handed them.
struct Asked {
  Asked(const headwater_engine_table& table, const Shape& of, const Options& options)
      : shape(Guarded<headwater_shape>::input({of.n_layer, of.n_head, of.n_head_kv, of.d_head, of.d_value,
                                               of.capacity, static_cast<std::int32_t>(of.kv_type), 0})),
        sinks(options.sinks),
        alibi(options.alibi),
        dense_layers(options.dense_layers),
        given(Guarded<headwater_options>::input(native(table, options))) {}

  void check(const std::string& call) const {
    shape.check(call + ": shape");
    given.check(call + ": options");
    sinks.check(call + ": sinks");
    alibi.check(call + ": alibi");
    dense_layers.check(call + ": dense_layers");
  }
  void spoil() {
    sinks.spoil();
    alibi.spoil();
    dense_layers.spoil();
  }

  Guarded<headwater_shape> shape;
  Guarded<float> sinks;
  Guarded<float> alibi;
  Guarded<std::int64_t> dense_layers;
  Guarded<headwater_options> given;

 private:
  headwater_options native(const headwater_engine_table& table, const Options& options) {
    const bool blocks =
        options.select != Select::h2o;  // the sizes of rule `blocks` are not read with h2o (SEL-1)
    // Tables of older headers may refuse what they do not know.
    const bool knows_hosts = table.struct_size > offsetof(headwater_engine_table, abort);
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
            // Plug-ins are not told of these.
            .kv_owner = HEADWATER_KV_OF_SESSION,
            .reserved5 = 0,
            .layers = nullptr,
            .layer_count = 0,
            .layer_size = 0,
            .page = 0,
            .allocate = options.allocator.allocate,
            .release = options.allocator.release,
            .allocator_context = options.allocator.context};
  }
};

class PluginSession final : public Session {
 public:
  PluginSession(const PluginLibrary& library, const Shape& shape, const Options& options)
      : table_(library.table()),
        claims_(library.identity().claims),
        shape_(shape),
        asked_(table_, shape, options) {
    options_.dense_layers = options.dense_layers;
    open();
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
  void end() override;
  void reset() override;
  void abort() override;
  void truncate(std::int64_t n) override;
  [[nodiscard]] SessionState state() const override;
  [[nodiscard]] bool failed() const override;
  [[nodiscard]] std::int64_t tokens() const override;
  [[nodiscard]] const Shape& shape() const override { return shape_; }
  [[nodiscard]] const EffectiveOptions& options() const override { return options_; }
  [[nodiscard]] MemoryBytes memory_bytes() const override;
  [[nodiscard]] std::span<const Chunk> plan() const override;
  [[nodiscard]] std::span<const Chunk> chunks() const override { return chunks_; }
  [[nodiscard]] ScoreView scores(std::int64_t layer) const override;
  [[nodiscard]] MemoryView memory(std::int64_t layer) const override;
  void read_key(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                std::span<float> row) const override {
    read_row("read_key", table_.read_key, shape_.d_head, layer, head_kv, position, row);
  }
  void read_value(std::int64_t layer, std::int64_t head_kv, std::int64_t position,
                  std::span<float> row) const override {
    read_row("read_value", table_.read_value, shape_.d_value, layer, head_kv, position, row);
  }
  void set_observer(Observer observer) override;
  void set_interrupt(Interrupt interrupt) override;

 private:
  void open();
  void read_options();
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
  template <class Value>
  Value ask_at(const char* name, std::int64_t index,
               headwater_status (*function)(const headwater_session*, std::int64_t, Value*)) const {
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
  // Spoiled after open(), and kept: a plug-in that kept the pointers instead of the values computes with NaN.
  Asked asked_;
  headwater_session* session_ = nullptr;
  EffectiveOptions options_;
  mutable std::vector<Chunk> plan_;
  std::vector<Chunk> chunks_;      // kept here: no table has a question for those of all steps
  std::size_t chunks_before_ = 0;  // of them before the step that is open

  Observer observer_;
  Interrupt interrupt_;
  std::exception_ptr callback_error_;  // of the attend() that runs
  bool observer_failed_ = false;       // STATE-5: only abort() and reset() are legal
  bool open_ = false;                  // a step
  bool failed_ = false;                // of a table that cannot say so, by its statuses
  std::atomic<std::thread::id> attending_{};
  std::atomic<const char*> called_elsewhere_{nullptr};  // the callback
};

void PluginSession::open() {
  Guarded<headwater_session*> handle(1, kUnwritten);
  const headwater_status status =
      invoke("open", [&] { return table_.open(asked_.shape.data(), asked_.given.data(), handle.data()); });
  asked_.check("open");
  handle.check("open: session");
  asked_.spoil();
  if (status != HEADWATER_OK && handle.value() != nullptr) {
    broken("a failed open() did not set *session to NULL");
  }
  require_ok(table_, "open", status);
  if (handle.value() == nullptr) broken("open() succeeded with *session NULL");
  session_ = handle.value();
}

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
  options_.select = enumerator<Select>(said.select, HEADWATER_SELECT_BLOCKS, "session_options: select");
  options_.key_block = said.key_block;
  options_.query_block = said.query_block;
  options_.pool = said.pool;
  options_.refine = said.refine;
  options_.pinned = said.pinned;
  options_.dense_below = said.dense_below;
  options_.checkpoints = said.checkpoints;
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
  const std::span<const Chunk> opened = plan();
  chunks_before_ = chunks_.size();
  chunks_.insert(chunks_.end(), opened.begin(), opened.end());
}

void PluginSession::attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                           const MutableRows& out, const LseOutput& lse) {
  const bool with_lse = lse.data != nullptr;
  if (with_lse && !claims_.lse) refuse("lse of attend()");
  const AllocationPause ours(true);
  require_no_failed_observer();
  Guarded<headwater_rows> q_rows = guarded_rows(q);
  Guarded<headwater_rows> k_rows = guarded_rows(k);
  Guarded<headwater_rows> v_rows = guarded_rows(v);
  Guarded<headwater_mutable_rows> out_rows = guarded_rows(out);
  auto lse_rows = Guarded<headwater_lse_output>::input({lse.data, lse.row_stride, lse.head_stride});
  callback_error_ = nullptr;
  attending_ = std::this_thread::get_id();
  const char* name = with_lse ? "attend_lse" : "attend";
  const headwater_status status = invoke(name, [&] {
    if (!with_lse) {
      return table_.attend(session_, layer, q_rows.data(), k_rows.data(), v_rows.data(), out_rows.data());
    }
    return table_.attend_lse(session_, layer, q_rows.data(), k_rows.data(), v_rows.data(), out_rows.data(),
                             lse_rows.data());
  });
  attending_ = std::thread::id{};
  q_rows.check("attend: q");
  k_rows.check("attend: k");
  v_rows.check("attend: v");
  out_rows.check("attend: out");
  lse_rows.check("attend_lse: lse");
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

class PluginEngine final : public Engine {
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
    const AllocationPause ours(true);
    check_what_c_cannot_say(shape, options);
    check_claimed(library_.identity().claims, options);
    return std::make_unique<PluginSession>(library_, shape, options);
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
  const PluginLibrary& library_;
};

}  // namespace

std::unique_ptr<Engine> plugin_engine(const PluginLibrary& library) {
  return std::make_unique<PluginEngine>(library);
}

}  // namespace headwater::conformance
