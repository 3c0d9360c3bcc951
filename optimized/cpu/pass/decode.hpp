#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.hpp"
#include "cpu/arithmetic/arithmetic.hpp"
#include "cpu/layer.hpp"

namespace headwater::cpu {

/// Query rows (tokens x heads of a group) that are decoded together at most, and parts that a context is cut into.
inline constexpr std::int64_t kDecodeRows = 16;
inline constexpr std::int64_t kMaxSplits = 32;
/// Logits of a row that are kept at a time, for whole parts of a long context: memory streams while all keys of a part
/// are read, then all its values, and each change from one to the other costs a start.
inline constexpr std::int64_t kDecodeLogits = 4096;
/// Packed rows that are restored at a time (STATE-13), while they are in the first or second level of cache.
inline constexpr std::int64_t kRestoredRows = 128;

/// Dense attention of a few rows to a long context (DEC-1): K and V are read once for all query heads of a group, and
/// the context is split over the threads.
class DecodePass {
 public:
  DecodePass(SessionData& data);

  [[nodiscard]] std::int64_t bytes() const;
  /// Whether the rows of this chunk are few enough, and their bits may be those of this pass.
  [[nodiscard]] bool takes(const Chunk& chunk) const;

  /// A call whose only chunk the pass takes.
  struct Decode {
    DecodePass* pass = nullptr;
    const LayerCall* call = nullptr;
    LseRows lse{};  ///< for the observer
  };
  /// Stores the outputs of these calls, each of another session, and, where they are wanted, their log-sum-exps. The tasks
  /// of all of them are dealt out to these threads together (SEQ-1); no other session has more threads.
  static void run(Workers& workers, std::span<const Decode> decodes);

 private:
  /// A query head at a position, one of the rows that share a key/value head.
  struct Row {
    std::int64_t head;
    std::int64_t position;
  };
  /// Working memory of one thread.
  struct Scratch {
    explicit Scratch(const SessionData& data);
    core::Buffer<float> logits;  ///< [kDecodeRows][kDecodeLogits], then weights
    core::Buffer<float> out;     ///< [kDecodeRows][dv]
    core::Buffer<unsigned char>
        restored;  ///< kRestoredRows keys or values and readable ones; empty unless packed
  };
  /// Keys [begin, end), part `index` of the context.
  struct Split {
    std::int64_t index;
    std::int64_t begin;
    std::int64_t end;
  };
  /// How a call's context is cut.
  struct Cut {
    std::int64_t oldest;  ///< the first key that is read
    std::int64_t keys;    ///< of a split
    std::int64_t splits;
  };

  [[nodiscard]] std::int64_t group() const { return data_.shape.n_head / data_.shape.n_head_kv; }
  [[nodiscard]] static Cut cut(const LayerCall& call);
  [[nodiscard]] Row row_of(const Chunk& chunk, std::int64_t head_kv, std::int64_t row) const;
  /// KvStore::for_keys() and for_values(), of packed rows by way of `restored`.
  template <class Body>
  void for_keys(const LayerCall& call, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                unsigned char* restored, const Body& body) const;
  template <class Body>
  void for_values(const LayerCall& call, std::int64_t head_kv, std::int64_t first, std::int64_t n,
                  unsigned char* restored, const Body& body) const;
  void attend_split(const LayerCall& call, std::int64_t head_kv, const Split& split, int thread);
  void map_row(const LayerCall& call, const Row& row, std::int64_t first, std::int64_t n,
               float* logits) const;
  void join_splits(const LayerCall& call, std::int64_t head_kv, std::int64_t row, std::int64_t splits,
                   const LseRows& lse, int thread);
  /// m, l and the unnormalised output of a row over one part of the context.
  [[nodiscard]] float* split_state(std::int64_t head_kv, std::int64_t split, std::int64_t row);

  SessionData& data_;
  core::Buffer<float> splits_;    // [Hkv][kMaxSplits][kDecodeRows][2 + dv]
  std::vector<Scratch> scratch_;  // one per thread
};

}  // namespace headwater::cpu
