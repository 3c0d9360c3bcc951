// The C ABI of headwater.h over the C++ API: engines, opening, steps, rotation. Every argument is checked by
// name, every exception becomes a status.

#include <cstring>
#include <span>
#include <vector>

#include "bindings/c_abi_support.hpp"
#include "headwater/state.hpp"
#include "headwater/testing/sabotage.hpp"

namespace {

using namespace headwater::c_abi;  // the helpers of this folder
using headwater::ErrorCode;
using headwater::c_abi::rows_of;  // beside those of this file

// The numbers of the header are those of the C++ enumerations.
template <class Enum>
constexpr bool same(int number, Enum value) {
  return number == static_cast<int>(value);
}
static_assert(same(HEADWATER_INVALID_ARGUMENT, ErrorCode::invalid_argument));
static_assert(same(HEADWATER_WRONG_STATE, ErrorCode::wrong_state));
static_assert(same(HEADWATER_CAPACITY_EXCEEDED, ErrorCode::capacity_exceeded));
static_assert(same(HEADWATER_ENGINE_UNAVAILABLE, ErrorCode::engine_unavailable));
static_assert(same(HEADWATER_OUT_OF_MEMORY, ErrorCode::out_of_memory));
static_assert(same(HEADWATER_INTERNAL, ErrorCode::internal));
static_assert(same(HEADWATER_INTERRUPTED, ErrorCode::interrupted));
static_assert(same(HEADWATER_UNSUPPORTED, ErrorCode::unsupported));
static_assert(same(HEADWATER_F32, headwater::DType::f32) && same(HEADWATER_F16, headwater::DType::f16) &&
              same(HEADWATER_BF16, headwater::DType::bf16));
static_assert(same(HEADWATER_SCORE_BF16, headwater::ScoreType::bf16) &&
              same(HEADWATER_SCORE_F32, headwater::ScoreType::f32));
static_assert(same(HEADWATER_LAYER_MAJOR, headwater::Schedule::layer_major) &&
              same(HEADWATER_CHUNK_MAJOR, headwater::Schedule::chunk_major));
static_assert(same(HEADWATER_HOST_MEMORY, headwater::RowMemory::host) &&
              same(HEADWATER_DEVICE_MEMORY, headwater::RowMemory::device));
static_assert(same(HEADWATER_EMPTY, headwater::SessionState::empty) &&
              same(HEADWATER_PREFILLING, headwater::SessionState::prefilling) &&
              same(HEADWATER_DECODING, headwater::SessionState::decoding));
static_assert(same(HEADWATER_CHUNK_SPARSE, headwater::ChunkMode::sparse) &&
              same(HEADWATER_CHUNK_DENSE, headwater::ChunkMode::dense) &&
              same(HEADWATER_CHUNK_DECODE, headwater::ChunkMode::decode));
static_assert(same(HEADWATER_ADJACENT_PAIRS, headwater::RopeLayout::adjacent_pairs) &&
              same(HEADWATER_SPLIT_HALVES, headwater::RopeLayout::split_halves));

headwater::Shape shape_of(const headwater_shape& from) {
  check_reserved(from.reserved, "shape.reserved");
  headwater::Shape shape;
  shape.n_layer = from.n_layer;
  shape.n_head = from.n_head;
  shape.n_head_kv = from.n_head_kv;
  shape.d_head = from.d_head;
  shape.d_value = from.d_value;
  shape.capacity = from.capacity;
  shape.kv_type = dtype(from.kv_type, "shape.kv_type");
  return shape;
}

headwater::Rows rows_of(const headwater_rows* from, const std::string& name) {
  needed(from, name);
  check_reserved(from->reserved, name + ".reserved");
  std::int64_t head_stride = from->head_stride;
  if (HEADWATER_SABOTAGE("bindings.rows.head_stride_in_16_bits")) head_stride &= 0xFFFF;
  return {from->data, dtype(from->type, name + ".type"), from->row_stride, head_stride};
}

/// A call's queries and outputs. Both may be NULL (DEC-2): the session says whether they may be missing now.
void take_queries(headwater::SequenceCall& call, const headwater_rows* q, const headwater_mutable_rows* out,
                  const std::string& prefix = "") {
  if (q == nullptr && out == nullptr) return;
  call.q = rows_of(q, prefix + "q");
  call.out = rows_of(out, prefix + "out");
}

void attend(headwater_session* session, std::int64_t layer, const headwater_rows* q, const headwater_rows* k,
            const headwater_rows* v, const headwater_mutable_rows* out, const headwater::LseOutput& lse) {
  headwater::Session& open = session_of(session);
  headwater::SequenceCall call;
  take_queries(call, q, out);
  open.attend(layer, call.q, rows_of(k, "k"), rows_of(v, "v"), call.out, lse);
}

headwater::StoredRows stored_rows_of(const headwater_stored_rows* from, const std::string& name) {
  check_struct_size(needed(from, name)->struct_size, sizeof(headwater_stored_rows), name + ".struct_size");
  check_unknown(reinterpret_cast<const unsigned char*>(from), from->struct_size,
                sizeof(headwater_stored_rows), name);
  std::int64_t table_size = from->table_size;
  if (HEADWATER_SABOTAGE("bindings.stored_rows.table_size_in_8_bits")) table_size &= 0xFF;
  return {.keys = from->keys,
          .values = from->values,
          .rows = from->rows,
          .key_row_stride = from->key_row_stride,
          .key_head_stride = from->key_head_stride,
          .value_row_stride = from->value_row_stride,
          .value_head_stride = from->value_head_stride,
          .table = from->table,
          .table_size = table_size,
          .page_rows = from->page_rows,
          .pages = from->pages,
          .key_page_stride = from->key_page_stride,
          .value_page_stride = from->value_page_stride};
}

headwater::LseOutput lse_of(const headwater_lse_output* from, const std::string& prefix = "") {
  needed(needed(from, prefix + "lse")->data, prefix + "lse.data");
  std::int64_t head_stride = from->head_stride;
  if (HEADWATER_SABOTAGE("bindings.lse.head_stride_in_16_bits")) head_stride &= 0xFFFF;
  return {from->data, from->row_stride, head_stride};
}

headwater_chunk_record record_of(const headwater::ChunkRecord& record) {
  headwater_chunk_record seen{};
  seen.struct_size = sizeof seen;
  seen.layer = record.layer;
  seen.chunk = chunk_of(record.chunk);
  seen.memory_count = record.memory_count;
  seen.memory_stride = record.memory_stride;
  seen.memory = record.memory;
  seen.colsum_inter = record.colsum_inter;
  seen.row_stride = record.row_stride;
  seen.colsum_intra = record.colsum_intra;
  seen.lse = record.lse;
  seen.query_blocks = record.query_blocks;
  seen.candidate_blocks = record.candidate_blocks;
  seen.block_votes = record.block_votes;
  seen.voted_tokens = record.voted_tokens;
  seen.token_votes = record.token_votes;
  return seen;
}

// NUL-terminated copies of what the engines say about themselves, made once.
struct EngineTexts {
  std::string name;
  std::string isa;
  std::string description;
  std::string unavailable_because;
};

const std::vector<EngineTexts>& engine_texts() {
  static const std::vector<EngineTexts> texts = [] {
    std::vector<EngineTexts> all;
    for (const headwater::Engine* engine : headwater::engines()) {
      all.push_back({std::string(engine->name()), std::string(engine->isa()),
                     std::string(engine->description()), engine->unavailable_because()});
    }
    return all;
  }();
  return texts;
}

const char* engine_text(std::int32_t index, std::string EngineTexts::*field) noexcept {
  const char* text = nullptr;
  guarded([&] {
    const auto& texts = engine_texts();
    check_range(index, 0, static_cast<std::int64_t>(texts.size()) - 1, "engine index");
    text = (texts[static_cast<std::size_t>(index)].*field).c_str();
  });
  return text;
}

/// What a session is opened with.
struct Opening {
  Opening(const char* name, const headwater_shape* given_shape, const headwater_options* given)
      : shape(shape_of(*needed(given_shape, "shape"))),
        options(given == nullptr ? headwater::Options() : options_of(*given, shape)),
        engine(headwater::engine(name == nullptr ? "" : name)) {}

