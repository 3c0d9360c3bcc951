#pragma once

#include <string>

#include "cuda/emulation/context.hpp"
#include "cuda/emulation/grid.hpp"

namespace headwater::cuda::emulation {

/// Runs `body(Context&)` as a kernel and returns the text of the fault that it ended with, or "".
template <class Body>
std::string fault_of(Launch launch, const Body& body) {
  launch.name = "test";
  launch.params = &body;
  launch.kernel = [](Context& context, const void* params) { (*static_cast<const Body*>(params))(context); };
  try {
    run_grid(launch);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "";
}

/// One block.
template <class Body>
std::string fault_of(int threads, int shared_bytes, const Body& body, Order order = Order::ascending) {
  Launch launch;
  launch.threads = threads;
  launch.shared_bytes = shared_bytes;
  launch.order = order;
  return fault_of(launch, body);
}

}  // namespace headwater::cuda::emulation
