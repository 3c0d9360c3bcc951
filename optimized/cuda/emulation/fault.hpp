#pragma once

#include <stdexcept>
#include <string>

namespace headwater::cuda::emulation {

/// What a kernel did wrong, as one line; ends the launch. Thrown and caught within one fiber.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Unwinds the other threads of a block that has failed.
struct Unwind {};

}  // namespace headwater::cuda::emulation
