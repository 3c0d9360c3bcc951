#include "cuda/emulation/block.hpp"

#include <bit>
#include <string>

#include "cuda/emulation/context.hpp"

namespace headwater::cuda::emulation {
namespace {

constexpr std::uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr int kMaxThreads = kWarp * kMaxWarps;

const char* name_of(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::none: return "none";
    case WarpOperation::warp_sync: return "warp_sync";
    case WarpOperation::shuffle: return "shuffle";
    case WarpOperation::ballot: return "ballot";
    case WarpOperation::reduce_add: return "reduce_add";
    case WarpOperation::load_matrix_x2: return "load_matrix_x2";
    case WarpOperation::load_matrix_x2_transposed: return "load_matrix_x2_transposed";
    case WarpOperation::load_matrix_x4: return "load_matrix_x4";
    case WarpOperation::load_matrix_x4_transposed: return "load_matrix_x4_transposed";
    case WarpOperation::mma_bf16: return "mma_bf16";
    case WarpOperation::mma_f16: return "mma_f16";
  }
  return "none";
}

}  // namespace

Block::Block() : fibers_(&Block::enter, this), waits_at_(kMaxThreads, -1), copies_(kMaxThreads) {}

Block::~Block() = default;

// ---- life of a block ---------------------------------------------------------------------------------------------

void Block::run(const Launch& launch, Grid index) {
  launch_ = &launch;
  index_ = index;
  recent_ = {};
  current_ = this;
  prepare();
  thread_ = next_ready();
  fibers_.enter(thread_);
  for (int thread = 0; thread < launch.threads; ++thread) {
    for (const Copy& copy : copies_[thread].under_way) shared_.forget(copy.to);
    copies_[thread].under_way.clear();
  }
  if (unwinding_) throw Fault(failure_);
}

void Block::prepare() {
  const int warps = launch_->threads / kWarp;
  fibers_.reserve(launch_->threads);
  shared_.start(launch_->shared_bytes, warps, clocks_);
  living_ = launch_->threads;
  unwinding_ = false;
  operations_ = 0;
  ready_warps_ = 0;
  for (int warp = 0; warp < warps; ++warp) {
    ready_[warp] = 0;
    ended_[warp] = 0;
    meetings_[warp] = {};
    set_ready(warp, kAllLanes);
  }
  barriers_ = {};
  for (int thread = 0; thread < launch_->threads; ++thread) {
    waits_at_[thread] = -1;
    copies_[thread].groups = 0;
  }
  thread_ = launch_->order == Order::ascending ? 0 : launch_->threads - 1;
}

void Block::enter(void* block, int fiber) {
  while (true) static_cast<Block*>(block)->live(fiber);
}

/// One thread of one block; returns when the same thread of a later block begins.
void Block::live(int thread) {
  try {
    if (!unwinding_) {
      Context context(*this, thread);
      launch_->kernel(context, launch_->params);
      leave();
    }
  } catch (const Fault& fault) {
    begin_unwinding(fault.what());
  } catch (const Unwind&) {  // NOLINT(bugprone-empty-catch): the failure is known
  } catch (const std::exception& error) {
    begin_unwinding(std::string("kernel threw: ") + error.what());
  }
  ready_[thread / kWarp] &= ~(1u << thread % kWarp);
  ended_[thread / kWarp] |= 1u << thread % kWarp;
  if (--living_ == 0) {
    fibers_.leave(thread);
    return;
  }
  if (next_ready() < 0) begin_unwinding(stuck());
  pass_on();
}

/// What others would wait for in vain is a fault of the thread that ends.
void Block::leave() {
  const Meeting& meeting = meetings_[thread_ / kWarp];
  if (meeting.operation != WarpOperation::none && (meeting.mask >> thread_ % kWarp & 1u) != 0) {
    fail(std::string("ends while its warp waits for it at ") + name_of(meeting.operation));
  }
  if (barriers_[0].arrived > 0) fail("ends while others wait for it at barrier()");
}

void Block::begin_unwinding(const std::string& what) {
  if (!unwinding_) {
    failure_ = place(thread_) + what;
    unwinding_ = true;
  }
  for (int warp = 0; warp < launch_->threads / kWarp; ++warp) set_ready(warp, ~ended_[warp]);
}

// ---- scheduling --------------------------------------------------------------------------------------------------

void Block::set_ready(int warp, std::uint32_t lanes) {
  ready_[warp] |= lanes;
  if (ready_[warp] != 0) ready_warps_ |= 1u << warp;
}

