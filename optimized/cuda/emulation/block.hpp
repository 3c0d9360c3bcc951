#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/emulation/clocks.hpp"
#include "cuda/emulation/fault.hpp"
#include "cuda/emulation/fiber.hpp"
#include "cuda/emulation/shared_memory.hpp"
#include "cuda/kernels/platform/platform.hpp"

namespace headwater::cuda::emulation {

class Context;

/// Memory of the device as far as the emulation can know it.
class GlobalMemory {
 public:
  GlobalMemory() = default;
  GlobalMemory(const GlobalMemory&) = delete;
  GlobalMemory& operator=(const GlobalMemory&) = delete;
  virtual ~GlobalMemory() = default;
  /// What a pointer may be used for.
  struct Buffer {
    const std::byte* first = nullptr;
    std::int64_t bytes = 0;
    const char* name = "";
    /// One entry for each 2 bytes: 1 where something has been written; null: not kept.
    unsigned char* written = nullptr;
  };
  /// The buffer that holds `at`; one of 0 bytes if there is none.
  [[nodiscard]] virtual Buffer find(const void* at) const = 0;
};

/// The order in which ready threads and blocks are taken. Results must not depend on it.
enum class Order { ascending, descending };

/// One grid.
struct Launch {
  const char* name = "";
  void (*kernel)(Context&, const void*) = nullptr;
  const void* params = nullptr;
  int threads = 0;
  int shared_bytes = 0;
  Grid grid;
  Order order = Order::ascending;
  /// Operations (barriers, shuffles, ..) of one block after which it counts as endless.
  std::int64_t most_operations = 500'000'000;
  const GlobalMemory* memory = nullptr;  ///< null: accesses to global memory are not held to allocations
};

/// Operations that a whole warp does together.
enum class WarpOperation : std::uint8_t {
  none,
  warp_sync,
  shuffle,
  ballot,
  reduce_add,
  load_matrix_x2,
  load_matrix_x2_transposed,
  load_matrix_x4,
  load_matrix_x4_transposed,
  mma_bf16,
  mma_f16,
};

/// Runs the threads of a block, each a fiber, one block after another. Not for several host threads at a time.
class Block {
 public:
  Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  /// Throws Fault, whose text names kernel, block and thread.
  void run(const Launch& launch, Grid index);

  // -- what the context asks for; the thread is the one that runs ------------------------------------------------
  [[nodiscard]] const Launch& launch() const { return *launch_; }
  [[nodiscard]] Grid index() const { return index_; }
  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] SharedMemory& shared() { return shared_; }
  /// All threads of the block (id 0), or `threads` of them.
  void barrier(int id, int threads);
  /// Returns when all lanes of `mask` have called it with their operands; results are in the operands then.
  void together(WarpOperation operation, std::uint32_t mask, void* operand);
  void announce_copy(int at, const void* base, std::int64_t offset, bool valid);
  void commit_copies();
  void wait_for_copies(int groups_left);
  /// The block whose kernel runs on this host thread.
  [[nodiscard]] static Block* current() { return current_; }
  /// `bytes` (a power of two) that stand `offset` bytes after `base`: Fault unless they are aligned to their number, lie in
  /// the buffer that `base` points into, and, for reads, have been written.
  void read_global(const void* base, std::int64_t offset, int bytes, void* to) {
    check_read_global(base, offset, bytes, "read");
    std::memcpy(to, static_cast<const std::byte*>(base) + offset, static_cast<std::size_t>(bytes));
  }
  void write_global(void* base, std::int64_t offset, int bytes, const void* from) {
    unsigned char* written = hold_global(base, offset, bytes, "write");
    if (written != nullptr) std::memset(written, 1, static_cast<std::size_t>(bytes) / 2);
    std::memcpy(static_cast<std::byte*>(base) + offset, from, static_cast<std::size_t>(bytes));
  }
  void check_read_global(const void* base, std::int64_t offset, int bytes, const char* what);
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_bounds(std::int64_t at, int bytes, int first, int last) const;
  [[noreturn]] void fail_alignment(std::int64_t at, int bytes) const;

 private:
  struct NamedBarrier {
    int expected = 0;
    int arrived = 0;
    std::array<std::uint32_t, kMaxWarps> lanes{};
  };
  struct Meeting {
    WarpOperation operation = WarpOperation::none;
    std::uint32_t mask = 0;
    std::uint32_t arrived = 0;
    std::array<void*, kWarp> operands{};
  };
  struct Copy {
    int to;
    const void* from;
    std::int64_t group;
  };
  struct Copies {
    std::vector<Copy> under_way;
    std::int64_t groups = 0;
  };

  /// Bounds; the first of the marks of what has been written, or null.
  unsigned char* hold_global(const void* base, std::int64_t offset, int bytes, const char* what);
  const GlobalMemory::Buffer& buffer_of(const void* base, int bytes, const char* what);

  static void enter(void* block, int fiber);
  void live(int thread);
  void prepare();
  void wait();
  void leave();
  void pass_on();
  [[nodiscard]] int next_ready();
  void set_ready(int warp, std::uint32_t lanes);
  void count_operation();
  void complete_barrier(NamedBarrier& barrier);
  void complete(int warp, Meeting& meeting);
  void finish_shuffle(const Meeting& meeting) const;
  void finish_load_matrix(int warp, const Meeting& meeting, int matrices, bool transposed);
  [[nodiscard]] std::string stuck() const;
  void begin_unwinding(const std::string& what);
  [[nodiscard]] std::string whereabouts(int thread) const;
  [[nodiscard]] std::string place(int thread) const;

  Fibers fibers_;
  SharedMemory shared_;
  Clocks clocks_;
  const Launch* launch_ = nullptr;
  Grid index_;
  int thread_ = 0;
  int living_ = 0;
  bool unwinding_ = false;
  std::string failure_;
  std::int64_t operations_ = 0;
  std::uint32_t ready_warps_ = 0;
  std::array<std::uint32_t, kMaxWarps> ready_{};
  std::array<std::uint32_t, kMaxWarps> ended_{};
  std::array<Meeting, kMaxWarps> meetings_{};
  std::array<NamedBarrier, 16> barriers_{};
  std::vector<int> waits_at_;  // barrier id of each thread, -1 elsewhere
  std::vector<Copies> copies_;
  std::array<GlobalMemory::Buffer, 4> recent_;  // found last, in turns
  std::size_t next_recent_ = 0;
  static inline thread_local Block* current_ = nullptr;
};

}  // namespace headwater::cuda::emulation