  headwater::Shape shape;
  headwater::Options options;
  const headwater::Engine& engine;
};

/// Hands a callback of the caller on, or none where it is NULL.
template <class Function, class Callback>
headwater_status set_callback(headwater_session* session, bool given,
                              void (headwater::Session::*set)(Function), Callback callback) {
  return guarded([&] {
    headwater::Session& open = session_of(session);
    (open.*set)(given ? Function(std::move(callback)) : Function());
  });
}

/// Writes the defaults of a caller whose structure has struct_size bytes.
void write_options(const headwater::Options& from, headwater_options* options, size_t struct_size) {
  headwater_options filled = c_options_of(from);
  filled.struct_size = struct_size;
  write_struct(options, struct_size, kOptionsSize1, filled, "options");
}

}  // namespace

int32_t headwater_abi_version(void) { return HEADWATER_ABI_VERSION; }

const char* headwater_version(void) { return headwater::kVersion; }

const char* headwater_status_name(headwater_status status) {
  switch (status) {
    case HEADWATER_OK: return "ok";
    case HEADWATER_INVALID_ARGUMENT: return "invalid_argument";
    case HEADWATER_WRONG_STATE: return "wrong_state";
    case HEADWATER_CAPACITY_EXCEEDED: return "capacity_exceeded";
    case HEADWATER_ENGINE_UNAVAILABLE: return "engine_unavailable";
    case HEADWATER_OUT_OF_MEMORY: return "out_of_memory";
    case HEADWATER_INTERNAL: return "internal";
    case HEADWATER_INTERRUPTED: return "interrupted";
    case HEADWATER_UNSUPPORTED: return "unsupported";
    default: return "unknown";
  }
}