/// The next thread after the one that runs, lanes of one warp first; -1 if none is ready.
int Block::next_ready() {
  const int warp = thread_ / kWarp;
  const bool ascending = launch_->order == Order::ascending;
  const auto pick = [ascending](std::uint32_t bits) {
    return ascending ? std::countr_zero(bits) : 31 - std::countl_zero(bits);
  };
  if (ready_[warp] != 0) return warp * kWarp + pick(ready_[warp]);
  ready_warps_ &= ~(1u << warp);
  if (ready_warps_ == 0) return -1;
  const std::uint32_t behind =
      ascending ? ready_warps_ & ~((2u << warp) - 1) : ready_warps_ & ((1u << warp) - 1);
  const int other = pick(behind != 0 ? behind : ready_warps_);
  return other * kWarp + pick(ready_[other]);
}

void Block::pass_on() {
  const int from = thread_;
  thread_ = next_ready();
  fibers_.pass(from, thread_);
}

/// The running thread is not ready any more: others run until it is.
void Block::wait() {
  ready_[thread_ / kWarp] &= ~(1u << thread_ % kWarp);
  const int next = next_ready();
  if (next < 0) fail(stuck());
  const int from = thread_;
  thread_ = next;
  fibers_.pass(from, next);
  if (unwinding_) throw Unwind{};
}

void Block::count_operation() {
  if (++operations_ > launch_->most_operations) {
    fail("does not end: more than " + std::to_string(launch_->most_operations) + " operations in one block");
  }
}

// ---- barriers ----------------------------------------------------------------------------------------------------

void Block::barrier(int id, int threads) {
  count_operation();
  if (threads < kWarp || threads % kWarp != 0 || threads > launch_->threads) {
    fail("barrier of " + std::to_string(threads) + " threads in a block of " +
         std::to_string(launch_->threads) + "; allowed: multiples of 32 up to the block");
  }
  const int warp = thread_ / kWarp;
  if (id == 0 && living_ < launch_->threads) fail("waits at barrier() after another thread has ended");
  NamedBarrier& barrier = barriers_[id];
  if (barrier.arrived > 0 && barrier.expected != threads) {
    fail("barrier " + std::to_string(id) + " of " + std::to_string(threads) +
         " threads, where another thread waits for " + std::to_string(barrier.expected));
  }
  barrier.expected = threads;
  barrier.lanes[warp] |= 1u << thread_ % kWarp;
  waits_at_[thread_] = id;
  if (++barrier.arrived < threads) {
    wait();
  } else {
    complete_barrier(barrier);
  }
}

void Block::complete_barrier(NamedBarrier& barrier) {
  std::uint32_t members = 0;
  for (int warp = 0; warp < launch_->threads / kWarp; ++warp) {
    if (barrier.lanes[warp] == 0) continue;
    if (barrier.lanes[warp] != kAllLanes) {
      fail("barrier divergence: lane " + std::to_string(std::countr_one(barrier.lanes[warp])) + " of warp " +
           std::to_string(warp) + " is not at the barrier that its warp takes part in");
    }
    members |= 1u << warp;
  }
  clocks_.barrier(members);
  for (std::uint32_t left = members; left != 0; left &= left - 1) {
    const int warp = std::countr_zero(left);
    for (int lane = 0; lane < kWarp; ++lane) waits_at_[warp * kWarp + lane] = -1;
    set_ready(warp, kAllLanes);
  }
  barrier = {};
}

// ---- operations of a warp ----------------------------------------------------------------------------------------

void Block::together(WarpOperation operation, std::uint32_t mask, void* operand) {
  count_operation();
  const int warp = thread_ / kWarp;
  const int lane = thread_ % kWarp;
  Meeting& meeting = meetings_[warp];
  if ((mask >> lane & 1u) == 0) {
    fail(std::string("lane mask of ") + name_of(operation) + " omits lane " + std::to_string(lane) +
         ", which takes part");
  }
  if ((mask & ended_[warp]) != 0) {
    fail(std::string("lane mask of ") + name_of(operation) + " names lane " +
         std::to_string(std::countr_zero(mask & ended_[warp])) + ", which has ended");
  }
  if (meeting.arrived == 0) {
    meeting.operation = operation;
    meeting.mask = mask;
  } else if (meeting.operation != operation || meeting.mask != mask) {
    fail(std::string("divergence: at ") + name_of(operation) + " where lane " +
         std::to_string(std::countr_zero(meeting.arrived)) + " of its warp waits at " +
         name_of(meeting.operation) + (meeting.operation == operation ? " with another lane mask" : ""));
  }
  meeting.operands[lane] = operand;
  meeting.arrived |= 1u << lane;
  if (meeting.arrived != mask) {
    wait();
    return;
  }
  complete(warp, meeting);
  set_ready(warp, mask);
  meeting.operation = WarpOperation::none;
  meeting.arrived = 0;
}

