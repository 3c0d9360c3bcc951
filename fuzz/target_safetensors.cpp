// libFuzzer target: the reader of safetensors headers takes any bytes; what it accepts must be consistent.

#include <cstdint>
#include <cstdlib>
#include <span>

#include "cli/support/failure.hpp"
#include "cli/support/safetensors.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headwater::cli;
  try {
    const SafetensorsHeader header = parse_safetensors(std::as_bytes(std::span(data, size)));
    for (const auto& [name, tensor] : header.tensors) {
      std::uint64_t elements = 1;
      for (const std::uint64_t extent : tensor.shape) elements *= extent;
      const std::uint64_t bytes = elements * tensor_type_info(tensor.type).bits / 8;
      if (tensor.begin > tensor.end || tensor.end > size || tensor.end - tensor.begin != bytes) std::abort();
    }
  } catch (const Failure&) {
    // A refusal is right, too.
  }
  return 0;
}
