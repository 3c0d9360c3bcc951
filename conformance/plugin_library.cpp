#include "conformance/plugin_library.hpp"

#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <fmt/format.h>

#include "conformance/claims.hpp"
#include "conformance/float_controls.hpp"
#include "headwater/error.hpp"

namespace headwater::conformance {
namespace {

constexpr const char* kSymbol = "headwater_plugin_v1";
constexpr std::size_t kLongestName = 64;
constexpr std::size_t kLongestText = 200;
[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, path + ": " + what);
}

std::string dynamic_loader_says() {
  const char* text = ::dlerror();
  return text == nullptr ? "no reason given" : one_line(text, kLongestText);
}

// A text of the table: not NULL, one line, of bounded length.
std::string text_of(const std::string& path, const char* field, const char* text) {
  if (text == nullptr) refuse(path, fmt::format("{} of its table is NULL; allowed: a text", field));
  const std::size_t length = ::strnlen(text, kLongestText + 1);
  if (length > kLongestText) {
    refuse(path, fmt::format("{} of its table is too long; allowed: at most {} bytes", field, kLongestText));
  }
  std::string copy = one_line(text, kLongestText);
  if (copy != text) {
    refuse(path, fmt::format("{} of its table is '{}'; allowed: one line of printable ASCII", field, copy));
  }
  return copy;
}

Claims claims_of(std::uint64_t bits) {
  Claims claims;
  for (const ClaimInfo& claim : kClaims) claims.*claim.member = (bits & claim.bit) != 0;
  return claims;
}

std::uint64_t known_claims() {
  std::uint64_t bits = 0;
  for (const ClaimInfo& claim : kClaims) bits |= claim.bit;
  return bits;
}

// The first function of the table that is missing, or nothing.
const char* missing_function(const headwater_engine_table& table) {
#define HEADWATER_NEEDED(function) \
  if (table.function == nullptr) return #function;
  HEADWATER_NEEDED(last_error)
  HEADWATER_NEEDED(open)
  HEADWATER_NEEDED(close)
  HEADWATER_NEEDED(begin_prefill)
  HEADWATER_NEEDED(begin_decode)
  HEADWATER_NEEDED(attend)
  HEADWATER_NEEDED(end)
  HEADWATER_NEEDED(reset)
  HEADWATER_NEEDED(session_state)
  HEADWATER_NEEDED(session_tokens)
  HEADWATER_NEEDED(session_options)
  HEADWATER_NEEDED(warning_count)
  HEADWATER_NEEDED(warning)
  HEADWATER_NEEDED(session_memory_bytes)
  HEADWATER_NEEDED(plan_count)
  HEADWATER_NEEDED(plan_chunk)
  HEADWATER_NEEDED(scores)
  HEADWATER_NEEDED(memory)
  HEADWATER_NEEDED(read_key)
  HEADWATER_NEEDED(read_value)
  HEADWATER_NEEDED(set_observer)
  if (tells_failure(table)) HEADWATER_NEEDED(session_failed)
#undef HEADWATER_NEEDED
  return nullptr;
}

// The first claim whose function the table lacks: it is NULL, or the table ends before it.
const char* claim_without_function(const headwater_engine_table& table) {
#define HEADWATER_CLAIMED(claim, function)                                                        \
  if ((table.claims & (claim)) != 0 &&                                                            \
      (table.struct_size < offsetof(headwater_engine_table, function) + sizeof(table.function) || \
       table.function == nullptr))                                                                \
    return #function;
  HEADWATER_CLAIMED(HEADWATER_CLAIM_ABORT, abort)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_TRUNCATE, truncate)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_INTERRUPT, set_interrupt)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_LSE, attend_lse)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_ESTIMATE, estimate)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_FORK, fork)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_STORED_ROWS, attend_stored)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_SAVE, save)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_SAVE, load)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_SAVE, session_chunk_count)
  HEADWATER_CLAIMED(HEADWATER_CLAIM_SAVE, session_chunk)
