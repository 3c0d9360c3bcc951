// The kernels of selection alone, on scores with many ties: MEM-2 and MEM-7 by sorting, for every number of candidates near
// what a kernel keeps in shared memory, and beyond all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <random>
#include <vector>

#include "cuda/kernels/params.hpp"
#include "tests/cuda/session_support.hpp"

namespace headwater::cuda {
namespace {

struct Selection {
  int kept;   ///< entries of the set before, every third position
  int since;  ///< position of the candidates after them
  int candidates;
  int pinned;
  int heavy;
  int local;
};

template <class T>
T* copied(Device& device, Stream stream, const std::vector<T>& from, const char* what) {
  const auto bytes = std::ssize(from) * static_cast<std::int64_t>(sizeof(T));
  auto* to = static_cast<T*>(device.allocate(bytes, what));
  device.copy(stream, to, from.data(), bytes, Direction::host_to_device);
  return to;
}

/// `scores`: how many different ones there are.
void require_selected(const Selection& s, bool bf16, unsigned scores) {
  constexpr std::int64_t kSets = 2;
  std::vector<std::int32_t> candidates;
  for (int i = 0; i < s.kept; ++i) candidates.push_back(3 * i);
  for (int i = 0; i < s.candidates - s.kept; ++i) candidates.push_back(s.since + i);
  const int local_begin = candidates.back() + 1;
  const int width = std::max(s.kept, s.heavy + s.local) + 2;
  const std::int64_t capacity = local_begin + s.local;

  // Bit patterns of BF16 numbers, so that the same scores serve both types.
  std::mt19937 random(static_cast<unsigned>(s.candidates));
  std::vector<std::uint16_t> narrow(static_cast<std::size_t>(kSets * capacity));
  for (std::uint16_t& bits : narrow) bits = static_cast<std::uint16_t>(0x3f80 + random() % scores);
  std::vector<float> wide(narrow.size());
  core::widen(narrow.data(), DType::bf16, std::ssize(narrow), wide.data());
  std::vector<std::int32_t> sets(static_cast<std::size_t>(kSets * width), -1);
  for (std::int64_t h = 0; h < kSets; ++h) std::copy_n(candidates.begin(), s.kept, sets.begin() + h * width);

  const auto device = open_emulated_device(dispatch().kernels());
  const Stream stream = device->stream();
  SelectParams params{};
  params.sets = copied(*device, stream, sets, "sets");
  params.scratch = static_cast<std::int32_t*>(device->allocate(kSets * width * 4, "scratch"));
  params.scores = bf16 ? static_cast<const void*>(copied(*device, stream, narrow, "scores"))
                       : copied(*device, stream, wide, "scores");
  params.scores_bf16 = bf16;
  params.capacity = capacity;
  params.width = width;
  params.kept = s.kept;
  params.since = s.since;
  params.candidates = s.candidates;
  params.pinned = s.pinned;
  params.heavy = s.heavy;
  params.local_begin = local_begin;
  params.end = local_begin + s.local;
  const Choice kernel = dispatch().select(Stage::select, s.candidates);
  device->launch(stream, kernel.index, {static_cast<int>(kSets), 1, 1}, kernel.entry->shared_bytes, params);
  std::vector<std::int32_t> got(sets.size());
  device->copy(stream, got.data(), params.sets.raw(), std::ssize(got) * 4, Direction::device_to_host);
  device->synchronize(stream);

  for (std::int64_t h = 0; h < kSets; ++h) {
    std::vector<std::int32_t> wanted = candidates;
    std::stable_sort(wanted.begin() + s.pinned, wanted.end(), [&](std::int32_t a, std::int32_t b) {
      return wide[static_cast<std::size_t>(h * capacity + a)] >
             wide[static_cast<std::size_t>(h * capacity + b)];
    });
    wanted.resize(static_cast<std::size_t>(s.heavy));
    std::sort(wanted.begin(), wanted.end());
    for (int i = 0; i < s.local; ++i) wanted.push_back(local_begin + i);
    wanted.resize(static_cast<std::size_t>(width), -1);
    EXPECT_TRUE(std::equal(wanted.begin(), wanted.end(), got.begin() + h * width))
        << s.candidates << " candidates, " << s.pinned << " pinned, " << s.heavy << " of them, "
        << (bf16 ? "BF16" : "F32");
  }
}

void require_selected_of(std::initializer_list<int> counts) {
  for (const bool bf16 : {true, false}) {
    for (const int candidates : counts) {
      const int kept = std::min(candidates / 2, 300);
      for (const int heavy : {1, candidates / 3, candidates}) {
        if (heavy == 0) continue;
        for (const unsigned scores : {1u, 5u, 100u})
          require_selected({kept, 1000, candidates, 0, heavy, 5}, bf16, scores);
        for (const int pinned : {1, heavy})
          require_selected({kept, 1000, candidates, pinned, heavy, 5}, bf16, 5);
      }
    }
  }
}

TEST(Select, EveryKernelAndBeyond) { require_selected_of({1, 31, 33, 511, 512, 513, 1000, 8193}); }
TEST(SelectSizes, BesideTheLargestKernelAndFarBeyond) { require_selected_of({8191, 8192, 9000, 70000}); }

}  // namespace
}  // namespace headwater::cuda
