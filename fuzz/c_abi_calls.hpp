#pragma once

#include <cstdint>
#include <string>

#include "fuzz/byte_source.hpp"
#include "headwater/headwater.h"

/// The checks of every call of the C ABI, and the calls that need no session.
namespace headwater::fuzz {

/// Prints the call, what is wrong and the last error; aborts.
[[noreturn]] void wrong(const std::string& call, const std::string& what);

/// Checks a call and returns its status: after OK there is no message, after any other status one line.
headwater_status said(const char* call, headwater_status status);

/// said(), and the status must be this one.
void must(const char* call, headwater_status got, headwater_status wanted);

/// Small numbers, numbers beside the limits, any number.
std::int64_t hostile(ByteSource& source);

/// headwater_engine_*() and headwater_status_name() with any number.
void call_engine_texts(ByteSource& source);

/// headwater_rope_inverse_frequencies() and headwater_rotate().
void call_rotation(ByteSource& source);

}  // namespace headwater::fuzz
