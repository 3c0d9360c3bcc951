#include "runtime/tokenizer/normal_form.hpp"

#include <fmt/format.h>
#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <new>

#include "headwater/error.hpp"

namespace headwater::runtime {
namespace {

struct Free {
  void operator()(utf8proc_uint8_t* text) const { std::free(text); }  // utf8proc takes it from malloc
};

std::string normal_form(std::string_view text) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
      &made, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(made);
  if (size == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (size < 0) {
    throw Error(ErrorCode::internal,
                fmt::format("utf8proc cannot normalise a text: {}", utf8proc_errmsg(size)));
  }
  return {reinterpret_cast<const char*>(made), static_cast<std::size_t>(size)};
}

/// Does the byte lead a character from U+0300 on? Those below neither change nor go into the one before.
bool may_change(char c) { return static_cast<unsigned char>(c) >= 0xCC; }
bool continues(char c) { return (static_cast<unsigned char>(c) & 0xC0U) == 0x80; }

}  // namespace

std::optional<std::string> composed(std::string_view text) {
  std::optional<std::string> result;
  std::size_t copied = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!may_change(text[at])) {
      ++at;
      continue;
    }
    // A run of such characters, and the one before, with which the first may become one.
    std::size_t begin = at;
    while (begin > copied && (begin == at || continues(text[begin]))) --begin;
    while (at < text.size() && (may_change(text[at]) || continues(text[at]))) ++at;
    const std::string_view run = text.substr(begin, at - begin);
    const std::string made = normal_form(run);
    if (made == run) continue;
    if (!result) result.emplace();
    result->append(text, copied, begin - copied).append(made);
    copied = at;
  }
  if (result) result->append(text, copied);
  return result;
}

}  // namespace headwater::runtime