void Block::complete(int warp, Meeting& meeting) {
  switch (meeting.operation) {
    case WarpOperation::none: break;
    case WarpOperation::warp_sync: clocks_.warp_sync(warp); break;
    case WarpOperation::shuffle: finish_shuffle(meeting); break;
    case WarpOperation::ballot: {
      std::uint32_t votes = 0;
      for (int lane = 0; lane < kWarp; ++lane) {
        votes |= static_cast<SumOperand*>(meeting.operands[lane])->value << lane;
      }
      for (void* operand : meeting.operands) static_cast<SumOperand*>(operand)->result = votes;
      break;
    }
    case WarpOperation::reduce_add: {
      std::uint32_t sum = 0;
      for (void* operand : meeting.operands) sum += static_cast<SumOperand*>(operand)->value;
      for (void* operand : meeting.operands) static_cast<SumOperand*>(operand)->result = sum;
      break;
    }
    case WarpOperation::load_matrix_x2: finish_load_matrix(warp, meeting, 2, false); break;
    case WarpOperation::load_matrix_x2_transposed: finish_load_matrix(warp, meeting, 2, true); break;
    case WarpOperation::load_matrix_x4: finish_load_matrix(warp, meeting, 4, false); break;
    case WarpOperation::load_matrix_x4_transposed: finish_load_matrix(warp, meeting, 4, true); break;
    case WarpOperation::mma_bf16:
    case WarpOperation::mma_f16: {
      MmaRegisters lanes[kWarp];
      for (int lane = 0; lane < kWarp; ++lane)
        lanes[lane] = *static_cast<MmaOperand*>(meeting.operands[lane]);
      multiply_16x8x16(lanes, meeting.operation == WarpOperation::mma_bf16 ? HalfType::bf16 : HalfType::f16);
      break;
    }
  }
}

void Block::finish_shuffle(const Meeting& meeting) const {
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((meeting.mask >> lane & 1u) == 0) continue;
    auto* operand = static_cast<ShuffleOperand*>(meeting.operands[lane]);
    if (operand->source < 0 || operand->source >= kWarp || (meeting.mask >> operand->source & 1u) == 0) {
      fail("shuffle: lane " + std::to_string(lane) + " reads lane " + std::to_string(operand->source) +
           ", which does not take part");
    }
    operand->result = static_cast<const ShuffleOperand*>(meeting.operands[operand->source])->value;
  }
}

void Block::finish_load_matrix(int warp, const Meeting& meeting, int matrices, bool transposed) {
  for (int matrix = 0; matrix < matrices; ++matrix) {
    std::uint16_t rows[8][8];
    for (int row = 0; row < 8; ++row) {
      const int lane = matrix * 8 + row;
      const int at = static_cast<const MatrixOperand*>(meeting.operands[lane])->row;
      shared_.read(warp * kWarp + lane, at, sizeof(rows[row]), rows[row]);
    }
    for (int lane = 0; lane < kWarp; ++lane) {
      std::uint32_t pair = 0;
      for (int half = 0; half < 2; ++half) {
        const Element at = fragment_8x8(lane, half);
        const std::uint32_t element = transposed ? rows[at.column][at.row] : rows[at.row][at.column];
        pair |= element << 16 * half;
      }
      static_cast<MatrixOperand*>(meeting.operands[lane])->registers[matrix] = pair;
    }
  }
}

// ---- asynchronous copies -----------------------------------------------------------------------------------------

void Block::announce_copy(int at, const void* base, std::int64_t offset, bool valid) {
  if (valid) check_read_global(base, offset, 16, "asynchronous copy");
  shared_.announce(thread_, at);
  Copies& copies = copies_[thread_];
  const void* from = valid ? static_cast<const std::byte*>(base) + offset : nullptr;
  copies.under_way.push_back({at, from, copies.groups});
}

void Block::commit_copies() { ++copies_[thread_].groups; }