const char* headwater_last_error(void) { return last_error_text(); }

int32_t headwater_engine_count(void) { return static_cast<std::int32_t>(headwater::engines().size()); }

const char* headwater_engine_name(int32_t index) { return engine_text(index, &EngineTexts::name); }

const char* headwater_engine_isa(int32_t index) { return engine_text(index, &EngineTexts::isa); }

const char* headwater_engine_description(int32_t index) {
  return engine_text(index, &EngineTexts::description);
}

const char* headwater_engine_unavailable_because(int32_t index) {
  return engine_text(index, &EngineTexts::unavailable_because);
}

headwater_status headwater_options_init(headwater_options* options, size_t struct_size) {
  return guarded([&] { write_options({}, options, struct_size); });
}

headwater_status headwater_options_preset(const char* engine, int32_t quality, headwater_options* options,
                                          size_t struct_size) {
  return guarded([&] {
    constexpr std::int32_t kThree = 3;
    const auto chosen = enumerator<headwater::Quality>(quality, kThree, "quality");
    write_options(headwater::preset(chosen, headwater::engine(engine != nullptr ? engine : "")), options,
                  struct_size);
  });
}

headwater_status headwater_open(const char* engine, const headwater_shape* shape,
                                const headwater_options* options, headwater_session** session) {
  return guarded([&] {
    *needed(session, "session") = nullptr;
    const Opening asked(engine, shape, options);
    auto handle = std::make_unique<headwater_session>();
    handle->session = asked.engine.open(asked.shape, asked.options);
    *session = handle.release();
  });
}

headwater_status headwater_estimate(const char* engine, const headwater_shape* shape,
                                    const headwater_options* options, headwater_memory_bytes* opened,
                                    headwater_memory_bytes* full, size_t struct_size) {
  return guarded([&] {
    needed(opened, "opened");
    needed(full, "full");
    check_struct_size(struct_size, kMemoryBytesSize1, "struct_size");
    const Opening asked(engine, shape, options);
    headwater::MemoryEstimate estimate = asked.engine.estimate(asked.shape, asked.options);
    if (HEADWATER_SABOTAGE("bindings.estimate.full_is_opened")) estimate.full = estimate.opened;
    write_struct(opened, struct_size, kMemoryBytesSize1, bytes_of(estimate.opened), "opened");
    write_struct(full, struct_size, kMemoryBytesSize1, bytes_of(estimate.full), "full");
  });
}

