#pragma once

// What the C ABI's functions share: the error of this thread, the guard around every call, checks by name.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "headwater/headwater.h"
#include "headwater/headwater.hpp"

struct headwater_session {
  std::unique_ptr<headwater::Session> session;
};

namespace headwater::c_abi {

/// Turns the exception in flight into a status and this thread's last error.
[[nodiscard]] headwater_status status_of_current_exception() noexcept;
/// "" again.
void clear_last_error() noexcept;
[[nodiscard]] const char* last_error_text() noexcept;

/// Runs one call of the ABI. noexcept: an exception that slips through every handler ends the program instead
/// of unwinding a caller that was written in C.
template <class Call>
headwater_status guarded(const Call& call) noexcept {
  clear_last_error();
  try {
    call();
    return HEADWATER_OK;
  } catch (...) {
    return status_of_current_exception();
  }
}

[[noreturn]] void invalid(const std::string& message);
void check_range(std::int64_t value, std::int64_t first, std::int64_t last, const std::string& field);
void check_reserved(std::int32_t value, const std::string& field);

/// A size that a caller claims for one of its structures. Anything above a page is a pointer or an
/// uninitialised value, not a structure of some later version.
void check_struct_size(std::size_t size, std::size_t smallest, const std::string& field);

/// Bytes of a caller's structure that this library does not know must be 0.
void check_unknown(const unsigned char* bytes, std::size_t size, std::size_t known, const std::string& name);

template <class Pointer>
Pointer needed(Pointer pointer, const std::string& name) {
  if (pointer == nullptr) invalid(name + " is NULL; allowed: a valid pointer");
  return pointer;
}

inline Session& session_of(headwater_session* handle) { return *needed(handle, "session")->session; }
inline const Session& session_of(const headwater_session* handle) {
  return *needed(handle, "session")->session;
}

/// A number that stands for one of `count` enumerators 0, 1, ...
template <class Enum>
Enum enumerator(std::int32_t value, std::int32_t count, const std::string& field) {
  check_range(value, 0, count - 1, field);
  return static_cast<Enum>(value);
}

inline DType dtype(std::int32_t value, const std::string& field) {
  constexpr std::int32_t kTypes = 3;
  return enumerator<DType>(value, kTypes, field);
}

/// The fields that describe `options`, without arrays and what a host lends; struct_size is left to the caller.
[[nodiscard]] headwater_options c_options_of(const Options& options);
/// Options of a session of this shape. Copies what they point at.
[[nodiscard]] Options options_of(const headwater_options& caller, const Shape& shape);

inline MutableRows rows_of(const headwater_mutable_rows* from, const std::string& name) {
  needed(from, name);
  check_reserved(from->reserved, name + ".reserved");
  return {from->data, dtype(from->type, name + ".type"), from->row_stride, from->head_stride};
}

inline headwater_memory_bytes bytes_of(const MemoryBytes& bytes) {
  return {bytes.kv, bytes.scores, bytes.memory_sets, bytes.workspace};
}

inline headwater_chunk chunk_of(const Chunk& chunk) {
  return {chunk.begin, chunk.end, static_cast<std::int32_t>(chunk.mode), 0};
}

/// Copies a structure that grew or will grow to a caller that knows `size` bytes of it.
template <class Struct>
void write_struct(Struct* out, std::size_t size, std::size_t smallest, const Struct& known,
                  const char* name) {
  static_assert(std::is_trivially_copyable_v<Struct>);
  needed(out, name);
  check_struct_size(size, smallest, "struct_size");
  auto* bytes = reinterpret_cast<unsigned char*>(out);
  const std::size_t both = std::min(size, sizeof(Struct));
  std::memcpy(bytes, &known, both);
  std::memset(bytes + both, 0, size - both);
}

// Sizes of HEADWATER_ABI_VERSION 1: the least that any caller can know. Never change these numbers.
inline constexpr std::size_t kOptionsSize1 = 96;
inline constexpr std::size_t kEffectiveOptionsSize1 = 64;
inline constexpr std::size_t kMemoryBytesSize1 = 32;
inline constexpr std::size_t kStageSecondsSize1 = 8;
static_assert(sizeof(headwater_options) >= kOptionsSize1);
static_assert(sizeof(headwater_effective_options) >= kEffectiveOptionsSize1);
static_assert(sizeof(headwater_memory_bytes) >= kMemoryBytesSize1);
static_assert(sizeof(headwater_stage_seconds) >= kStageSecondsSize1);

}  // namespace headwater::c_abi
