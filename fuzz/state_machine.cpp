// STATE-1..6, STATE-8..12, INTR-1, PLAN and MEM-5 as a state machine: random sequences of calls (turns, decode steps, reset,
// abort, truncate, fork, save and load, calls that must be refused, observers that count or throw, interrupts, tokens beyond the capacity) against a small model of the spec. Two sessions
// of an engine get the same calls, one layer-major and one chunk-major, and must agree bit for bit in scores and sets
// (SCHED-2). Sequences shrink; RC_PARAMS="seed=..." repeats one.

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/state.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <ostream>
#include <string_view>
#include <vector>

#include "conformance/formats.hpp"
#include "conformance/state_archive.hpp"
#include "fuzz/session_model.hpp"
#include "headwater/headwater.hpp"

namespace headwater::fuzz {
namespace {

enum class Watching { nothing, chunks, throws };

/// The model, and what its observer does.
struct Model : SessionModel {
  using SessionModel::SessionModel;
  Watching watching = Watching::nothing;
};

/// Element x of the row of one token: others each time a step begins.
float element(const Model& model, char which, std::int64_t layer, std::int64_t head, std::int64_t token,
              std::int64_t x) {
  std::uint32_t hash = 2166136261u;
  const auto at = static_cast<std::size_t>(token);
  const std::int64_t epoch = at < model.epochs.size() ? model.epochs[at] : 0;
  for (const std::int64_t part : {static_cast<std::int64_t>(which), epoch, layer, head, token, x}) {
    hash = (hash ^ static_cast<std::uint32_t>(part)) * 16777619u;
    hash ^= hash >> 15;
  }
  return static_cast<float>(static_cast<int>(hash >> 24) - 128) / 64.0f;  // exact in every type
}

/// The two sessions, and what their observers saw in the latest call.
struct Sessions {
  struct Seen {
    std::int64_t layer;
    Chunk chunk;
    std::int64_t memory_count;
  };
  struct One {
    std::unique_ptr<Session> session;
    std::vector<Seen> seen;
    std::vector<float> out;
    Options options;
  };
  std::array<One, 2> both;  // layer-major, chunk-major
  bool same_outputs = false;

  Sessions(const Engine& engine, const Shape& shape, Options options)
      : same_outputs(engine.claims().bitwise_schedules) {
    for (const Schedule schedule : {Schedule::layer_major, Schedule::chunk_major}) {
      One& one = both[schedule == Schedule::layer_major ? 0 : 1];
      options.schedule = schedule;
      one.options = options;
      one.session = engine.open(shape, options);
    }
  }

