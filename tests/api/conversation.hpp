#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/api/problem.hpp"

namespace headwater::api_test {

/// A session of two layers that goes through all kinds of chunks, and what it computed.
struct Conversation {
  /// 6 query heads on 2, rows of 16 and 12, of this type; random rows, first key and first query such that row 0 sees no
  /// key where `blind` says so.
  explicit Conversation(DType type, bool blind = false);

  /// Other rows, for a shape of another size.
  void set_rows(const LayerInput& input);

  /// A sparse turn in two calls, decode steps of one row and of a block, a dense turn, a sparse one.
  [[nodiscard]] static std::vector<Step> steps();
  /// attend() of one layer of the open step.
  void attend(Session& session, std::int64_t layer, float* out, const LseOutput& lse = {}) const;
  /// A whole step; its outputs, [layers][n][heads][dv], are appended to `out`.
  void run(Session& session, const Step& step, std::vector<float>& out) const;

  /// All bits that a session leaves behind after the steps: outputs, what an observer is shown, scores and sets.
  [[nodiscard]] std::vector<unsigned char> bits(const Engine& engine, const Options& options) const;

  Shape shape;
  DType type;
  std::vector<unsigned char> q, k, v;  // token-major, in `type`
};

/// S = 160, B = 320, L = 24, H = 40: chunks of two groups of rows, memory sets of 64.
Options conversation_options(Select select, int threads);

/// The bits of n elements, appended.
template <class T>
void append_bits(const T* from, std::int64_t n, std::vector<unsigned char>& to) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  to.insert(to.end(), bytes, bytes + n * static_cast<std::int64_t>(sizeof(T)));
}

}  // namespace headwater::api_test
