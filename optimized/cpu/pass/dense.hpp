#pragma once

#include <cstdint>

#include "core/buffer.hpp"
#include "cpu/arithmetic/arithmetic.hpp"
#include "cpu/layer.hpp"
#include "cpu/pass/decode.hpp"

namespace headwater::cpu {

/// Dense causal attention over everything stored: dense prefill calls (CFG-2, STATE-3) and decode steps (DEC-1).
class DensePass {
 public:
  DensePass(SessionData& data);

  [[nodiscard]] std::int64_t bytes() const { return lse_.bytes() + decode_.bytes(); }
  /// The call's only chunk.
  void run(const LayerCall& call);
  /// The decode pass where it takes the chunk, else null.
  [[nodiscard]] DecodePass* decode_of(const Chunk& chunk) {
    return decode_.takes(chunk) ? &decode_ : nullptr;
  }

 private:
  /// The log-sum-exps that an observer is shown of a chunk.
  [[nodiscard]] LseRows shown(const Chunk& chunk) { return {lse_.data(), data_.shape.capacity, chunk.begin}; }
  void run_blocks(const LayerCall& call, const LseRows& lse);
  /// Blocks of a task, where `sets` sets of KV heads have `blocks` blocks each: those whose last turn of the threads ends
  /// first.
  [[nodiscard]] std::int64_t few_blocks(std::int64_t blocks, std::int64_t sets) const;

  SessionData& data_;
  DecodePass decode_;
  core::Buffer<float> lse_;  // [Hq][capacity] what an observer is shown
};

}  // namespace headwater::cpu