  /// The same call on both; the code must be the model's, and a refusal one line.
  template <typename Call>
  void call(const Code& wanted, Call&& body) {
    for (One& one : both) {
      one.seen.clear();
      Code got;
      try {
        body(one);
      } catch (const Error& error) {
        got = error.code();
        RC_ASSERT(std::strlen(error.what()) > 0);
        RC_ASSERT(std::string_view(error.what()).find('\n') == std::string_view::npos);
      }
      const auto number = [](const Code& code) { return code ? static_cast<int>(*code) : 0; };
      RC_ASSERT(number(got) == number(wanted));
    }
  }
};

float score_at(const ScoreView& view, std::int64_t head, std::int64_t token) {
  const std::int64_t at = head * view.head_stride + token;
  if (view.type == ScoreType::f32) return static_cast<const float*>(view.data)[at];
  return std::bit_cast<float>(static_cast<std::uint32_t>(static_cast<const std::uint16_t*>(view.data)[at])
                              << 16);
}

void check_scores_and_sets(const Model& model, const Sessions& sessions) {
  const Session& a = *sessions.both[0].session;
  const Session& b = *sessions.both[1].session;
  const bool blocks = model.options.select != Select::h2o;  // SEL-9: no scores, and no sets to look at
  for (std::int64_t layer = 0; layer < model.shape.n_layer; ++layer) {
    const ScoreView scores = a.scores(layer);
    const MemoryView memory = a.memory(layer);
    const Chunk last = blocks ? Chunk{} : model.last_sparse(layer);
    // MEM-5: the last set of a layer is built when the last sparse chunk starts, from all tokens before it.
    RC_ASSERT(memory.count == std::min(model.options.memory(), last.begin));
    RC_ASSERT(blocks || memory.width == std::min(model.options.memory(), model.shape.capacity));
    for (std::int64_t head = 0; head < model.shape.n_head; ++head) {
      for (std::int64_t token = 0; token < model.tokens; ++token) {
        const float score = score_at(scores, head, token);
        const float other = score_at(b.scores(layer), head, token);
        RC_ASSERT(std::memcmp(&score, &other, sizeof score) == 0);
        RC_ASSERT((score >= 0.0f && (score == 0.0f || token < last.end)));
      }
      const std::int32_t* set = memory.data + head * memory.head_stride;
      const std::int32_t* twin = b.memory(layer).data + head * b.memory(layer).head_stride;
      RC_ASSERT(std::equal(set, set + memory.width, twin));
      for (std::int64_t i = 0; i < memory.width; ++i) {
        const bool valid = i < memory.count;
        RC_ASSERT((valid ? set[i] >= 0 && set[i] < last.begin : set[i] == -1));
        RC_ASSERT((!valid || i == 0 || set[i] > set[i - 1]));
      }
    }
  }
}

void check_rows(const Model& model, const Session& session) {
  const Shape& shape = model.shape;
  std::vector<float> row(static_cast<std::size_t>(std::max(shape.d_head, shape.d_value)));
  for (std::int64_t layer = 0; layer < shape.n_layer; ++layer) {
    // Those of an open step are stored once their layer was attended.
    const bool attended = model.open && model.attended[static_cast<std::size_t>(layer)];
    const std::int64_t stored = model.tokens + (attended ? model.step_tokens : 0);
    for (std::int64_t token = 0; token < stored; ++token) {
      const std::int64_t head = token % shape.n_head_kv;
      session.read_key(layer, head, token, row);
      for (std::int64_t x = 0; x < shape.d_head; ++x) {
        RC_ASSERT(row[static_cast<std::size_t>(x)] == element(model, 'k', layer, head, token, x));
      }
      session.read_value(layer, head, token, row);
      for (std::int64_t x = 0; x < shape.d_value; ++x) {
        RC_ASSERT(row[static_cast<std::size_t>(x)] == element(model, 'v', layer, head, token, x));
      }
    }
  }
}

/// Everything that can be seen from outside, after a call, compared with the model.
void check(const Model& model, const Sessions& sessions) {
  for (const Sessions::One& one : sessions.both) {
    const Session& session = *one.session;
    RC_ASSERT(static_cast<int>(session.state()) == static_cast<int>(model.state()));
    RC_ASSERT(session.tokens() == model.tokens);
    RC_ASSERT(session.failed() == model.failed);
    const auto same = [](const Chunk& a, const Chunk& b) {
      return a.begin == b.begin && a.end == b.end && a.mode == b.mode;
    };
    const auto plan = session.plan();
    const std::vector<Chunk> planned = model.plan();
    RC_ASSERT((std::equal(plan.begin(), plan.end(), planned.begin(), planned.end(), same)));
    const auto chunks = session.chunks();
    const std::vector<Chunk> taken = model.chunks();
    RC_ASSERT((std::equal(chunks.begin(), chunks.end(), taken.begin(), taken.end(), same)));
    if (!model.failed) check_rows(model, session);  // STATE-5: a failed step may have stored anything
  }
  if (!model.failed) check_scores_and_sets(model, sessions);
}

using Command = rc::state::Command<Model, Sessions>;

/// A command: the call, and what the model says that it must give.
class Call : public Command {
 public:
  void apply(Model& model) const override { (void)answer(model); }
  void run(const Model& before, Sessions& sessions) const override {
    Model after = before;
    const Code wanted = answer(after);
    sessions.call(wanted, [&](Sessions::One& one) { perform(before, one); });
    afterwards(before, wanted, sessions);
    check(after, sessions);
  }

