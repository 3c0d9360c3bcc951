// Byte-level BPE (Sennrich et al. 2016; bytes: Radford et al. 2019). A symbol is a text of the byte alphabet that is a
// token or takes part in a merge; nearly always it is both.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>

#include "headwater/testing/sabotage.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/byte_alphabet.hpp"
#include "runtime/tokenizer/encoder.hpp"
#include "runtime/tokenizer/merge_queue.hpp"
#include "runtime/tokenizer/normal_form.hpp"
#include "runtime/tokenizer/pre_tokenizer.hpp"

namespace headwater::runtime {
namespace {

std::unique_ptr<PreTokenizer> pre_tokenizer_of(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.pre";
  const std::string_view name = file.text(kKey);
  std::unique_ptr<PreTokenizer> found = PreTokenizer::named(name);
  if (!found) {
    file.refuse(fmt::format("key '{}' is {}; supported: {}", kKey, quoted(name), PreTokenizer::names()));
  }
  return found;
}

class ByteBpe final : public Encoder {
 public:
  ByteBpe(const GgufFile& file, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), pre_tokenizer_(pre_tokenizer_of(file)) {
    for (std::int32_t id = 0; id < vocabulary.size(); ++id) add_token(id);
    for (std::size_t byte = 0; byte < 256; ++byte) {
      byte_symbols_[byte] = intern(alphabet_.character(static_cast<std::uint8_t>(byte)));
    }
    read_merges(file);
    spellings_.clear();  // needed while merges are read only
    lacks_bytes_ = std::any_of(byte_symbols_.begin(), byte_symbols_.end(), [this](std::int32_t symbol) {
      return tokens_[static_cast<std::size_t>(symbol)] < 0;
    });
  }

  std::optional<std::size_t> encode(std::string_view text, bool /*after_special*/,
                                    std::vector<std::int32_t>& ids) const override {
    MergeQueue queue;
    std::optional<std::size_t> dropped;
    const std::optional<std::string> normal =
        pre_tokenizer_->composes(vocabulary_.size()) ? composed(text) : std::nullopt;
    const std::size_t length = text.size();
    if (normal) text = *normal;
    for (const std::string_view word : pre_tokenizer_->split(text)) {
      const auto place = encode_word(word, queue, ids);
      if (place && !dropped) dropped = static_cast<std::size_t>(word.data() - text.data()) + *place;
    }
    // Characters may have moved; a place inside of what was given it must be.
    return normal && dropped ? std::min(*dropped, length - 1) : dropped;
  }

  [[nodiscard]] bool lacks_bytes() const override { return lacks_bytes_; }

  [[nodiscard]] std::string piece(std::int32_t id) const override {
    const std::string& text = vocabulary_[id].text;
    return alphabet_.bytes_of(text).value_or(
        text);  // tokens that were added to a vocabulary are spelled plainly
  }

  [[nodiscard]] bool adds_bos() const override { return pre_tokenizer_->adds_bos(); }
  [[nodiscard]] bool adds_space() const override { return false; }

 private:
  struct Merge {
    std::int32_t rank = 0;
    std::int32_t symbol = -1;
  };

  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    if (HEADWATER_SABOTAGE("runtime.bpe.symbols_in_16_bits")) left &= 0xFFFF, right &= 0xFFFF;
    return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
  }

  std::int32_t intern(const std::string& text) {
    const auto [found, fresh] = spellings_.emplace(text, static_cast<std::int32_t>(tokens_.size()));
    if (fresh) tokens_.push_back(-1);
    return found->second;
  }

  void add_token(std::int32_t id) {
    const Token& token = vocabulary_[id];
    // What a user typed never becomes a control token by way of merges.
    if (token.kind == TokenKind::control || token.kind == TokenKind::unknown) return;
    if (vocabulary_.find(token.text) != id)
      return;  // an empty text, or an unused token whose text another one has
    tokens_[static_cast<std::size_t>(intern(token.text))] = id;
    if (pre_tokenizer_->whole_words_first()) {
      if (const auto bytes = alphabet_.bytes_of(token.text)) words_.emplace(*bytes, id);
    }
  }

