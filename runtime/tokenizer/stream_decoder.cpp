#include <utility>

#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::runtime {

std::string StreamDecoder::push(std::int32_t id) {
  if (tokenizer_->is_control(id)) return {};
  held_ += tokenizer_->piece(id);
  std::string_view rest = held_;
  std::string text;
  while (!rest.empty()) {
    const Utf8Sequence sequence = next_utf8(rest);
    if (sequence.incomplete) break;
    text += sequence.well_formed ? rest.substr(0, sequence.length) : kReplacementCharacter;
    rest.remove_prefix(sequence.length);
  }
  held_ = std::string(rest);
  return text;
}

std::string StreamDecoder::finish() { return well_formed_utf8(std::exchange(held_, {})); }

}  // namespace headwater::runtime
