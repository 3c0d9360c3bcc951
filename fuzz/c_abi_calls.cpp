#include "fuzz/c_abi_calls.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>

namespace headwater::fuzz {

[[noreturn]] void wrong(const std::string& call, const std::string& what) {
  std::fprintf(stderr, "%s: %s (last error: '%s')\n", call.c_str(), what.c_str(), headwater_last_error());
  std::abort();
}

headwater_status said(const char* call, headwater_status status) {
  const std::string message = headwater_last_error();
  if (status < HEADWATER_OK || status > HEADWATER_UNSUPPORTED || status == HEADWATER_INTERNAL)
    wrong(call, "status " + std::to_string(status));
  if ((status == HEADWATER_OK) != message.empty()) wrong(call, "status and message do not fit");
  if (message.find('\n') != std::string::npos) wrong(call, "the message is not one line");
  return status;
}

void must(const char* call, headwater_status got, headwater_status wanted) {
  if (said(call, got) != wanted) {
    wrong(call, "status " + std::to_string(got) + ", the model says " + std::to_string(wanted));
  }
}

std::int64_t hostile(ByteSource& source) {
  constexpr std::array<std::int64_t, 8> kEdges = {-1,
                                                  0,
                                                  1,
                                                  2147483647,
                                                  2147483648LL,
                                                  std::numeric_limits<std::int64_t>::max(),
                                                  std::numeric_limits<std::int64_t>::min(),
                                                  4};
  const std::uint8_t kind = source.byte();
  return kind < 128 ? kind % 16 : kind < 224 ? kEdges[kind % kEdges.size()] : source.wide();
}

void call_engine_texts(ByteSource& source) {
  const auto index = static_cast<std::int32_t>(hostile(source));
  const char* name = headwater_engine_name(index);
  const bool inside = index >= 0 && index < headwater_engine_count();
  if ((name != nullptr) != inside) wrong("engine_name", std::to_string(index));
  if ((headwater_last_error()[0] == '\0') != inside) wrong("engine_name", "message");
  if (*headwater_status_name(static_cast<headwater_status>(source.wide())) == '\0')
    wrong("status_name", "empty");
}

void call_rotation(ByteSource& source) {
  std::array<float, 16> rows{};
  rows.fill(1.0F);
  std::array<double, 2> frequencies{1.0, source.flag() ? 0.5 : std::bit_cast<double>(source.wide())};
  const std::int64_t r = source.flag() ? 2 * source.range(0, 2) : hostile(source);
  const std::int64_t room = source.flag() ? r / 2 : hostile(source);
  const bool fits = r == 2 || r == 4;
  must("inverse_frequencies",
       headwater_rope_inverse_frequencies(r, 10000.0, fits ? frequencies.data() : nullptr, room),
       fits && room == r / 2 ? HEADWATER_OK : HEADWATER_INVALID_ARGUMENT);
  const headwater_mutable_rows view{source.range(0, 9) == 0 ? nullptr : rows.data(), 4, 4,
                                    static_cast<std::int32_t>(source.range(0, 9) == 0 ? 3 : 0), 0};
  const std::int64_t n = source.range(0, 4);
  const std::int64_t width = source.range(0, 3) != 0 ? 4 : hostile(source) % 5;
  const std::int64_t first = hostile(source);
  const std::int64_t count = source.range(0, 3) != 0 ? source.range(0, 2) : hostile(source);
  const auto layout = static_cast<std::int32_t>(source.range(0, 3));
  const headwater_status got =
      said("rotate", headwater_rotate(&view, n, 1, width, first, frequencies.data(), count, 1.0, layout));
  const bool sound =
      view.data != nullptr && view.type == 0 && width >= 1 && first >= 0 && first <= 2147483648LL - n &&
      count >= 0 && 2 * std::min<std::int64_t>(count, 8) <= width && layout <= 1 &&
      (count < 1 || std::isfinite(frequencies[0])) && (count < 2 || std::isfinite(frequencies[1]));
  if ((got == HEADWATER_OK) != sound) wrong("rotate", "status " + std::to_string(got));
  for (std::size_t i = static_cast<std::size_t>(4 * n); i < rows.size(); ++i) {
    if (rows[i] != 1.0F) wrong("rotate", "a row after the last");
  }
}

}  // namespace headwater::fuzz
