#include "cuda/emulation/sm90.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "core/numbers.hpp"

namespace headwater::cuda::sm90 {

namespace {

/// PTX ISA, 128-byte swizzle: the 16-byte unit of an address (its bits 4..6) is xored with its bits 7..9.
std::uint32_t through_swizzle(std::uint32_t address) {
  const std::uint32_t unit = address / 16 % 8;
  const std::uint32_t line = address / 128 % 8;
  return address / 128 * 128 + (unit ^ line) * 16 + address % 16;
}

struct DescriptorFields {
  std::uint32_t start;
  std::uint32_t leading;
  std::uint32_t stride;
  std::uint32_t base_offset;
  std::uint32_t swizzle;
};

DescriptorFields fields_of(MatrixDescriptor descriptor) {
  const auto bits = [&](int low, int count) {
    return static_cast<std::uint32_t>(descriptor.bits >> low & ((1ull << count) - 1));
  };
  return {16 * bits(0, 14), 16 * bits(16, 14), 16 * bits(32, 14), bits(49, 3), bits(62, 2)};
}

/// Byte address of element (row, k) of an operand, row along m or n (PTX ISA, "Strides", canonical layouts).
std::uint32_t address_of(const DescriptorFields& fields, bool transposed, std::uint32_t row,
                         std::uint32_t k) {
  const std::uint32_t linear =
      transposed ? row / 64 * fields.leading + row % 64 * 2 + k / 8 * fields.stride + k % 8 * 128
                 : row / 8 * fields.stride + row % 8 * 128 + k * 2;
  return through_swizzle(fields.start + linear);
}

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace

SoftwareBlock::SoftwareBlock(int block, int blocks, Timing timing, std::uint32_t seed)
    : block_(block),
      blocks_(blocks),
      timing_(timing),
      random_(seed),
      storage_(new unsigned char[kSharedBytes + kSwizzleBytes]) {
  // 0xFFFF is a NaN in both types, 0xFFFFFFFF one in F32: what was never written cannot pass for data.
  std::memset(storage_.get(), 0xFF, kSharedBytes + kSwizzleBytes);
  const auto start = reinterpret_cast<std::uintptr_t>(storage_.get());
  memory_ = storage_.get() + (kSwizzleBytes - start % kSwizzleBytes) % kSwizzleBytes;
  stacks_ = std::move(spare_threads());
  if (!stacks_) stacks_ = std::make_unique<Threads>();
  stacks_->block = this;
  stacks_->fibers.reserve(kThreads);
}

SoftwareBlock::~SoftwareBlock() {
  // Where threads did not come to their ends, their stacks cannot be used again.
  const bool ended =
      std::all_of(threads_.begin(), threads_.end(), [](const Thread& t) { return t.finished; });
  if (ended) spare_threads() = std::move(stacks_);
}

std::unique_ptr<SoftwareBlock::Threads>& SoftwareBlock::spare_threads() {
  thread_local std::unique_ptr<Threads> spare;
  return spare;
}

void SoftwareBlock::run_threads(void* argument, int thread) {
  auto& stacks = *static_cast<Threads*>(argument);
  for (;;) {
    stacks.block->run_thread(thread);
    stacks.fibers.leave(thread);
  }
}

void SoftwareBlock::run_thread(int thread) {
  body_(*this, thread, body_argument_);
  const Thread& state = threads_[thread];
  if (state.uncommitted != 0) fail(thread, "ended with products that no group holds");
  for (const InFlight& registers : state.in_flight) {
    if (registers.registers != nullptr) fail(thread, "ended with products on their way");
  }
  threads_[thread].finished = true;
  moved_ = true;
}

void SoftwareBlock::schedule() {
  std::vector<int> order(kThreads);
  std::iota(order.begin(), order.end(), 0);
  for (;;) {
    // Warps advance in any order.
    std::shuffle(order.begin(), order.end(), random_);
    moved_ = false;
    bool alive = false;
    for (const int thread : order) {
      if (threads_[thread].finished) continue;
      alive = true;
      stacks_->fibers.enter(thread);
      if (!fault_.empty()) return;
    }
    if (!alive) break;
    if (moved_ || deliver_one()) continue;
    for (int thread = 0; thread < kThreads; ++thread) {
      if (threads_[thread].finished) continue;
      fault_ = "deadlock: thread " + std::to_string(thread) + " waits for " + waiting_for_[thread];
      return;
    }
  }
  for (const SoftwareBarrier* barrier : started_) {
    if (barrier->missing != barrier->arrivals || barrier->bytes != 0) {
      fault_ =
          "the block ended inside a phase of an mbarrier: arrivals of producer and consumers do not match";
    }
  }
  if (!copies_.empty()) fault_ = "the block ended while a copy was on its way";
  for (int id = 0; id < 16; ++id) {
    if (named_[id].arrived != 0) fault_ = "named barrier " + std::to_string(id) + " was left half full";
  }
}

void SoftwareBlock::yield(int thread) { stacks_->fibers.leave(thread); }

void SoftwareBlock::fail(int thread, const char* text) {
  fault_ = "thread " + std::to_string(thread) + ": " + text;
  for (;;) stacks_->fibers.leave(thread);
}

template <class Condition>
void SoftwareBlock::until(int thread, const char* what, const Condition& condition) {
  moved_ = true;  // it came as far as here
  waiting_for_[thread] = what;
  while (!condition()) yield(thread);
  moved_ = true;
}

// ---- copies ------------------------------------------------------------------------------------------------

void SoftwareBlock::deliver(const Copy& copy) {
  if (copy.from != nullptr) {
    std::memcpy(at(copy.to), copy.from, copy.bytes);
  } else {
    const TileMap& map = copy.map;
    const auto* base = static_cast<const unsigned char*>(map.base);
    // Elements of the box in their order, the first axis fastest; each axis checked against the tensor's end.
    std::uint32_t linear = 0;
    int index[TileMap::kAxes];
    for (index[3] = 0; index[3] < map.box[3]; ++index[3]) {
      for (index[2] = 0; index[2] < map.box[2]; ++index[2]) {
        for (index[1] = 0; index[1] < map.box[1]; ++index[1]) {
          for (index[0] = 0; index[0] < map.box[0]; ++index[0], linear += 2) {
            bool in_tensor = true;
            std::int64_t offset = 0;
            for (int axis = 0; axis < TileMap::kAxes; ++axis) {
              const std::int64_t coordinate = copy.at[axis] + index[axis];
              in_tensor = in_tensor && coordinate >= 0 && coordinate < map.sizes[axis];
              offset += coordinate * (axis == 0 ? 2 : map.strides[axis - 1]);
            }
            std::uint16_t element = 0;
            if (in_tensor) std::memcpy(&element, base + offset, 2);
            std::memcpy(at(through_swizzle(copy.to + linear)), &element, 2);
          }
        }
      }
    }
  }
  ++copies_made_;
  copy.full->bytes -= copy.bytes;
  complete_if_due(*copy.full);
}

bool SoftwareBlock::deliver_one() {
  if (copies_.empty()) return false;
  const std::size_t chosen = random_() % copies_.size();
  const Copy copy = copies_[chosen];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(chosen));
  deliver(copy);
  return true;
}

void SoftwareMachine::load_box(void* to, const TensorMap& encoded, Barrier& full, int column, int token,
                               int chunk, int head) {
  TileMap map;
  std::memcpy(&map, encoded.bytes, sizeof(map));
  if (const char* reason = refusal(map)) block_.fail(thread_, reason);
  const std::uint32_t address = shared_address(to);
  const std::uint32_t bytes = box_bytes(map);
  if (address % 1024 != 0 || !block_.inside(address, bytes)) block_.fail(thread_, "box outside or unaligned");
  const SoftwareBlock::Copy copy{address, bytes, map, nullptr, {column, token, chunk, head}, &full};
  std::memset(block_.at(address), 0xFF, bytes);
  block_.copies_.push_back(copy);
  if (block_.timing_ == Timing::kEarly) block_.deliver_one();
}

void SoftwareMachine::load_bytes(void* to, const void* from, std::uint32_t bytes, Barrier& full) {
  const std::uint32_t address = shared_address(to);
  if (address % 16 != 0 || bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
    block_.fail(thread_, "bulk copy: addresses and size are multiples of 16");
  }
  if (!block_.inside(address, bytes)) block_.fail(thread_, "bulk copy outside");
  std::memset(block_.at(address), 0xFF, bytes);
  block_.copies_.push_back({address, bytes, {}, from, {}, &full});
  if (block_.timing_ == Timing::kEarly) block_.deliver_one();
}

std::uint32_t SoftwareMachine::load_word(const void* base, std::uint32_t offset) {
  const std::uint32_t address = shared_address(base) + offset;
  if (address % 4 != 0 || !block_.inside(address, 4)) block_.fail(thread_, "word outside or unaligned");
  std::uint32_t word;
  std::memcpy(&word, block_.at(address), 4);
  return word;
}

// ---- barriers ----------------------------------------------------------------------------------------------

void SoftwareBlock::complete_if_due(SoftwareBarrier& barrier) {
  if (barrier.missing != 0 || barrier.bytes != 0) return;
  ++barrier.phase;
  barrier.missing = barrier.arrivals;
}

void SoftwareMachine::start(Barrier& barrier, int arrivals) {
  if (barrier.started == Barrier::kStarted) block_.fail(thread_, "barrier started twice");
  barrier = {Barrier::kStarted, arrivals, arrivals, 0, 0};
  block_.started_.push_back(&barrier);
}

void SoftwareMachine::arrive(Barrier& barrier) {
  if (barrier.started != Barrier::kStarted) block_.fail(thread_, "arrival at a barrier that was not started");
  if (barrier.missing == 0) block_.fail(thread_, "more arrivals than the barrier counts");
  --barrier.missing;
  block_.complete_if_due(barrier);
}

void SoftwareMachine::arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  constexpr std::int64_t kMostBytes = (1 << 20) - 1;  // of a phase, PTX ISA
  barrier.bytes += bytes;
  if (barrier.bytes > kMostBytes) block_.fail(thread_, "more bytes than a phase can count");
  arrive(barrier);
}

