#pragma once

#include <cstdint>

#include "cuda/layer.hpp"

namespace headwater::cuda {

/// Rows between the caller's memory and the device. Rows of the device are used where they are. Those of the host, of any
/// stride and alignment, go through pinned buffers of two windows: while one is computed the next is copied in. Staged
/// rows begin at multiples of 16 bytes, as tensor maps want them; staged outputs have no gaps.
class Staging {
 public:
  /// The rows of an attend() call. q and out may be null, both (DEC-2): nothing is placed for them.
  struct Call {
    const headwater::Rows& q;
    const headwater::Rows& k;
    const headwater::Rows& v;
    const MutableRows& out;
  };
  /// Those of a window, on the device.
  struct Placed {
    InputRows q;
    InputRows k;
    InputRows v;
    OutputRows out;
  };

  /// Takes all memory, streams and events. Errors: out_of_memory.
  explicit Staging(SessionData& data);

  /// Errors: invalid_argument, naming rows that are of the wrong memory.
  void check(const Call& call) const;
  void begin_call();
  /// Rows [first, first + n) of the call; the session's stream has them.
  Placed begin_window(const Call& call, std::int64_t first, std::int64_t n);
  void end_window(const Call& call, std::int64_t first, std::int64_t n);
  /// Waits for outputs, or rows, that are still under way.
  void end_call(const Call& call);

 private:
  /// [rows][heads][width] without gaps.
  struct Part {
    unsigned char* pinned[2] = {};  // by side
    unsigned char* device[2] = {};
    std::int64_t heads = 0;
    std::int64_t width = 0;
  };
  /// Outputs on their way back: rows [first, first + n) of the call.
  struct Returning {
    std::int64_t first = 0;
    std::int64_t n = 0;
  };

  void take_memory();
  void require_memory(const char* name, const void* rows, DType type) const;
  [[nodiscard]] static InputRows in_place(const Part& part, const headwater::Rows& rows, std::int64_t first);
  InputRows stage_in(const Part& part, const headwater::Rows& rows, std::int64_t first, std::int64_t n);
  void hand_back(int side, const MutableRows& rows);

  SessionData& data_;
  Part q_;
  Part k_;
  Part v_;
  Part out_;
  int sides_ = 0;  // windows whose rows are staged at a time; 0: none are
  int side_ = 0;   // of this window
  Returning returning_[2] = {};
  Stream inward_{};
  Stream outward_{};
  Event staged_[2] = {};  // by side
  Event computed_[2] = {};
  Event returned_[2] = {};
};

}  // namespace headwater::cuda
