#include "runtime/gguf/reader.hpp"

#include <fmt/format.h>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"

namespace headwater::runtime {

void refuse_file(std::string_view file, const std::string& problem) {
  throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", quoted(file), problem));
}

std::span<const std::byte> Reader::take(std::uint64_t count, std::string_view what) {
  if (count > remaining()) {
    refuse(fmt::format("{} needs {} bytes, but {} are left at byte {} (truncated, or not a GGUF file)", what,
                       count, remaining(), at_));
  }
  const std::span<const std::byte> taken = bytes_.subspan(at_, count);
  at_ += count;
  return taken;
}

}  // namespace headwater::runtime
