#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "integrations/ggml/node.hpp"
#include "integrations/ggml/settings.hpp"

namespace headwater::ggml {

/// How a call was computed.
enum class Way : std::uint8_t { dense, sparse };

/// Attention by Headwater's engine over the rows of the host's cache. Nothing is kept from one call to the next but empty
/// sessions, their working memory that is: rule `sketches` chooses from the keys that it is given, so a cache that was edited,
/// shifted or shared is as good as any.
class Attention {
 public:
  Attention(const Settings& settings, int threads) : settings_(settings), threads_(threads) {}

  void set_threads(int threads) { threads_ = threads; }

  /// Writes node.out. `longest`: rows of the host's longest calls. Errors: headwater::Error, std::bad_alloc; the output is then
  /// not defined.
  Way run(const Node& node, const Causal& causal, std::int64_t longest);

 private:
  struct Kept {
    Shape shape;
    Options options;
    std::unique_ptr<Session> session;
  };

  Session& session_for(const Node& node, std::int64_t tokens);
  StoredRows stored_rows(const Node& node, const Causal& causal, std::int64_t tokens);
  void widen(const ggml_tensor* rows, std::int64_t first, std::int64_t tokens, float* copy) const;

  Settings settings_;
  int threads_;
  std::vector<Kept> kept_;   // the one used last at the end
  std::vector<float> copy_;  // of quantised K and V rows
};

/// The options of a session for these settings. The engine decides on what they leave open.
Options options_of(const Settings& settings);

}  // namespace headwater::ggml
