#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::cli {

/// What becomes of one line end at the end of a file, which is an editor's.
enum class LastLineEnd : std::uint8_t {
  dropped,  ///< after it a model would begin a new line
  kept,     ///< something follows, or the text is only measured
};

/// A text file, or standard input where `path` is "-", without a byte order mark, line ends CR LF as LF. `flag` names it in
/// errors. Failure where it cannot be read, is a directory, or is larger than 1 GiB (no model reads that many tokens).
[[nodiscard]] std::string read_text(const char* flag, const std::string& path,
                                    LastLineEnd end = LastLineEnd::kept);

/// `text` with \n, \r, \t, \', \", \\ and \xNN as what they stand for, as llama.cpp's -e reads them: any other backslash
/// is one.
[[nodiscard]] std::string unescaped(std::string_view text);

/// Of the flag that asks for it.
inline constexpr const char* kEscapeHelp =
    R"(read \n \r \t \' \" \\ and \xNN of typed texts as what they stand for)";

/// Adds warnings that name `flag`, and where the first byte stands, if `text` is not well-formed UTF-8, or has
/// characters for which the vocabulary has no token.
void check_text(std::string_view flag, std::string_view text, const runtime::Tokenizer& tokenizer,
                std::vector<std::string>& warnings);

/// Adds a warning if a text's ids begin with the token that the model puts in front of every text, and with it again.
void check_bos(std::string_view flag, std::span<const std::int32_t> ids, const runtime::Tokenizer& tokenizer,
               std::vector<std::string>& warnings);

}  // namespace headwater::cli