void headwater_close(headwater_session* session) { delete session; }

headwater_status headwater_begin_prefill(headwater_session* session, int64_t n, int64_t turn_length) {
  return guarded([&] { session_of(session).begin(headwater::Step::prefill(n, turn_length)); });
}

headwater_status headwater_begin_decode(headwater_session* session, int64_t n) {
  return guarded([&] { session_of(session).begin(headwater::Step::decode(n)); });
}

headwater_status headwater_attend(headwater_session* session, int64_t layer, const headwater_rows* q,
                                  const headwater_rows* k, const headwater_rows* v,
                                  const headwater_mutable_rows* out) {
  return guarded([&] { attend(session, layer, q, k, v, out, {}); });
}

headwater_status headwater_attend_lse(headwater_session* session, int64_t layer, const headwater_rows* q,
                                      const headwater_rows* k, const headwater_rows* v,
                                      const headwater_mutable_rows* out, const headwater_lse_output* lse) {
  return guarded([&] { attend(session, layer, q, k, v, out, lse_of(lse)); });
}

headwater_status headwater_attend_stored(headwater_session* session, int64_t layer, const headwater_rows* q,
                                         const headwater_stored_rows* rows, const headwater_mutable_rows* out,
                                         const headwater_lse_output* lse) {
  return guarded([&] {
    const headwater::StoredRows stored = stored_rows_of(rows, "rows");
    headwater::SequenceCall call;
    take_queries(call, q, out);
    session_of(session).attend_stored(layer, call.q, stored, call.out,
                                      lse == nullptr ? headwater::LseOutput{} : lse_of(lse));
  });
}

headwater_status headwater_attend_together(const headwater_sequence_call* calls, int64_t count,
                                           size_t call_size) {
  return guarded([&] {
    needed(calls, "calls");
    constexpr std::int64_t kMostCalls = 4096;
    check_range(count, 1, kMostCalls, "count");
    check_struct_size(call_size, sizeof(headwater_sequence_call), "call_size");
    std::vector<headwater::SequenceCall> all(static_cast<std::size_t>(count));
    std::vector<headwater::StoredRows> stored(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto* bytes = reinterpret_cast<const unsigned char*>(calls) + i * call_size;
      const std::string name = "calls[" + std::to_string(i) + "]";
      check_unknown(bytes, call_size, sizeof(headwater_sequence_call), name);
      headwater_sequence_call from{};
      std::memcpy(&from, bytes, sizeof from);
      headwater::SequenceCall& call = all[i];
      call.session = &session_of(needed(from.session, name + ".session"));
      call.layer = from.layer;
      take_queries(call, from.q, from.out, name + ".");
      if (from.stored != nullptr) {
        stored[i] = stored_rows_of(from.stored, name + ".stored");
        call.stored = &stored[i];
      } else {
        call.k = rows_of(from.k, name + ".k");
        call.v = rows_of(from.v, name + ".v");
      }
      const bool unnumbered = HEADWATER_SABOTAGE("bindings.together.lse_without_number");
      if (from.lse != nullptr) call.lse = lse_of(from.lse, unnumbered ? "" : name + ".");
    }
    headwater::attend_together(all);
  });
}

headwater_status headwater_end(headwater_session* session) {
  return guarded([&] { session_of(session).end(); });
}

headwater_status headwater_reset(headwater_session* session) {
  return guarded([&] { session_of(session).reset(); });
}

headwater_status headwater_abort(headwater_session* session) {
  return guarded([&] { session_of(session).abort(); });
}

headwater_status headwater_fork(headwater_session* session, headwater_session** forked) {
  return guarded([&] {
    *needed(forked, "forked") = nullptr;
    headwater::Session& parent = session_of(session);
    auto handle = std::make_unique<headwater_session>();
    handle->session = parent.fork();
    *forked = handle.release();
  });
}

