#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::runtime {

/// Cuts a text into words, inside which byte-pair merges happen, by regular expressions (PCRE2 with Unicode
/// properties). Immutable.
class PreTokenizer {
 public:
  /// The one that a file calls `name` in `tokenizer.ggml.pre`; nullptr where it is not known here.
  [[nodiscard]] static std::unique_ptr<PreTokenizer> named(std::string_view name);
  /// "qwen2, llama-bpe, ...", for error messages.
  [[nodiscard]] static std::string names();

  ~PreTokenizer();
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;

  /// The words of `text`, which must be well-formed UTF-8, in order; together they are the text.
  [[nodiscard]] std::vector<std::string_view> split(std::string_view text) const;

  /// Does a word that is a token stay one, whatever the merges say?
  [[nodiscard]] bool whole_words_first() const;
  /// Does a text begin with BOS, unless the file says otherwise?
  [[nodiscard]] bool adds_bos() const;
  /// Are texts brought into Unicode's normal form C before they are split, with a vocabulary of so many tokens? Qwen's own
  /// tokenizer does it. GGUF files do not say so, and other models have the name for the pattern alone: Qwen's vocabulary, and
  /// what was made from it, is known by its size.
  [[nodiscard]] bool composes(std::int64_t tokens) const;

 private:
  struct State;
  explicit PreTokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace headwater::runtime