 protected:
  virtual Code answer(Model& model) const = 0;
  virtual void perform(const Model& before, Sessions::One& one) const = 0;
  virtual void afterwards(const Model&, const Code&, Sessions&) const {}
};

class Begin : public Call {
 public:
  explicit Begin(const Model& model) {
    const std::int64_t left = model.shape.capacity - model.tokens;
    const std::int64_t wide = *rc::gen::arbitrary<std::int64_t>();
    step_.kind = *rc::gen::weightedElement<Step::Kind>({{5, Step::Kind::prefill}, {2, Step::Kind::decode}});
    step_.n = *rc::gen::weightedOneOf<std::int64_t>(
        {{12, rc::gen::inRange<std::int64_t>(1, std::max<std::int64_t>(2, left + 1))},
         {2, rc::gen::element<std::int64_t>(0, -1, left, left + 1, std::numeric_limits<std::int64_t>::max(),
                                            std::numeric_limits<std::int64_t>::min())},
         {1, rc::gen::just(wide)}});
    // Mostly what is legal: nothing, the turn's own length, a longer turn.
    const std::int64_t longer = step_.n < 1000 ? step_.n + *rc::gen::inRange<std::int64_t>(0, 20) : step_.n;
    step_.turn_length =
        *rc::gen::weightedElement<std::int64_t>({{6, 0},
                                                 {3, step_.kind == Step::Kind::decode ? 0 : longer},
                                                 {3, model.turn_length()},
                                                 {1, step_.n - (step_.n > 0 ? 1 : 0)},
                                                 {1, wide}});
    if (*rc::gen::inRange(0, 40) == 0) step_.kind = static_cast<Step::Kind>(2);
  }
  void show(std::ostream& to) const override {
    to << "begin("
       << (step_.kind == Step::Kind::prefill  ? "p"
           : step_.kind == Step::Kind::decode ? "d"
                                              : "?")
       << step_.n << ':' << step_.turn_length << ')';
  }

 protected:
  Code answer(Model& model) const override { return model.begin(step_); }
  void perform(const Model&, Sessions::One& one) const override { one.session->begin(step_); }

 private:
  Step step_;
};

/// What is wrong with the views of an attend().
enum class Fault { none, no_query, no_output, key_type, output_type };

class Attend : public Call {
 public:
  explicit Attend(const Model& model) {
    // Mostly a layer that is still to be done.
    const auto& attended = model.attended;
    const auto next = std::find(attended.begin(), attended.end(), false) - attended.begin();
    layer_ = *rc::gen::weightedElement<std::int64_t>(
        {{30, next}, {1, 0}, {1, -1}, {1, model.shape.n_layer}, {1, 1}});
    fault_ = *rc::gen::weightedElement<Fault>({{30, Fault::none},
                                               {1, Fault::no_query},
                                               {1, Fault::no_output},
                                               {1, Fault::key_type},
                                               {1, Fault::output_type}});
    // Mostly one type for all, for which engines have kernels of their own.
    for (DType* type : {&query_type_, &key_type_, &value_type_, &output_type_}) {
      *type = *rc::gen::weightedElement<DType>(
          {{6, model.shape.kv_type}, {1, DType::f32}, {1, DType::f16}, {1, DType::bf16}});
    }
  }
  void show(std::ostream& to) const override {
    to << "attend(" << layer_ << ", fault " << static_cast<int>(fault_) << ", q " << dtype_name(query_type_)
       << " k " << dtype_name(key_type_) << " v " << dtype_name(value_type_) << " out "
       << dtype_name(output_type_) << ')';
  }

 protected:
  Code answer(Model& model) const override { return model.attend(layer_, fault_ == Fault::none); }

