#include "core/session_base.hpp"

#include <new>
#include <string>
#include <utility>

#include "core/buffer.hpp"
#include "core/config.hpp"
#include "headwater/error.hpp"
#include "headwater/testing/sabotage.hpp"

namespace headwater::core {

namespace {

void require_index(const char* field, std::int64_t value, std::int64_t count) {
  if (value >= 0 && value < count) return;
  const std::string allowed = count > 0 ? "0 .. " + std::to_string(count - 1) : "none (no tokens are stored)";
  throw Error(ErrorCode::invalid_argument,
              std::string(field) + " is " + std::to_string(value) + "; allowed: " + allowed);
}

void require_view(const char* field, const void* data, DType type) {
  if (data == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                std::string(field) + ".data is null; allowed: a pointer to its rows");
  }
  const auto value = static_cast<int>(type);
  if (value < 0 || value > static_cast<int>(DType::bf16)) {
    throw Error(ErrorCode::invalid_argument, std::string(field) + ".type is " + std::to_string(value) +
                                                 "; allowed: 0 (F32), 1 (F16), 2 (BF16)");
  }
}

/// The shape, where 64 bits count the bytes of all its keys and values. Else std::bad_alloc, before any memory is taken.
const Shape& countable(const Shape& shape, const EffectiveOptions& options) {
  std::int64_t widths = 0;
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    const Shape own = options.shape_of(shape, layer);
    widths += own.d_head + own.d_value;
  }
  (void)checked_product(widths, shape.n_head_kv, shape.capacity,
                        static_cast<std::int64_t>(dtype_size(shape.kv_type)));
  return shape;
}

}  // namespace

SessionBase::SessionBase(const Shape& shape, EffectiveOptions options, bool undoes)
    : memory_(Memory::current()),
      shape_(countable(shape, options)),
      undoes_(undoes),
      machine_(shape_, std::move(options), undoes) {}

SessionBase::SessionBase(const SessionBase& parent)
    : memory_(parent.memory_), shape_(parent.shape_), undoes_(parent.undoes_), machine_(parent.machine_) {}

void SessionBase::begin(const Step& step) {
  const MemoryScope scope(memory_);
  try {
    machine_.begin(step);
    const std::int64_t before = machine_.tokens();
    try {
      reserve(before, before + machine_.step_tokens());
    } catch (...) {
      machine_.abort();
      throw;
    }
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "no memory for a step of n = " + std::to_string(step.n) +
                                              " tokens after " + std::to_string(tokens()) +
                                              "; allowed: what the machine can hold");
  }
}

void SessionBase::attend(std::int64_t layer, const Rows& q, const Rows& k, const Rows& v,
                         const MutableRows& out, const LseOutput& lse) {
  run({this, layer, q, k, v, nullptr, out, lse});
}

void SessionBase::attend_stored(std::int64_t layer, const Rows& q, const StoredRows& rows,
                                const MutableRows& out, const LseOutput& lse) {
  run({this, layer, q, {}, {}, &rows, out, lse});
}

void SessionBase::run(const SequenceCall& call) {
  try {
    check_call(call);
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported;
    // A layer twice, or a device in an error state.
    const bool fails = !refused || HEADWATER_SABOTAGE("core.state.refusal_fails_the_step");
    if (machine_.open() && fails) machine_.fail();
    throw;
  }
  enter(call);
  try {
    run_layer(call);
  } catch (...) {
    fail(call);
    throw;
  }
}

void SessionBase::check_call(const SequenceCall& call) const {
  machine_.require_open("attend()");
  const bool rows_alone = call.rows_alone() && machine_.state() == SessionState::decoding;  // DEC-2
  if (!rows_alone) require_view("q", call.q.data, call.q.type);
  const bool of_caller = options().kv_owner == KvOwner::caller;
  if (of_caller != (call.stored != nullptr)) {
    throw Error(ErrorCode::invalid_argument,
                std::string(of_caller ? "attend()" : "attend_stored()") + " with kv_owner " +
                    (of_caller ? "1 (caller); allowed: attend_stored()" : "0 (session); allowed: attend()"));
  }
  if (!of_caller) {
    require_view("k", call.k.data, call.k.type);
    require_view("v", call.v.data, call.v.type);
  }
  if (!rows_alone) require_view("out", call.out.data, call.out.type);
  check_rows(call);
  machine_.check_layer(call.layer);
}

void SessionBase::end() {
  machine_.end();
  keep_step();
}

void SessionBase::reset() {
  const MemoryScope scope(memory_);
  forget();
  machine_.reset();
}

void SessionBase::abort() {
  if (!undoes_) Session::abort();  // refuses
  machine_.abort();
  undo_step();
}

void SessionBase::truncate(std::int64_t n) {
  if (!undoes_) Session::truncate(n);  // refuses
  const MemoryScope scope(memory_);
  prepare_truncate(n);
  const std::int64_t sparse = machine_.truncate(n);
  if (n == 0) {
    forget();
  } else {
    undo_chunks(sparse);
  }
}

std::unique_ptr<Session> SessionBase::fork() {
  machine_.require_closed("fork()");
  const MemoryScope scope(memory_);
  return fork_session();
}

void SessionBase::require_exchange(bool loading) const {
  if (machine_.open()) {
    throw Error(ErrorCode::wrong_state,
                "save() or load() while a step is open; allowed: after end() or abort()");
  }
  if (loading && machine_.tokens() > 0) {
    throw Error(ErrorCode::wrong_state, "load() into a session of " + std::to_string(machine_.tokens()) +
                                            " tokens; allowed: an empty one");
  }
}

void SessionBase::require_layer(std::int64_t layer) const { require_index("layer", layer, shape_.n_layer); }

void SessionBase::require_row(std::int64_t layer, std::int64_t head_kv, std::int64_t position) const {
  if (options().kv_owner == KvOwner::caller) refuse("reading rows that the caller keeps");
  require_layer(layer);
  require_index("head_kv", head_kv, shape_.n_head_kv);
  // Rows of the open step are stored once their layer was attended.
  const bool attended = machine_.open() && (machine_.attended(layer) ||
                                            HEADWATER_SABOTAGE("core.state.rows_before_their_layer"));
  require_index("position", position, machine_.tokens() + (attended ? machine_.step_tokens() : 0));
}

void SessionBase::require_width(std::int64_t row_size, std::int64_t width) {
  if (row_size >= width) return;
  throw Error(ErrorCode::invalid_argument, "row has " + std::to_string(row_size) +
                                               " elements; allowed: at least " + std::to_string(width));
}

}  // namespace headwater::core
