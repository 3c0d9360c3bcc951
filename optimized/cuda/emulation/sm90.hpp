#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/emulation/fiber.hpp"
#include "cuda/kernels/sm90/elements.hpp"
#include "cuda/kernels/sm90/fragments.hpp"
#include "cuda/kernels/sm90/matrix_descriptor.hpp"
#include "cuda/kernels/sm90/tensor_map.hpp"

namespace headwater::cuda::sm90 {

/// When what is asynchronous happens. Both are legal on the device, and everything between.
enum class Timing {
  kEarly,  ///< copies and products at once: a stage is overwritten as soon as its producer may
  kLate,  ///< copies when nobody else can move, products when somebody waits: nothing is there before it must be
};

/// mbarrier object of PTX: an expected number of arrivals and bytes, and a phase that ends when both are in.
struct SoftwareBarrier {
  static constexpr std::uint32_t kStarted = 0x6261722Du;
  std::uint32_t started;
  int arrivals;  ///< of each phase
  int missing;   ///< of this phase
  std::int64_t bytes;
  std::uint32_t phase;
};

class SoftwareMachine;

/// One thread block of a multiprocessor, its threads as fibers on one host thread. The rules of the PTX ISA are written
/// out here for themselves: addresses through descriptors, boxes of tensor maps, phases of barriers. What a device would
/// leave undefined (a deadlock, a register read while its product is on its way, a product issued without a fence, a
/// descriptor that differs inside a warpgroup, an address outside) ends the run with one line in fault().
class SoftwareBlock {
 public:
  static constexpr int kThreads = 384;
  static constexpr std::uint32_t kSharedBytes = 232448;

  SoftwareBlock(int block, int blocks, Timing timing, std::uint32_t seed);
  SoftwareBlock(const SoftwareBlock&) = delete;
  SoftwareBlock& operator=(const SoftwareBlock&) = delete;
  ~SoftwareBlock();

  /// Runs `body(machine)` on every thread to its end; false with fault() when that is impossible.
  template <class Machine, class Body>
  bool run(const Body& body);

  [[nodiscard]] const std::string& fault() const { return fault_; }
  [[nodiscard]] std::int64_t copies() const { return copies_made_; }
  [[nodiscard]] std::int64_t products() const { return products_made_; }

 private:
  friend class SoftwareMachine;

  struct Copy {
    std::uint32_t to;
    std::uint32_t bytes;
    TileMap map;
    const void* from;  ///< of plain bytes; null: a box of the map
    int at[TileMap::kAxes];
    SoftwareBarrier* full;
  };
  /// Accumulators of a thread while products on them are on their way; the registers themselves hold NaN.
  struct InFlight {
    float* registers = nullptr;
    int count = 0;
    int last_product = -1;
    float values[kAccumulators];
  };
  struct Thread {
    bool finished = false;
    bool fenced = false;
    int issued = 0;
    int uncommitted = 0;
    std::vector<int> groups;  ///< products issued when each group was closed
    InFlight in_flight[4];
    int shuffles = 0;  ///< meetings of its warp that it took part in
  };
  struct Product {
    bool bf16;
    bool a_in_registers;
    bool transposed;
    bool accumulate;
    int columns;
    MatrixDescriptor a;
    MatrixDescriptor b;
    int threads = 0;
    bool done = false;
    InFlight* accumulators[kWarpgroup] = {};
    const std::uint32_t* words[kWarpgroup] = {};
  };
  struct Warpgroup {
    std::vector<Product> products;
    int done = 0;
  };
  struct Warp {
    int arrived = 0;
    int meetings = 0;
    int kind = 0;
    float values[2][32];
  };
  struct NamedBarrier {
    int threads = 0;
    int arrived = 0;
    int generation = 0;
  };