  void perform(const Model& before, Sessions::One& one) const override {
    const Shape& s = before.shape;
    const std::int64_t n = std::max<std::int64_t>(before.step_tokens, 1);
    const auto rows = [&](char which, DType type, std::int64_t heads, std::int64_t width) {
      std::vector<std::byte> values(static_cast<std::size_t>(n * heads * width) * dtype_size(type));
      std::byte* to = values.data();
      for (std::int64_t t = 0; t < n; ++t) {
        for (std::int64_t h = 0; h < heads; ++h) {
          for (std::int64_t x = 0; x < width; ++x, to += dtype_size(type))
            conformance::store_element(type, element(before, which, layer_, h, before.tokens + t, x), to);
        }
      }
      return values;
    };
    const std::vector<std::byte> q = rows('q', query_type_, s.n_head, s.d_head);
    const std::vector<std::byte> k = rows('k', key_type_, s.n_head_kv, s.d_head);
    const std::vector<std::byte> v = rows('v', value_type_, s.n_head_kv, s.d_value);
    const auto outputs = static_cast<std::size_t>(n * s.n_head * s.d_value);
    std::vector<std::byte> written(outputs * dtype_size(output_type_));
    const auto element_of = [&](std::size_t i) { return written.data() + i * dtype_size(output_type_); };
    for (std::size_t i = 0; i < outputs; ++i)
      conformance::store_element(output_type_, kUntouched, element_of(i));
    Rows queries = Rows::token_major(q.data(), query_type_, s.n_head, s.d_head);
    Rows keys = Rows::token_major(k.data(), key_type_, s.n_head_kv, s.d_head);
    MutableRows out = MutableRows::token_major(written.data(), output_type_, s.n_head, s.d_value);
    if (fault_ == Fault::no_query) queries.data = nullptr;
    if (fault_ == Fault::no_output) out.data = nullptr;
    if (fault_ == Fault::key_type) keys.type = static_cast<DType>(3);
    if (fault_ == Fault::output_type) out.type = static_cast<DType>(200);
    const auto read_outputs = [&] {
      one.out.clear();
      for (std::size_t i = 0; i < outputs; ++i)
        one.out.push_back(conformance::load_element(output_type_, element_of(i)));
    };
    try {
      one.session->attend(layer_, queries, keys,
                          Rows::token_major(v.data(), value_type_, s.n_head_kv, s.d_value), out);
    } catch (...) {
      read_outputs();
      throw;
    }
    read_outputs();
  }

  void afterwards(const Model& before, const Code& wanted, Sessions& sessions) const override {
    for (const Sessions::One& one : sessions.both) {
      if (!wanted) {
        check_seen(before, one);
        // Values are in [-2, 2), and an output is a weighted mean of at most 40 of them (a sink's value is 0): one rounding
        // for each term of the sum and of its divisor, and some for the quotient and the fusion.
        for (const float value : one.out) RC_ASSERT(std::fabs(value) <= 2.0f * (1.0f + 100.0f * 0x1p-24f));
      } else if (*wanted == ErrorCode::interrupted) {
        RC_ASSERT(one.seen.empty());
      } else if (*wanted != ErrorCode::internal) {
        RC_ASSERT(one.seen.empty());
        for (const float value : one.out) RC_ASSERT(value == kUntouched);
      }
    }
    if (wanted || !sessions.same_outputs) return;
    const std::vector<float>& a = sessions.both[0].out;
    const std::vector<float>& b = sessions.both[1].out;
    RC_ASSERT(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
  }

 private:
  static constexpr float kUntouched = 12288.0f;  // exact in every type

  void check_seen(const Model& before, const Sessions::One& one) const {
    if (before.watching != Watching::chunks) {
      RC_ASSERT(one.seen.empty());
      return;
    }
    const std::vector<Chunk> plan = before.plan();
    RC_ASSERT(one.seen.size() == plan.size());
    for (std::size_t c = 0; c < one.seen.size(); ++c) {
      const Sessions::Seen& seen = one.seen[c];
      const Chunk& chunk = plan[c];
      RC_ASSERT((seen.layer == layer_ && seen.chunk.begin == chunk.begin && seen.chunk.end == chunk.end));
      const bool sparse = chunk.mode == ChunkMode::sparse;
      RC_ASSERT((seen.memory_count == (sparse ? before.options.memory_count(chunk.begin) : 0)));
    }
  }

  std::int64_t layer_ = 0;
  Fault fault_ = Fault::none;
  DType query_type_ = DType::f32;
  DType key_type_ = DType::f32;
  DType value_type_ = DType::f32;
  DType output_type_ = DType::f32;
};

class End : public Call {
 public:
  void show(std::ostream& to) const override { to << "end()"; }

 protected:
  Code answer(Model& model) const override { return model.end(); }
  void perform(const Model&, Sessions::One& one) const override { one.session->end(); }
};

class Reset : public Call {
 public:
  void show(std::ostream& to) const override { to << "reset()"; }

 protected:
  Code answer(Model& model) const override {
    model.reset();
    return std::nullopt;
  }
  void perform(const Model&, Sessions::One& one) const override { one.session->reset(); }
};

class Abort : public Call {
 public:
  void show(std::ostream& to) const override { to << "abort()"; }

