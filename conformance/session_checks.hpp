#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "conformance/problem.hpp"
#include "conformance/run.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {

/// The code of the Error that `call` throws, or nothing. Throws Violation where its message is not one line.
[[nodiscard]] std::optional<ErrorCode> code_of(const std::function<void()>& call);
/// Throws Violation unless both are the same; `what` was called.
void require_code(const std::optional<ErrorCode>& got, const std::optional<ErrorCode>& wanted,
                  const std::string& what);

/// Throws Skipped where the engine does not make a claim, whose name is `name`.
void require_claim(const Engine& engine, bool Claims::*claim, const char* name);

/// Whether the engine pins tokens (MEM-7), and the rules that it has.
[[nodiscard]] bool pins(const Engine& engine);
[[nodiscard]] std::vector<Select> rules(const Engine& engine);

/// A random problem under that rule with pinned tokens, short dense turns, dense layers and, where the engine claims
/// truncate, checkpoints.
[[nodiscard]] Problem session_problem(Random& random, const Engine& engine, Select rule,
                                      const Variety& variety);

/// The problem's rows from position `first` on become others, for as many tokens as its capacity.
void draw_rows_from(Random& random, Problem& problem, std::int64_t first);

/// One layer of the open step of n tokens, with the rows of `from` at the positions that it takes; returns the outputs. Its
/// tensors may hold more tokens than its steps.
std::vector<float> attend_layer(Session& session, const Problem& from, std::int64_t layer, std::int64_t n,
                                const LseOutput& lse = {});

/// What a session shows between steps.
struct Picture {
  SessionState state = SessionState::empty;
  std::int64_t tokens = 0;
  bool failed = false;
  std::vector<Chunk> chunks, plan;
  std::vector<Snapshot> layers;
  std::vector<float> rows;  ///< stored keys and values of all layers
};

/// Every stored row, or one of `stride` and the last one.
[[nodiscard]] Picture picture(const Session& session, std::int64_t stride = 1);
/// Throws Violation, which begins with `what` and names the first difference.
void require_same(const Picture& a, const Picture& b, const std::string& what);

/// STATE-9: the steps of the first n tokens. A step that is cut keeps the length of the turn that it opens.
[[nodiscard]] std::vector<Step> first_tokens(const std::vector<Step>& steps, std::int64_t n);

/// STATE-10, from the clause alone: which lengths a session with these effective options can be truncated to.
class Lengths {
 public:
  explicit Lengths(const EffectiveOptions& options = {});
  /// After end() and after truncate(): the chunks of the session then.
  void ended(std::span<const Chunk> chunks);
  void truncated(std::int64_t n);
  /// Of a session that was loaded: all sparse chunks are settled (STATE-12).
  void loaded() { settled_ = sparse_.size(); }
  [[nodiscard]] bool possible(std::int64_t n) const;

 private:
  bool bound_;                 // by rule h2o
  std::int64_t kept_;          // E
  std::vector<Chunk> sparse_;  // of all steps
  std::size_t settled_ = 0;    // the first of them
  std::int64_t tokens_ = 0;
};

/// Appends up to `count` random steps of at most `left` tokens together; the first may continue the turn that `steps` end in.
void append_steps(Random& random, const Options& options, std::vector<Step>& steps, std::int64_t left,
                  int count);

}  // namespace headwater::conformance
