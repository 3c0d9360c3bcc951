#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/grammar/grammar.hpp"

namespace headwater::runtime {

/// Characters: ranges of code points, first and last one. In any order, they may overlap.
using CharacterSet = std::vector<std::pair<char32_t, char32_t>>;

/// In order and apart; what is no character (surrogates, beyond U+10FFFF) is left out.
[[nodiscard]] CharacterSet normalised(const CharacterSet& set);
/// Every character that is not in the set.
[[nodiscard]] CharacterSet complement(const CharacterSet& set);

/// Puts a grammar together. A node is part of a rule; a node may stand in several places, rules may call each other in any way.
class GrammarBuilder {
 public:
  using Node = std::int32_t;
  using Rule = std::int32_t;
  static constexpr std::int64_t kUnlimited = -1;

  [[nodiscard]] Node literal(std::string_view bytes);
  [[nodiscard]] Node set(CharacterSet set);
  [[nodiscard]] Node sequence(std::vector<Node> parts);
  [[nodiscard]] Node choice(std::vector<Node> parts);  ///< of none: nothing matches
  [[nodiscard]] Node repeat(Node part, std::int64_t least, std::int64_t most = kUnlimited);
  [[nodiscard]] Node optional(Node part) { return repeat(part, 0, 1); }
  [[nodiscard]] Node call(Rule rule);

  /// The first one is the answer.
  [[nodiscard]] Rule declare();
  void define(Rule rule, Node body) { bodies_[static_cast<std::size_t>(rule)] = body; }
  /// A rule of its own, which is written once where the node stands in many places.
  [[nodiscard]] Node shared(Node body);

  /// Counts work towards Grammar::kMostSize. Error where it is more.
  void charge(std::size_t size);
  /// The grammar; every rule is defined. Error where it is too large, or matches no text. Once.
  [[nodiscard]] std::shared_ptr<const Grammar> build();

 private:
  enum class Kind : std::uint8_t { literal, set, sequence, choice, repeat, call };
  struct Part {
    Kind kind;
    std::string text = {};             // literal
    std::vector<Node> parts = {};      // sequence, choice, repeat: one
    std::int64_t least = 0, most = 0;  // repeat
    std::int32_t index = 0;            // call: the rule; set: the row
  };
  Node add(Part part);
  void emit(Node node);
  std::size_t emit(Grammar::Instruction instruction);
  void aim(std::size_t at, std::size_t target) { program()[at].first = static_cast<std::int32_t>(target); }
  std::vector<Grammar::Instruction>& program() { return grammar_->program; }
  std::uint16_t row(const Grammar::Row& row);
  /// The row of what may follow when `rest` bytes of a character are left and those read so far say `first`.
  std::uint16_t row_of(const CharacterSet& set, char32_t first, int rest);
  void find_alive();

  std::shared_ptr<Grammar> grammar_ = std::make_shared<Grammar>();
  std::vector<Part> parts_;
  std::vector<Node> bodies_;
  std::map<Grammar::Row, std::uint16_t> rows_;
  std::map<CharacterSet, std::uint16_t> sets_;
  std::array<std::uint16_t, 4> all_{};  // by the number of bytes that are left
  std::size_t size_ = 0;
};

}  // namespace headwater::runtime