void Block::wait_for_copies(int groups_left) {
  Copies& copies = copies_[thread_];
  std::size_t kept = 0;
  for (const Copy& copy : copies.under_way) {
    // A copy of the open group, which has the number of the next one, is waited for by nobody.
    if (copy.group >= copies.groups - groups_left) {
      copies.under_way[kept++] = copy;
    } else {
      shared_.land(thread_, copy.to, copy.from);
    }
  }
  copies.under_way.resize(kept);
}

// ---- global memory -----------------------------------------------------------------------------------------------

const GlobalMemory::Buffer& Block::buffer_of(const void* base, int bytes, const char* what) {
  const auto* at = static_cast<const std::byte*>(base);
  for (const GlobalMemory::Buffer& buffer : recent_) {
    if (at >= buffer.first && at < buffer.first + buffer.bytes) return buffer;
  }
  GlobalMemory::Buffer& buffer = recent_[next_recent_];
  buffer = launch_->memory->find(base);
  if (buffer.bytes == 0) {
    fail(std::string(what) + " of " + std::to_string(bytes) +
         " bytes of global memory outside of every allocation");
  }
  next_recent_ = (next_recent_ + 1) % recent_.size();
  return buffer;
}

unsigned char* Block::hold_global(const void* base, std::int64_t offset, int bytes, const char* what) {
  const auto address = reinterpret_cast<std::uintptr_t>(base) + static_cast<std::uintptr_t>(offset);
  if ((address & static_cast<std::uintptr_t>(bytes - 1)) != 0) {
    fail(std::string(what) + " of global memory not aligned to its " + std::to_string(bytes) + " bytes");
  }
  if (launch_->memory == nullptr) return nullptr;
  const GlobalMemory::Buffer& buffer = buffer_of(base, bytes, what);
  const std::int64_t at = static_cast<const std::byte*>(base) - buffer.first + offset;
  if (at < 0 || at + bytes > buffer.bytes) {
    fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at byte " + std::to_string(at) +
         " of buffer '" + buffer.name + "', which has " + std::to_string(buffer.bytes));
  }
  return buffer.written == nullptr ? nullptr : buffer.written + at / 2;
}

void Block::check_read_global(const void* base, std::int64_t offset, int bytes, const char* what) {
  const unsigned char* written = hold_global(base, offset, bytes, what);
  if (written == nullptr) return;
  constexpr std::uint64_t kAll = 0x0101010101010101u;
  std::uint64_t marks = kAll;
  std::memcpy(&marks, written, static_cast<std::size_t>(bytes) / 2);
  if (marks == kAll) return;
  const GlobalMemory::Buffer& buffer = buffer_of(base, bytes, what);
  fail(std::string(what) + " of " + std::to_string(bytes) + " bytes at byte " +
       std::to_string(static_cast<const std::byte*>(base) - buffer.first + offset) + " of buffer '" +
       buffer.name + "', which nothing has written");
}

// ---- faults ------------------------------------------------------------------------------------------------------

void Block::fail(const std::string& what) const { throw Fault(what); }

void Block::fail_bounds(std::int64_t at, int bytes, int first, int last) const {
  fail("shared memory out of bounds: " + std::to_string(bytes) + " bytes at " + std::to_string(at) +
       " of an array from " + std::to_string(first) + " to " + std::to_string(last));
}

void Block::fail_alignment(std::int64_t at, int bytes) const {
  fail("shared memory access not aligned: " + std::to_string(bytes) + " bytes at " + std::to_string(at));
}

/// Called where no thread is ready: who waits where.
std::string Block::stuck() const {
  const std::string here = whereabouts(thread_);
  for (int other = 0; other < launch_->threads; ++other) {
    const std::string there = whereabouts(other);
    if (there != here)
      return "divergence: " + here + " while thread " + std::to_string(other) + " is " + there;
  }
  return "divergence: all threads are " + here;
}

std::string Block::whereabouts(int thread) const {
  if (waits_at_[thread] >= 0) return "at barrier " + std::to_string(waits_at_[thread]);
  const Meeting& meeting = meetings_[thread / kWarp];
  if ((meeting.arrived >> thread % kWarp & 1u) != 0) {
    return "at " + std::string(name_of(meeting.operation)) + " of warp " + std::to_string(thread / kWarp);
  }
  return "at its end";
}

std::string Block::place(int thread) const {
  return std::string("kernel ") + launch_->name + ", block (" + std::to_string(index_.x) + ", " +
         std::to_string(index_.y) + ", " + std::to_string(index_.z) + "), thread " + std::to_string(thread) +
         ": ";
}

}  // namespace headwater::cuda::emulation
