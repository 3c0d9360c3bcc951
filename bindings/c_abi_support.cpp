#include "bindings/c_abi_support.hpp"

#include <exception>
#include <new>

namespace headwater::c_abi {
namespace {

// A fixed buffer: the error that memory ran out is reported without taking any.
constexpr std::size_t kLongestMessage = 1024;
thread_local std::array<char, kLongestMessage> last_error{};

headwater_status fail(headwater_status status, std::string_view message) noexcept {
  const std::size_t length = std::min(message.size(), kLongestMessage - 1);
  std::memcpy(last_error.data(), message.data(), length);
  last_error[length] = '\0';
  return status;
}

}  // namespace

headwater_status status_of_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return fail(static_cast<headwater_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return fail(HEADWATER_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return fail(HEADWATER_INTERNAL, error.what());
  } catch (...) {
    return fail(HEADWATER_INTERNAL, "an exception of unknown type (from the observer?)");
  }
}

void clear_last_error() noexcept { last_error[0] = '\0'; }

const char* last_error_text() noexcept { return last_error.data(); }

void invalid(const std::string& message) { throw Error(ErrorCode::invalid_argument, message); }

void check_range(std::int64_t value, std::int64_t first, std::int64_t last, const std::string& field) {
  if (value >= first && value <= last) return;
  std::string allowed = "none";
  if (first == last) allowed = std::to_string(first);
  if (first < last) allowed = std::to_string(first) + " .. " + std::to_string(last);
  invalid(field + " is " + std::to_string(value) + "; allowed: " + allowed);
}

void check_reserved(std::int32_t value, const std::string& field) { check_range(value, 0, 0, field); }

void check_struct_size(std::size_t size, std::size_t smallest, const std::string& field) {
  constexpr std::size_t kLargestStruct = 4096;
  if (size >= smallest && size <= kLargestStruct) return;
  invalid(field + " is " + std::to_string(size) + "; allowed: " + std::to_string(smallest) + " .. " +
          std::to_string(kLargestStruct));
}

void check_unknown(const unsigned char* bytes, std::size_t size, std::size_t known, const std::string& name) {
  for (std::size_t i = known; i < size; ++i) {
    if (bytes[i] == 0) continue;
    invalid(name + ".struct_size is " + std::to_string(size) + " and byte " + std::to_string(i) +
            " is set; this library knows " + std::to_string(known) + " bytes, what follows must be 0");
  }
}

}  // namespace headwater::c_abi
