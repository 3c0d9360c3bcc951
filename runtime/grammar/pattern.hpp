#pragma once

#include <map>
#include <string_view>

#include "runtime/grammar/builder.hpp"

namespace headwater::runtime {

/// Strings of JSON: characters as they are, or escaped where JSON wants it.
class JsonStrings {
 public:
  explicit JsonStrings(GrammarBuilder& builder) : builder_(&builder) {}

  /// One character of the set, written in the shortest way.
  [[nodiscard]] GrammarBuilder::Node character(CharacterSet set);
  /// Any character in any way of writing it.
  [[nodiscard]] GrammarBuilder::Node any_character();
  /// The string between its quotes whose text matches a regular expression (of ECMAScript, as JSON Schema has them), without
  /// looking around, back references and word boundaries. Error(invalid_argument) for these and what is malformed.
  [[nodiscard]] GrammarBuilder::Node pattern(std::string_view expression);

 private:
  GrammarBuilder* builder_;
  std::map<CharacterSet, GrammarBuilder::Node> characters_;
  GrammarBuilder::Node any_ = -1;
};

}  // namespace headwater::runtime