  /// Stacks stay with the host thread for its next block.
  struct Threads {
    SoftwareBlock* block = nullptr;
    emulation::Fibers fibers{run_threads, this};
  };
  static std::unique_ptr<Threads>& spare_threads();
  [[noreturn]] static void run_threads(void* argument, int thread);
  void run_thread(int thread);
  void schedule();
  void yield(int thread);
  /// Never returns: the block is over. Nothing that owns memory may be alive in the caller.
  [[noreturn]] void fail(int thread, const char* text);
  template <class Condition>
  void until(int thread, const char* what, const Condition& condition);

  void deliver(const Copy& copy);
  bool deliver_one();
  void complete_if_due(SoftwareBarrier& barrier);
  void execute(Warpgroup& group, Product& product);
  [[nodiscard]] float read_element(std::uint32_t address, bool bf16);
  [[nodiscard]] unsigned char* at(std::uint32_t address) { return memory_ + (address - kFirstAddress); }
  [[nodiscard]] bool inside(std::uint32_t address, std::uint32_t bytes) const {
    return address >= kFirstAddress && address - kFirstAddress + bytes <= kSharedBytes;
  }

  /// Device addresses begin after what the system keeps for itself.
  static constexpr std::uint32_t kFirstAddress = 1024;

  int block_;
  int blocks_;
  Timing timing_;
  std::mt19937 random_;
  std::unique_ptr<unsigned char[]> storage_;
  unsigned char* memory_;
  std::vector<Thread> threads_{kThreads};
  std::vector<Warp> warps_{kThreads / 32};
  std::vector<Warpgroup> warpgroups_{kThreads / kWarpgroup};
  NamedBarrier named_[16];
  std::vector<const SoftwareBarrier*> started_;
  std::vector<Copy> copies_;
  std::int64_t copies_made_ = 0;
  std::int64_t products_made_ = 0;
  bool moved_ = false;
  std::vector<const char*> waiting_for_{kThreads, nullptr};
  std::string fault_;
  void (*body_)(SoftwareBlock&, int, const void*) = nullptr;
  const void* body_argument_ = nullptr;
  std::unique_ptr<Threads> stacks_;
};

/// What one thread of the kernels calls; machine.cuh in software.
class SoftwareMachine {
 public:
  using Barrier = SoftwareBarrier;

  SoftwareMachine(SoftwareBlock& block, int thread) : block_(block), thread_(thread) {}

  [[nodiscard]] int thread() const { return thread_; }
  [[nodiscard]] int warpgroup() const { return thread_ / kWarpgroup; }
  [[nodiscard]] int block() const { return block_.block_; }
  [[nodiscard]] int blocks() const { return block_.blocks_; }

  template <class Smem>
  Smem& shared() {
    static_assert(sizeof(Smem) <= SoftwareBlock::kSharedBytes);
    return *reinterpret_cast<Smem*>(block_.memory_);
  }
  [[nodiscard]] std::uint32_t shared_address(const void* at) const {
    return SoftwareBlock::kFirstAddress +
           static_cast<std::uint32_t>(static_cast<const unsigned char*>(at) - block_.memory_);
  }
  std::uint32_t load_word(const void* base, std::uint32_t offset);

  void start(Barrier& barrier, int arrivals);
  void publish_barriers() { sync(0, SoftwareBlock::kThreads); }
  void arrive(Barrier& barrier);
  void arrive_expecting(Barrier& barrier, std::uint32_t bytes);
  void wait(Barrier& barrier, std::uint32_t parity);
  void sync(int id, int threads);
  void arrive(int id, int threads);
  void warp_sync() { meet(1, 0.0f); }

  template <int Count>
  void give_registers() {}
  template <int Count>
  void take_registers() {}