 protected:
  Code answer(Model& model) const override { return model.abort(); }
  void perform(const Model&, Sessions::One& one) const override { one.session->abort(); }
};

class Truncate : public Call {
 public:
  explicit Truncate(const Model& model) {
    n_ = *rc::gen::weightedOneOf<std::int64_t>(
        {{12, rc::gen::inRange<std::int64_t>(0, model.tokens + 1)},
         {6, rc::gen::inRange<std::int64_t>(model.tokens / 2, model.tokens + 1)},
         {2, rc::gen::element<std::int64_t>(0, -1, model.tokens, model.tokens + 1)},
         {1, rc::gen::arbitrary<std::int64_t>()}});
    // Chunks end there, and so mostly what is possible.
    const std::vector<Chunk> chunks = model.chunks();
    if (!chunks.empty() && *rc::gen::arbitrary<bool>()) n_ = (*rc::gen::elementOf(chunks)).end;
  }
  void show(std::ostream& to) const override { to << "truncate(" << n_ << ')'; }

 protected:
  Code answer(Model& model) const override { return model.truncate(n_); }
  void perform(const Model&, Sessions::One& one) const override { one.session->truncate(n_); }

 private:
  std::int64_t n_ = 0;
};

class Ask : public Call {
 public:
  Ask()
      : answer_(*rc::gen::weightedElement<Answer>(
            {{3, Answer::none}, {3, Answer::go_on}, {1, Answer::stop}, {1, Answer::throws}})) {}
  void show(std::ostream& to) const override { to << "set_interrupt(" << static_cast<int>(answer_) << ')'; }

 protected:
  Code answer(Model& model) const override { return model.set_interrupt(answer_); }
  void perform(const Model&, Sessions::One& one) const override {
    if (answer_ == Answer::none) {
      one.session->set_interrupt({});
      return;
    }
    one.session->set_interrupt([answer = answer_] {
      if (answer == Answer::throws) throw Error(ErrorCode::internal, "the interrupt's own");
      return answer == Answer::stop;
    });
  }

 private:
  Answer answer_;
};

/// The session is replaced by its fork (STATE-11), or is told from it; then the other one gets other tokens and goes.
class Fork : public Call {
 public:
  explicit Fork(const Model& model)
      : kept_(*rc::gen::arbitrary<bool>()),
        emptied_(*rc::gen::arbitrary<bool>()),
        tokens_(std::min(*rc::gen::inRange<std::int64_t>(0, 14), model.shape.capacity - model.tokens)) {}
  void show(std::ostream& to) const override {
    to << (kept_ ? "fork() kept" : "fork()") << ", the other gets " << tokens_
       << (emptied_ ? " tokens after reset()" : " tokens");
  }

 protected:
  Code answer(Model& model) const override {
    if (!kept_) {
      Model other = model;
      return other.become_fork();
    }
    const Code code = model.become_fork();
    if (!code) model.watching = Watching::nothing;
    return code;
  }
  void perform(const Model& before, Sessions::One& one) const override {
    std::unique_ptr<Session> other = one.session->fork();
    if (kept_) std::swap(other, one.session);
    other->set_observer({});
    if (before.claims.interrupt) other->set_interrupt({});
    if (emptied_) other->reset();
    if (tokens_ > 0) run_other(*other);
  }

 private:
  void run_other(Session& session) const {
    const Shape& s = session.shape();
    const std::vector<float> rows(
        static_cast<std::size_t>(tokens_ * s.n_head * std::max(s.d_head, s.d_value)), 3.0f);
    std::vector<float> out(static_cast<std::size_t>(tokens_ * s.n_head * s.d_value));
    session.begin(Step::prefill(tokens_));
    for (std::int64_t layer = 0; layer < s.n_layer; ++layer) {
      session.attend(layer, Rows::token_major(rows.data(), DType::f32, s.n_head, s.d_head),
                     Rows::token_major(rows.data(), DType::f32, s.n_head_kv, s.d_head),
                     Rows::token_major(rows.data(), DType::f32, s.n_head_kv, s.d_value),
                     MutableRows::token_major(out.data(), DType::f32, s.n_head, s.d_value));
    }
    session.end();
  }