  void read_merges(const GgufFile& file) {
    constexpr std::string_view kKey = "tokenizer.ggml.merges";
    const std::vector<std::string_view> merges = file.texts(kKey);
    merges_.reserve(merges.size());
    for (std::size_t i = 0; i < merges.size(); ++i) {
      const std::size_t space = merges[i].find(' ');
      if (space == std::string_view::npos || space == 0 || space + 1 == merges[i].size() ||
          merges[i].find(' ', space + 1) != std::string_view::npos) {
        file.refuse(fmt::format("key '{}': element {} is {}; it must be two symbols and one space between",
                                kKey, i, quoted(merges[i])));
      }
      const std::string left(merges[i].substr(0, space));
      const std::string right(merges[i].substr(space + 1));
      const std::int32_t symbol = intern(left + right);
      merges_.emplace(pair_key(intern(left), intern(right)), Merge{static_cast<std::int32_t>(i), symbol});
    }
  }

  /// The place of the first byte that was left out.
  std::optional<std::size_t> encode_word(std::string_view word, MergeQueue& queue,
                                         std::vector<std::int32_t>& ids) const {
    if (pre_tokenizer_->whole_words_first()) {
      const auto whole = words_.find(std::string(word));
      if (whole != words_.end()) {
        ids.push_back(whole->second);
        return std::nullopt;
      }
    }
    queue.clear();
    for (std::size_t i = 0; i < word.size(); ++i)
      queue.push(byte_symbols_[static_cast<unsigned char>(word[i])], i, 1);
    queue.merge_all(
        [this](const MergeQueue::Node& left, const MergeQueue::Node& right) -> MergeQueue::Merged {
          const auto found = merges_.find(pair_key(left.symbol, right.symbol));
          if (found == merges_.end()) return {};
          std::int32_t rank = found->second.rank;
          if (HEADWATER_SABOTAGE("runtime.bpe.rank_in_16_bits")) rank &= 0xFFFF;
          return {true, static_cast<double>(rank), found->second.symbol};
        });
    std::optional<std::size_t> dropped;
    queue.for_each([&](const MergeQueue::Node& node) { append(node, word, ids, dropped); });
    return dropped;
  }

  void append(const MergeQueue::Node& node, std::string_view word, std::vector<std::int32_t>& ids,
              std::optional<std::size_t>& dropped) const {
    const std::int32_t token = tokens_[static_cast<std::size_t>(node.symbol)];
    if (token >= 0) {
      ids.push_back(token);
      return;
    }
    // A merge made what is no token: back to bytes.
    for (std::size_t at = node.begin; at < node.begin + node.length; ++at) {
      const auto byte = static_cast<unsigned char>(word[at]);
      const std::int32_t id = tokens_[static_cast<std::size_t>(byte_symbols_[byte])];
      if (id >= 0) {
        ids.push_back(id);
      } else if (!dropped) {
        dropped = at;
      }
    }
  }

  const Vocabulary& vocabulary_;
  ByteAlphabet alphabet_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unordered_map<std::string, std::int32_t> spellings_;  ///< symbol of a text
  std::vector<std::int32_t> tokens_;                         ///< id of a symbol, -1: none
  std::array<std::int32_t, 256> byte_symbols_{};
  bool lacks_bytes_ = false;
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::unordered_map<std::string, std::int32_t>
      words_;  ///< tokens by their bytes, where whole words come first
};

}  // namespace

std::unique_ptr<Encoder> make_byte_bpe(const GgufFile& file, const Vocabulary& vocabulary) {
  return std::make_unique<ByteBpe>(file, vocabulary);
}

}  // namespace headwater::runtime