#undef HEADWATER_CLAIMED
  return nullptr;
}

}  // namespace

std::string one_line(const char* text, std::size_t most) {
  std::string line(text, ::strnlen(text, most));
  for (char& c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return line;
}

std::string find_plugin(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> absolute(::realpath(path.c_str(), nullptr), std::free);
  const int error = errno;
  if (absolute == nullptr) {
    refuse(path, fmt::format("{}; allowed: a shared object with an engine", std::strerror(error)));
  }
  struct stat status {};
  if (::stat(absolute.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      ::access(absolute.get(), R_OK) != 0) {
    refuse(path, "no file that can be read; allowed: a shared object with an engine");
  }
  return absolute.get();
}

PluginLibrary::PluginLibrary(const std::string& path) {
  const FloatControls before;
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    refuse(path, "cannot be loaded: " + dynamic_loader_says() +
                     "; allowed: a shared object whose symbols are all found");
  }
  void* symbol = ::dlsym(library, kSymbol);
  if (symbol == nullptr) {
    refuse(path,
           fmt::format("exports no {}; allowed: a shared object made with headwater/plugin.h", kSymbol));
  }
  table_ = reinterpret_cast<decltype(&headwater_plugin_v1)>(symbol)();
  if (before.changed()) {
    const std::string difference = before.difference();
    before.restore();
    refuse(path, fmt::format("loading it changes how its caller computes ({}; linked with -ffast-math?); "
                             "allowed: floating-point controls as they were",
                             difference));
  }
  if (table_ == nullptr) refuse(path, fmt::format("{}() returned NULL; allowed: a table", kSymbol));
  check_table(path);
  check_texts(path);
}

void PluginLibrary::check_table(const std::string& path) {
  constexpr std::size_t kFirstTable = offsetof(headwater_engine_table, session_failed);
  if (table_->struct_size < kFirstTable) {
    refuse(path, fmt::format("struct_size of its table is {}; allowed: {} or more", table_->struct_size,
                             kFirstTable));
  }
  if (table_->abi_version != HEADWATER_PLUGIN_VERSION) {
    refuse(path, fmt::format("abi_version of its table is {}; allowed: {}", table_->abi_version,
                             HEADWATER_PLUGIN_VERSION));
  }
  if (table_->reserved != 0) {
    refuse(path, fmt::format("reserved of its table is {}; allowed: 0", table_->reserved));
  }
  if ((table_->claims & ~known_claims()) != 0) {
    refuse(path, fmt::format("claims of its table are {:#x}; allowed: bits of {:#x}", table_->claims,
                             known_claims()));
  }
  if (const char* function = missing_function(*table_)) {
    refuse(path, fmt::format("function {} of its table is NULL; allowed: all functions", function));
  }
  if (const char* function = claim_without_function(*table_)) {
    refuse(
        path,
        fmt::format(
            "its table makes a claim and has no function {0} for it; allowed: a table with both or neither",
            function));
  }
}

void PluginLibrary::check_texts(const std::string& path) {
  identity_.name = text_of(path, "name", table_->name);
  identity_.isa = text_of(path, "isa", table_->isa);
  identity_.description = text_of(path, "description", table_->description);
  identity_.unavailable_because = text_of(path, "unavailable_because", table_->unavailable_because);
  identity_.claims = claims_of(table_->claims);
  const std::string& name = identity_.name;
  const bool letters = std::all_of(name.begin(), name.end(), [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
  });
  if (name.empty() || name.size() > kLongestName || !letters) {
    refuse(path, fmt::format("name of its table is '{}'; allowed: 1 .. {} letters, digits, '-', '_' and '.'",
                             name, kLongestName));
  }
  if (std::any_of(engines().begin(), engines().end(),
                  [&](const Engine* own) { return own->name() == name; })) {
    refuse(path, fmt::format("name of its table is '{}', which is an engine of the library; allowed: another",
                             name));
  }
}

}  // namespace headwater::conformance