void SoftwareMachine::wait(Barrier& barrier, std::uint32_t parity) {
  if (barrier.started != Barrier::kStarted) block_.fail(thread_, "wait at a barrier that was not started");
  block_.until(thread_, "a phase of an mbarrier", [&] { return barrier.phase % 2 != parity; });
}

void SoftwareMachine::arrive(int id, int threads) {
  SoftwareBlock::NamedBarrier& barrier = block_.named_[id];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) block_.fail(thread_, "named barrier used with two numbers of threads");
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
}

void SoftwareMachine::sync(int id, int threads) {
  const int generation = block_.named_[id].generation;
  arrive(id, threads);
  block_.until(thread_, "a named barrier", [&] { return block_.named_[id].generation != generation; });
}

void SoftwareMachine::meet(int kind, float value) {
  SoftwareBlock::Warp& warp = block_.warps_[thread_ / 32];
  if (warp.arrived == 0) warp.kind = kind;
  if (warp.kind != kind) block_.fail(thread_, "lanes of a warp at different instructions");
  const int meeting = warp.meetings;
  warp.values[meeting % 2][thread_ % 32] = value;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.meetings;
  }
  block_.until(thread_, "the other lanes of its warp", [&] { return warp.meetings != meeting; });
}

float SoftwareMachine::shuffle_xor(float x, int mask) {
  const SoftwareBlock::Warp& warp = block_.warps_[thread_ / 32];
  const int meeting = warp.meetings;
  meet(2 + mask, x);
  return warp.values[meeting % 2][thread_ % 32 ^ mask];
}