  void load_box(void* to, const TensorMap& map, Barrier& full, int column, int token, int chunk, int head);
  void load_bytes(void* to, const void* from, std::uint32_t bytes, Barrier& full);
  void store_pair(float* to, float first, float second) {
    check_aligned(to, 2 * sizeof *to);
    to[0] = first;
    to[1] = second;
  }
  void load_pair(const float* from, float& first, float& second) {
    check_aligned(from, 2 * sizeof *from);
    first = from[0];
    second = from[1];
  }
  void store_word(std::uint16_t* to, std::uint32_t pair) {
    check_aligned(to, 2 * sizeof *to);
    to[0] = static_cast<std::uint16_t>(pair & 0xFFFFu);
    to[1] = static_cast<std::uint16_t>(pair >> 16);
  }

  float shuffle_xor(float x, int mask);
  /// Of two numbers, and of one where the other is NaN, as the device's.
  [[nodiscard]] float maximum(float a, float b) const { return std::fmax(a, b); }
  [[nodiscard]] float multiply_add(float a, float b, float c) const { return std::fma(a, b, c); }
  /// Subnormal results are flushed, as the device's.
  [[nodiscard]] float exp2(float x) const;
  [[nodiscard]] float log2(float x) const { return std::log2(x); }
  [[nodiscard]] float quotient(float a, float b) const { return a / b; }

  void pin(float sum, float&) {
    if (sum < 0.0f) block_.fail(thread_, "a negative sum of weights");
  }
  template <int Count>
  void fence_operands(float (&accumulators)[Count]) {
    check_settled(accumulators, Count);
    block_.threads_[thread_].fenced = true;
  }
  template <int Count, int Words>
  void fence_operands(float (&accumulators)[Count], std::uint32_t (&)[Words]) {
    fence_operands(accumulators);
  }
  template <class Element, int Count>
  void multiply(float (&c)[Count], MatrixDescriptor a, MatrixDescriptor b, bool accumulate) {
    static_assert(Count == kAccumulators || Count == kAccumulators / 2);
    issue(c, {Element::kBf16, false, false, accumulate, 2 * Count, a, b}, nullptr);
  }
  template <class Element>
  void multiply(float (&c)[kAccumulators], const std::uint32_t* a, MatrixDescriptor b, bool accumulate) {
    issue(c, {Element::kBf16, true, false, accumulate, kFragmentColumns, {0}, b}, a);
  }
  template <class Element, int Count>
  void multiply_transposed(float (&c)[Count], const std::uint32_t* a, MatrixDescriptor b) {
    static_assert(Count == kAccumulators || Count == kAccumulators / 2);
    issue(c, {Element::kBf16, true, true, true, 2 * Count, {0}, b}, a);
  }
  void commit();
  template <int Pending, int Count>
  void wait_products(float (&accumulators)[Count]) {
    wait_groups(Pending);
    check_settled(accumulators, Count);
  }

 private:
  void meet(int kind, float value);
  void issue(float* c, SoftwareBlock::Product product, const std::uint32_t* a);
  void wait_groups(int pending);
  void check_settled(const float* accumulators, int count);
  /// A device ends at an access of several elements that is not aligned to its size.
  void check_aligned(const void* at, std::size_t size);

  SoftwareBlock& block_;
  int thread_;
};

template <class Machine, class Body>
bool SoftwareBlock::run(const Body& body) {
  body_argument_ = &body;
  body_ = [](SoftwareBlock& block, int thread, const void* argument) {
    Machine machine(block, thread);
    (*static_cast<const Body*>(argument))(machine);
  };
  schedule();
  return fault_.empty();
}

/// Runs block `block` of `blocks`; the fault, or an empty text. `ascending` picks one of two orders and timings.
template <class Body>
std::string run_block(int block, int blocks, bool ascending, const Body& body) {
  SoftwareBlock processor(block, blocks, ascending ? Timing::kLate : Timing::kEarly,
                          static_cast<std::uint32_t>(block) + (ascending ? 1u : 2u));
  return processor.run<SoftwareMachine>(body) ? std::string() : processor.fault();
}

}  // namespace headwater::cuda::sm90
