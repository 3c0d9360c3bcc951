#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace headwater::runtime {

/// A set of texts that an answer may be, as a program for GrammarMatcher. Any context-free grammar over the bytes of UTF-8, left
/// recursion included. Immutable: may be shared by threads. Texts from outside are hostile: their length, depth and the size of
/// the program are bounded.
class Grammar {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{256} << 10U;  ///< of a grammar or schema
  static constexpr std::size_t kMostSize = std::size_t{1} << 18U;  ///< of a program, about its instructions

  // Errors: invalid_argument, which names what, where and what is allowed.

  /// GBNF, the notation of llama.cpp; the rule `root` is the answer. Not with it: tokens (`<name>`, `<[id]>`).
  [[nodiscard]] static std::shared_ptr<const Grammar> gbnf(std::string_view text);
  /// JSON that a JSON Schema (2020-12) describes, between two texts; docs/serve.md lists the keywords. Properties come in the
  /// schema's order. Lengths are of `text`; the texts around it are not from outside.
  [[nodiscard]] static std::shared_ptr<const Grammar> json_schema(std::string_view text,
                                                                  std::string_view before = {},
                                                                  std::string_view behind = {});
  /// Any JSON object.
  [[nodiscard]] static std::shared_ptr<const Grammar> json_object();

  /// One step of a rule. A rule's instructions end with `leave`.
  struct Instruction {
    enum class Kind : std::uint8_t {
      byte,       ///< reads the byte `first`
      character,  ///< reads a character in UTF-8, from row `first`
      jump,       ///< goes on at `first`
      split,      ///< goes on at `first` and at `second`
      call,       ///< the rule `first`; `second` is 1 where nothing but `leave` follows
      leave,      ///< the end of a rule
      fail,       ///< reads nothing at all
    };
    Kind kind = Kind::fail;
    std::int32_t first = 0;
    std::int32_t second = 0;
  };
  /// For each byte the next row, kNone or kWhole.
  using Row = std::array<std::uint16_t, 256>;
  static constexpr std::uint16_t kNone = 0;
  static constexpr std::uint16_t kWhole = 1;  ///< the character is complete

  std::vector<Instruction> program;
  std::vector<Row> rows;              ///< the first two stand for kNone and kWhole, and are not read
  std::vector<std::int32_t> entries;  ///< of each rule; rule 0 is the answer
  std::vector<bool> alive;            ///< of each instruction: a text leads from it to its rule's end
};

}  // namespace headwater::runtime