float SoftwareMachine::exp2(float x) const {
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
}

// ---- products ----------------------------------------------------------------------------------------------

void SoftwareMachine::issue(float* c, SoftwareBlock::Product product, const std::uint32_t* a) {
  SoftwareBlock::Thread& thread = block_.threads_[thread_];
  SoftwareBlock::Warpgroup& group = block_.warpgroups_[warpgroup()];
  if (!thread.fenced) block_.fail(thread_, "product without a fence since its registers were touched");
  SoftwareBlock::InFlight* slot = nullptr;
  for (SoftwareBlock::InFlight& candidate : thread.in_flight) {
    if (candidate.registers == c) slot = &candidate;
  }
  for (SoftwareBlock::InFlight& candidate : thread.in_flight) {
    if (slot != nullptr || candidate.registers != nullptr) continue;
    slot = &candidate;
    slot->registers = c;
    slot->count = product.columns / 2;
    std::copy_n(c, slot->count, slot->values);
    std::fill_n(c, slot->count, kNaN);
  }
  if (slot == nullptr) block_.fail(thread_, "more results on their way than the emulation holds");
  const int index = thread.issued++;
  slot->last_product = index;
  ++thread.uncommitted;
  if (index == static_cast<int>(group.products.size())) group.products.push_back(product);
  SoftwareBlock::Product& shared = group.products[index];
  if (shared.a.bits != product.a.bits || shared.b.bits != product.b.bits ||
      shared.a_in_registers != product.a_in_registers || shared.transposed != product.transposed ||
      shared.accumulate != product.accumulate || shared.columns != product.columns) {
    block_.fail(thread_, "a product differs inside its warpgroup");
  }
  const int lane = thread_ % kWarpgroup;
  shared.accumulators[lane] = slot;
  shared.words[lane] = a;
  if (++shared.threads == kWarpgroup && block_.timing_ == Timing::kEarly) block_.execute(group, shared);
}

void SoftwareMachine::commit() {
  SoftwareBlock::Thread& thread = block_.threads_[thread_];
  thread.uncommitted = 0;
  thread.groups.push_back(thread.issued);
}

