#include "cuda/emulation/grid.hpp"

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

namespace headwater::cuda::emulation {
namespace {

/// Stacks and shadows of a host thread stay for the next launch.
Block& own_block() {
  thread_local const std::unique_ptr<Block> block = std::make_unique<Block>();
  return *block;
}

void hold_to_limits(const Launch& launch) {
  const auto refuse = [&](const std::string& what) {
    throw Fault(std::string("kernel ") + launch.name + ": " + what);
  };
  if (launch.threads < kWarp || launch.threads % kWarp != 0 || launch.threads > kWarp * kMaxWarps) {
    refuse("blocks of " + std::to_string(launch.threads) + " threads; allowed: multiples of 32 up to 1024");
  }
  if (launch.shared_bytes < 0 || launch.shared_bytes > kSharedLimitSm90) {
    refuse(std::to_string(launch.shared_bytes) + " bytes of shared memory; allowed: 0 .. " +
           std::to_string(kSharedLimitSm90));
  }
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.z == 0 || launch.grid.x > kMostBlocksX ||
      launch.grid.y > kMostBlocksYZ || launch.grid.z > kMostBlocksYZ) {
    refuse("grid of " + std::to_string(launch.grid.x) + " x " + std::to_string(launch.grid.y) + " x " +
           std::to_string(launch.grid.z) + " blocks; allowed: 1 .. 2147483647 x 65535 x 65535");
  }
}

}  // namespace

void run_grid(const Launch& launch) {
  hold_to_limits(launch);
  const auto rows = static_cast<std::int64_t>(launch.grid.y);
  const auto columns = static_cast<std::int64_t>(launch.grid.x);
  const std::int64_t count = columns * rows * static_cast<std::int64_t>(launch.grid.z);
  std::atomic<std::int64_t> first_failed{count};
  std::string failure;
  const auto note = [&](std::int64_t turn, const char* what) {
#pragma omp critical(headwater_cuda_grid)
    if (turn < first_failed.load()) {
      first_failed.store(turn);
      failure = what;
    }
  };
#pragma omp parallel for schedule(dynamic, 1) if (count > 1)
  for (std::int64_t turn = 0; turn < count; ++turn) {
    if (turn > first_failed.load()) continue;
    const std::int64_t at = launch.order == Order::ascending ? turn : count - 1 - turn;
    try {
      own_block().run(launch,
                      {static_cast<unsigned>(at % columns), static_cast<unsigned>(at / columns % rows),
                       static_cast<unsigned>(at / columns / rows)});
    } catch (const std::exception& error) {
      note(turn, error.what());
    }
  }
  if (first_failed.load() < count) throw Fault(failure);
}

}  // namespace headwater::cuda::emulation
