#pragma once

#include <cstdint>

#include "cuda/layer.hpp"
#include "cuda/path/sm80.hpp"

namespace headwater::cuda {

/// Dense causal attention over everything stored: dense prefill calls (CFG-2, STATE-3) and decode steps (DEC-1).
class DensePass {
 public:
  /// Takes all memory. Errors: out_of_memory. Decode is always computed by `sm80`.
  DensePass(SessionData& data, Sm80Path& sm80);

  /// A window of the call's only chunk.
  void run(const Window& window, const Chunk& chunk);
  /// After the window is launched: what the observer is to see of it.
  void keep_lse(const Window& window, const Chunk& chunk) const;
  /// After the last one.
  void report(std::int64_t layer, const Chunk& chunk, const Observer& observer) const;

 private:
  void decode(const Window& window);

  SessionData& data_;
  Sm80Path& sm80_;
  std::int64_t decode_tokens_;  // of a step that is split along its keys
  SoftmaxState parts_{};        // [splits][Hq][decode tokens]
};

}  // namespace headwater::cuda