void SoftwareMachine::wait_groups(int pending) {
  SoftwareBlock::Thread& thread = block_.threads_[thread_];
  SoftwareBlock::Warpgroup& group = block_.warpgroups_[warpgroup()];
  const int last = static_cast<int>(thread.groups.size()) - pending;
  const int due = last > 0 ? thread.groups[last - 1] : 0;
  block_.until(thread_, "the other threads of its warpgroup",
               [&] { return due == 0 || group.products[due - 1].threads == kWarpgroup; });
  for (; group.done < due; ++group.done) {
    if (!group.products[group.done].done) block_.execute(group, group.products[group.done]);
  }
  for (SoftwareBlock::InFlight& registers : thread.in_flight) {
    if (registers.registers == nullptr || registers.last_product >= due) continue;
    std::copy_n(registers.values, registers.count, registers.registers);
    registers = {};
  }
  thread.fenced = false;
}

void SoftwareMachine::check_aligned(const void* at, std::size_t size) {
  if (reinterpret_cast<std::uintptr_t>(at) % size == 0) return;
  block_.fail(thread_, "two elements at once at an address that is no multiple of their size");
}

void SoftwareMachine::check_settled(const float* accumulators, int count) {
  for (const SoftwareBlock::InFlight& registers : block_.threads_[thread_].in_flight) {
    const std::less<const float*> before;
    if (registers.registers != nullptr && !before(registers.registers, accumulators) &&
        before(registers.registers, accumulators + count)) {
      block_.fail(thread_, "registers touched while their product is on its way");
    }
  }
}

float SoftwareBlock::read_element(std::uint32_t address, bool bf16) {
  if (!inside(address, 2)) {
    if (fault_.empty()) fault_ = "a descriptor reaches outside of shared memory";
    return kNaN;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at(address), 2);
  return bf16 ? core::float_from_bf16(bits) : core::float_from_f16(bits);
}

void SoftwareBlock::execute(Warpgroup& group, Product& product) {
  // Products on one accumulator run in their order.
  const auto index = static_cast<std::size_t>(&product - group.products.data());
  if (index > 0 && !group.products[index - 1].done) execute(group, group.products[index - 1]);
  float a[kFragmentRows][kStepK];
  float b[kStepK][kFragmentColumns];
  float c[kFragmentRows][kFragmentColumns];
  const DescriptorFields a_fields = fields_of(product.a);
  const DescriptorFields b_fields = fields_of(product.b);
  if (b_fields.swizzle != 1 || b_fields.base_offset != 0) fault_ = "descriptor without the 128-byte swizzle";
  if (!product.a_in_registers && (a_fields.swizzle != 1 || a_fields.base_offset != 0)) {
    fault_ = "descriptor without the 128-byte swizzle";
  }
  for (std::uint32_t k = 0; k < kStepK; ++k) {
    for (std::uint32_t column = 0; column < static_cast<std::uint32_t>(product.columns); ++column) {
      b[k][column] = read_element(address_of(b_fields, product.transposed, column, k), product.bf16);
    }
    for (std::uint32_t row = 0; row < kFragmentRows && !product.a_in_registers; ++row) {
      a[row][k] = read_element(address_of(a_fields, false, row, k), product.bf16);
    }
  }
  // PTX ISA, fragments of wgmma: warp w has rows 16 w .. 16 w + 15; lanes of a group of four share a row.
  const auto each_register = [&](int count, const auto& visit) {
    for (int thread = 0; thread < kWarpgroup; ++thread) {
      const int group_of_four = thread % 32 / 4;
      const int in_group = thread % 4;
      for (int i = 0; i < count; ++i) {
        const bool lower_rows = i % 4 >= 2;
        const int row = thread / 32 * 16 + group_of_four + (lower_rows ? 8 : 0);
        visit(thread, i, row, i / 4 * 8 + in_group * 2 + i % 2);
      }
    }
  };
  if (product.a_in_registers) {
    // Register r holds values 2 r and 2 r + 1 of eight; their places are those of eight accumulators.
    each_register(8, [&](int thread, int i, int row, int column) {
      const std::uint32_t pair = product.words[thread][i / 2];
      const auto bits = static_cast<std::uint16_t>(i % 2 == 0 ? pair : pair >> 16);
      a[row][column] = product.bf16 ? core::float_from_bf16(bits) : core::float_from_f16(bits);
    });
  }
  each_register(product.columns / 2, [&](int thread, int i, int row, int column) {
    c[row][column] = product.accumulate ? product.accumulators[thread]->values[i] : 0.0f;
  });
  for (int row = 0; row < kFragmentRows; ++row) {
    for (int k = 0; k < kStepK; ++k) {
      for (int column = 0; column < product.columns; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  each_register(product.columns / 2, [&](int thread, int i, int row, int column) {
    product.accumulators[thread]->values[i] = c[row][column];
  });
  product.done = true;
  ++products_made_;
}

}  // namespace headwater::cuda::sm90
