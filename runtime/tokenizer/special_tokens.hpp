#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/tokenizer/vocabulary.hpp"

namespace headwater::runtime {

/// Texts that are one token wherever they stand, found before anything else is done with a text.
class SpecialTokens {
 public:
  /// Of the user-defined tokens of a vocabulary, and `with_control` of the control and unknown ones. Views into it.
  SpecialTokens(const Vocabulary& vocabulary, bool with_control);

  struct Match {
    std::size_t begin = 0;
    std::size_t length = 0;  ///< 0: none
    std::int32_t id = -1;
  };
  /// The first one in `text` at `from` or after it; of those that begin there, the longest.
  [[nodiscard]] Match find(std::string_view text, std::size_t from) const;

 private:
  std::bitset<256> first_bytes_;
  std::vector<std::size_t> lengths_;  ///< that occur, longest first
  std::unordered_map<std::string_view, std::int32_t> by_text_;
};

}  // namespace headwater::runtime