headwater_status headwater_save(headwater_session* session, const char* path, const char* fingerprint) {
  return guarded([&] {
    headwater::Session& open = session_of(session);
    headwater::save(open, needed(path, "path"), fingerprint == nullptr ? "" : fingerprint);
  });
}

headwater_status headwater_load(const char* engine, const headwater_shape* shape,
                                const headwater_options* options, const char* path, const char* fingerprint,
                                headwater_session** session) {
  return guarded([&] {
    *needed(session, "session") = nullptr;
    const Opening asked(engine, shape, options);
    auto handle = std::make_unique<headwater_session>();
    handle->session = headwater::load(asked.engine, asked.shape, asked.options, needed(path, "path"),
                                      fingerprint == nullptr ? "" : fingerprint);
    *session = handle.release();
  });
}

headwater_status headwater_truncate(headwater_session* session, int64_t n) {
  return guarded([&] {
    headwater::Session& open = session_of(session);
    if (HEADWATER_SABOTAGE("bindings.truncate.n_in_16_bits")) n &= 0xFFFF;
    open.truncate(n);
  });
}

headwater_status headwater_set_observer(headwater_session* session, headwater_observer observer, void* user) {
  return set_callback(session, observer != nullptr, &headwater::Session::set_observer,
                      [=](const headwater::ChunkRecord& record) {
                        const headwater_chunk_record seen = record_of(record);
                        observer(user, &seen);
                      });
}

headwater_status headwater_set_stopping_observer(headwater_session* session,
                                                 headwater_stopping_observer observer, void* user) {
  return set_callback(session, observer != nullptr, &headwater::Session::set_observer,
                      [=](const headwater::ChunkRecord& record) {
                        const headwater_chunk_record seen = record_of(record);
                        std::int32_t answer = observer(user, &seen);
                        if (HEADWATER_SABOTAGE("bindings.observer.stops_by_1_alone"))
                          answer = answer == 1 ? 1 : 0;
                        if (answer == 0) return;
                        throw headwater::Error(ErrorCode::interrupted,
                                               "the observer returned " + std::to_string(answer) +
                                                   " at layer " + std::to_string(record.layer) + ", chunk [" +
                                                   std::to_string(record.chunk.begin) + ", " +
                                                   std::to_string(record.chunk.end) + "); 0 would go on");
                      });
}

headwater_status headwater_set_interrupt(headwater_session* session, headwater_interrupt interrupt,
                                         void* user) {
  return set_callback(session, interrupt != nullptr, &headwater::Session::set_interrupt,
                      [=] { return interrupt(user) != 0; });
}

headwater_status headwater_rope_inverse_frequencies(int64_t r, double theta, double* frequencies,
                                                    int64_t count) {
  return guarded([&] {
    const std::vector<double> computed = headwater::rope_inverse_frequencies(r, theta);
    const auto size = static_cast<std::int64_t>(computed.size());
    needed(frequencies, "frequencies");
    check_range(count, size, size, "count");
    std::copy(computed.begin(), computed.end(), frequencies);
  });
}

headwater_status headwater_rotate(const headwater_mutable_rows* rows, int64_t n, int64_t heads, int64_t width,
                                  int64_t first_position, const double* frequencies, int64_t count,
                                  double magnitude, int32_t layout) {
  return guarded([&] {
    const headwater::MutableRows view = rows_of(rows, "rows");
    constexpr std::int32_t kLayouts = 2;
    const auto pairs = enumerator<headwater::RopeLayout>(layout, kLayouts, "layout");
    check_range(count, 0, std::max<std::int64_t>(width, 0) / 2, "count");
    if (count > 0) needed(frequencies, "frequencies");
    if (HEADWATER_SABOTAGE("bindings.rotate.position_in_16_bits")) first_position &= 0xFFFF;
    headwater::rotate(view, n, heads, width, first_position,
                      std::span<const double>(frequencies, static_cast<std::size_t>(count)), magnitude,
                      pairs);
  });
}