  bool kept_;
  bool emptied_;
  std::int64_t tokens_;
};

/// The session is replaced by one that has loaded what it saved (STATE-12).
class SaveAndLoad : public Call {
 public:
  explicit SaveAndLoad(const Engine& engine) : engine_(engine) {}
  void show(std::ostream& to) const override { to << "save(), load()"; }

 protected:
  Code answer(Model& model) const override {
    const Code code = model.become_loaded();
    if (!code) model.watching = Watching::nothing;
    return code;
  }
  void perform(const Model& before, Sessions::One& one) const override {
    conformance::MemoryArchive archive;
    one.session->exchange_state(archive);
    archive.load();
    std::unique_ptr<Session> loaded = engine_.open(before.shape, one.options);
    loaded->exchange_state(archive);
    one.session = std::move(loaded);
  }

 private:
  const Engine& engine_;
};

class Watch : public Call {
 public:
  Watch()
      : watching_(*rc::gen::weightedElement<Watching>(
            {{2, Watching::nothing}, {4, Watching::chunks}, {1, Watching::throws}})) {}
  void show(std::ostream& to) const override { to << "set_observer(" << static_cast<int>(watching_) << ')'; }

 protected:
  Code answer(Model& model) const override {
    model.watching = watching_;
    model.observer_throws = watching_ == Watching::throws;
    return std::nullopt;
  }
  void perform(const Model&, Sessions::One& one) const override {
    switch (watching_) {
      case Watching::nothing: one.session->set_observer({}); break;
      case Watching::chunks:
        one.session->set_observer([&one](const ChunkRecord& record) {
          one.seen.push_back({record.layer, record.chunk, record.memory_count});
        });
        break;
      case Watching::throws:
        one.session->set_observer(
            [](const ChunkRecord&) { throw Error(ErrorCode::internal, "the observer's own"); });
        break;
    }
  }

 private:
  Watching watching_;
};

/// Reading rows that do not exist is refused in every state, and nothing changes.
class ReadBeyond : public Call {
 public:
  explicit ReadBeyond(const Model& model) {
    const Shape& s = model.shape;
    // Rows of the open step show in the layers that were attended, and in those alone; of a failed one some may.
    layer_ = *rc::gen::inRange<std::int64_t>(0, s.n_layer);
    const bool attended = model.open && model.attended[static_cast<std::size_t>(layer_)];
    const std::int64_t beyond = model.tokens + (attended || model.failed ? model.step_tokens : 0);
    const auto wide = *rc::gen::arbitrary<std::int64_t>();
    switch (*rc::gen::inRange(0, 5)) {
      case 0: position_ = beyond; break;
      case 1: position_ = wide >= 0 && wide < beyond ? -1 : wide; break;
      case 2: head_ = s.n_head_kv; break;
      case 3: layer_ = wide >= 0 && wide < s.n_layer ? -1 : wide; break;
      default: room_ = 0; break;
    }
  }
  void show(std::ostream& to) const override {
    to << "read_key(" << layer_ << ", " << head_ << ", " << position_ << ", room " << room_ << ')';
  }

 protected:
  Code answer(Model&) const override { return ErrorCode::invalid_argument; }
  void perform(const Model&, Sessions::One& one) const override {
    std::array<float, 16> row{};
    one.session->read_key(layer_, head_, position_, std::span(row).first(room_));
  }

