// What tests of Python need of a session's emulated device, exported beside the C ABI: memory there, copies,
// and how often the host has waited.
#include <cstdint>

#include "bindings/c_abi_support.hpp"
#include "cuda/cuda_session.hpp"
#include "headwater/headwater.h"

namespace {

headwater::cuda::Device& device_of(headwater_session* session) {
  auto& own = dynamic_cast<headwater::cuda::CudaSession&>(*session->session);
  return const_cast<headwater::cuda::Device&>(own.device());
}

}  // namespace

extern "C" {

/// `bytes` of the device's memory, until the session is closed; NULL: none left.
HEADWATER_API void* test_allocate(headwater_session* session, std::int64_t bytes);
/// On the default stream, which is that of a session without another one; outwards the host waits. 0: done.
HEADWATER_API std::int32_t test_copy(headwater_session* session, void* to, const void* from,
                                     std::int64_t bytes, std::int32_t to_device);
/// Its ordinal.
HEADWATER_API std::int32_t test_device(headwater_session* session);
/// How often the host has waited for the device.
HEADWATER_API std::int64_t test_host_waits(headwater_session* session);

void* test_allocate(headwater_session* session, std::int64_t bytes) {
  void* data = nullptr;
  headwater::c_abi::guarded([&] { data = device_of(session).allocate(bytes, "rows of a test"); });
  return data;
}

std::int32_t test_copy(headwater_session* session, void* to, const void* from, std::int64_t bytes,
                       std::int32_t to_device) {
  return headwater::c_abi::guarded([&] {
    using headwater::cuda::Direction;
    headwater::cuda::Device& device = device_of(session);
    device.copy(device.adopt(nullptr), to, from, bytes,
                to_device != 0 ? Direction::host_to_device : Direction::device_to_host);
  });
}

std::int32_t test_device(headwater_session* session) { return device_of(session).info().ordinal; }

std::int64_t test_host_waits(headwater_session* session) {
  return device_of(session).counters().host_synchronisations;
}

}  // extern "C"
