// SentencePiece-style BPE (Kudo and Richardson 2018): the text is one sequence of characters, a space is "▁", the pair
// whose union has the highest score is merged first, a character without a token becomes its bytes.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "headwater/testing/sabotage.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/encoder.hpp"
#include "runtime/tokenizer/merge_queue.hpp"

namespace headwater::runtime {
namespace {

constexpr std::string_view kTokensKey = "tokenizer.ggml.tokens";
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

/// `text` with every `from` replaced by `to`.
std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(from, at), text.size());
    result += text.substr(at, found - at);
    if (found < text.size()) result += to;
    at = found + from.size();
  }
  return result;
}

/// The byte that "<0x0A>" means; -1 where the text is something else.
int byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return -1;
  int value = -1;
  const auto [end, error] = std::from_chars(text.data() + 3, text.data() + 5, value, 16);
  return error == std::errc() && end == text.data() + 5 ? value : -1;
}

class SentenceBpe final : public Encoder {
 public:
  SentenceBpe(const GgufFile& file, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), adds_space_(file.boolean_or("tokenizer.ggml.add_space_prefix", true)) {
    constexpr std::string_view kExtra = "tokenizer.ggml.remove_extra_whitespaces";
    if (file.boolean_or(kExtra, false))
      file.refuse(fmt::format("key '{}' is true, which is not supported", kExtra));
    read_bytes(file);
  }

  std::optional<std::size_t> encode(std::string_view text, bool after_special,
                                    std::vector<std::int32_t>& ids) const override {
    const std::size_t added = adds_space_ && after_special ? kSpaceMark.size() : 0;
    std::string marked(kSpaceMark.substr(0, added));
    marked += replaced(text, " ", kSpaceMark);
    MergeQueue queue;
    for (std::size_t at = 0; at < marked.size();) {
      const std::size_t length = next_utf8(std::string_view(marked).substr(at)).length;
      queue.push(mergeable(std::string_view(marked).substr(at, length)), at, length);
      at += length;
    }
    Splits splits;
    queue.merge_all([&](const MergeQueue::Node& left, const MergeQueue::Node& right) {
      return union_of(std::string_view(marked).substr(left.begin, left.length + right.length), left.length,
                      splits);
    });
    std::optional<std::size_t> dropped;
    queue.for_each([&](const MergeQueue::Node& node) {
      const std::string_view part = std::string_view(marked).substr(node.begin, node.length);
      if (append(part, node.symbol, splits, ids) && !dropped) dropped = node.begin;
    });
    if (!dropped) return dropped;
    std::size_t place = 0;  // in `text`, whose spaces are shorter than their marks
    for (std::size_t at = added; at < *dropped; ++place) at += text[place] == ' ' ? kSpaceMark.size() : 1;
    return place;
  }

  [[nodiscard]] bool lacks_bytes() const override {
    return std::find(bytes_.begin(), bytes_.end(), -1) != bytes_.end();
  }

  [[nodiscard]] std::string piece(std::int32_t id) const override {
    const Token& token = vocabulary_[id];
    const int byte = token.kind == TokenKind::byte ? byte_of(token.text) : -1;
    return byte >= 0 ? std::string(1, static_cast<char>(byte)) : replaced(token.text, kSpaceMark, " ");
  }

  [[nodiscard]] bool adds_bos() const override { return true; }
  [[nodiscard]] bool adds_space() const override { return adds_space_; }

 private:
  /// Bytes of the left half of an unused token, as it would last have been merged.
  using Splits = std::unordered_map<std::int32_t, std::size_t>;

  void read_bytes(const GgufFile& file) {
    bytes_.fill(-1);
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id) {
      if (vocabulary_[id].kind != TokenKind::byte) continue;
      const int byte = byte_of(vocabulary_[id].text);
      if (byte < 0) {
        file.refuse(fmt::format("key '{}': token {} is a byte called {}; it must be <0x00> .. <0xFF>",
                                kTokensKey, id, quoted(vocabulary_[id].text)));
      }
      bytes_[static_cast<std::size_t>(byte)] = id;
    }
  }

  /// The token that characters may become; -1: none. What a user typed never becomes a control token.
  [[nodiscard]] std::int32_t mergeable(std::string_view text) const {
    const std::int32_t id = vocabulary_.find(text);
    if (id < 0) return -1;
    const TokenKind kind = vocabulary_[id].kind;
    return kind == TokenKind::normal || kind == TokenKind::user_defined || kind == TokenKind::unused ? id
                                                                                                     : -1;
  }

  [[nodiscard]] MergeQueue::Merged union_of(std::string_view text, std::size_t left, Splits& splits) const {
    const std::int32_t id = mergeable(text);
    if (id < 0) return {};
    if (vocabulary_[id].kind == TokenKind::unused) splits[id] = left;
    if (HEADWATER_SABOTAGE("runtime.bpe.scores_below_65536"))
      return {true, -vocabulary_[id & 0xFFFF].score, id};
    return {true, -vocabulary_[id].score, id};
  }

  /// An unused token helps merging only; it is taken apart again, as far as needed. Whether a byte was left out.
  bool append(std::string_view text, std::int32_t symbol, const Splits& splits,
              std::vector<std::int32_t>& ids) const {
    bool dropped = false;
    std::vector<std::pair<std::string_view, std::int32_t>> waiting = {{text, symbol}};
    while (!waiting.empty()) {
      const auto [part, id] = waiting.back();
      waiting.pop_back();
      const auto split =
          id >= 0 && vocabulary_[id].kind == TokenKind::unused ? splits.find(id) : splits.end();
      if (split != splits.end()) {
        const std::string_view left = part.substr(0, split->second);
        const std::string_view right = part.substr(split->second);
        waiting.emplace_back(right, mergeable(right));
        waiting.emplace_back(left, mergeable(left));
      } else if (id >= 0) {
        ids.push_back(id);
      } else {
        for (const char c : part) {
          const std::int32_t byte = bytes_[static_cast<unsigned char>(c)];
          if (byte >= 0) ids.push_back(byte);
          dropped = dropped || byte < 0;
        }
      }
    }
    return dropped;
  }

  const Vocabulary& vocabulary_;
  bool adds_space_;
  std::array<std::int32_t, 256> bytes_{};
};

}  // namespace

std::unique_ptr<Encoder> make_sentence_bpe(const GgufFile& file, const Vocabulary& vocabulary) {
  return std::make_unique<SentenceBpe>(file, vocabulary);
}

}  // namespace headwater::runtime