 private:
  std::int64_t layer_ = 0;
  std::int64_t head_ = 0;
  std::int64_t position_ = 0;
  std::size_t room_ = 16;
};

/// Commands as a caller would mix them: mostly the next one of a step.
rc::Gen<std::shared_ptr<const Command>> next_command(const Engine& engine, const Model& model) {
  const auto one = [&](auto maker) {
    return rc::gen::exec([=]() -> std::shared_ptr<const Command> { return maker(); });
  };
  const auto begin = one([=] { return std::make_shared<const Begin>(model); });
  const auto attend = one([=] { return std::make_shared<const Attend>(model); });
  const auto end = one([] { return std::make_shared<const End>(); });
  const auto reset = one([] { return std::make_shared<const Reset>(); });
  const auto watch = one([] { return std::make_shared<const Watch>(); });
  const auto read = one([=] { return std::make_shared<const ReadBeyond>(model); });
  const auto abort = one([] { return std::make_shared<const Abort>(); });
  const auto truncate = one([=] { return std::make_shared<const Truncate>(model); });
  const auto ask = one([] { return std::make_shared<const Ask>(); });
  const auto fork = one([=] { return std::make_shared<const Fork>(model); });
  const auto load = one([&engine] { return std::make_shared<const SaveAndLoad>(engine); });
  if (model.failed) {
    return rc::gen::weightedOneOf<std::shared_ptr<const Command>>({{1, begin},
                                                                   {1, attend},
                                                                   {1, end},
                                                                   {model.claims.abort ? 1u : 6u, reset},
                                                                   {6, abort},
                                                                   {1, truncate},
                                                                   {1, watch},
                                                                   {1, read}});
  }
  if (!model.open) {
    return rc::gen::weightedOneOf<std::shared_ptr<const Command>>({{16, begin},
                                                                   {1, attend},
                                                                   {1, end},
                                                                   {1, reset},
                                                                   {1, abort},
                                                                   {6, truncate},
                                                                   {3, fork},
                                                                   {2, load},
                                                                   {2, watch},
                                                                   {1, ask},
                                                                   {1, read}});
  }
  const bool complete =
      std::find(model.attended.begin(), model.attended.end(), false) == model.attended.end();
  return rc::gen::weightedOneOf<std::shared_ptr<const Command>>({{1, begin},
                                                                 {complete ? 1u : 20u, attend},
                                                                 {complete ? 20u : 1u, end},
                                                                 {1, reset},
                                                                 {2, abort},
                                                                 {1, truncate},
                                                                 {1, fork},
                                                                 {1, load},
                                                                 {1, watch},
                                                                 {1, ask},
                                                                 {1, read}});
}

TEST(StateMachine, STATE_1_to_12_RandomCallsAgainstAModel) {
  for (const Engine* engine : engines()) {
    if (!engine->unavailable_because().empty()) continue;
    SCOPED_TRACE(std::string(engine->name()));
    const std::vector<Select> rules = conformance::rules(*engine);
    EXPECT_TRUE(rc::check("random calls on " + std::string(engine->name()), [&] {
      Shape shape;
      shape.n_layer = *rc::gen::inRange<std::int64_t>(1, 3);
      shape.n_head_kv = *rc::gen::inRange<std::int64_t>(1, 3);
      shape.n_head = shape.n_head_kv * *rc::gen::inRange<std::int64_t>(1, 3);
      shape.d_head = *rc::gen::inRange<std::int64_t>(1, 5);
      shape.d_value = *rc::gen::inRange<std::int64_t>(1, 5);
      shape.capacity = *rc::gen::inRange<std::int64_t>(1, 40);
      shape.kv_type = *rc::gen::element(DType::f32, DType::f16, DType::bf16);
      Options options;
      options.batch = *rc::gen::inRange<std::int64_t>(1, 20);
      options.chunk = *rc::gen::inRange<std::int64_t>(1, 12);
      options.local = *rc::gen::inRange<std::int64_t>(0, 6);
      options.heavy = *rc::gen::inRange<std::int64_t>(0, 6);
      options.clamp = *rc::gen::arbitrary<bool>();
      options.score_type = *rc::gen::element(ScoreType::bf16, ScoreType::f32);
      options.threads = 1;
      options.dense_below = *rc::gen::weightedElement<std::int64_t>({{3, 0}, {1, 5}, {1, 12}});
      if (engine->claims().truncate) options.checkpoints = *rc::gen::element<std::int64_t>(0, 1, 2, 5);
      options.select = *rc::gen::elementOf(rules);
      options.query_block = std::min<std::int64_t>(3, options.chunk);
      if (options.select == Select::blocks) {
        options.key_block = std::min<std::int64_t>(2, options.chunk);
        options.pool = 1;
        options.heavy *= options.key_block;
      }
      if (*rc::gen::arbitrary<bool>()) options.sinks.assign(static_cast<std::size_t>(shape.n_head), 0.5f);
      Sessions sessions(*engine, shape, options);
      const Model model(shape, sessions.both[0].session->options(), engine->claims());
      rc::state::check(model, sessions, [&](const Model& now) { return next_command(*engine, now); });
    }));
  }
}

}  // namespace
}  // namespace headwater::fuzz
