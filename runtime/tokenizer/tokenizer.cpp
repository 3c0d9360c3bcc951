#include "runtime/tokenizer/tokenizer.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/encoder.hpp"
#include "runtime/tokenizer/special_tokens.hpp"
#include "runtime/tokenizer/vocabulary.hpp"

namespace headwater::runtime {
namespace {

// Ends of a turn that files do not always name by a key.
constexpr std::string_view kEnds[] = {"<|im_end|>",      "<|eot_id|>", "<|eom_id|>",      "<|endoftext|>",
                                      "<|end_of_text|>", "<|end|>",    "<|end_of_turn|>", "<end_of_turn>"};

bool is_sentence_model(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.model";
  const std::string_view model = file.text(kKey);
  if (model != "gpt2" && model != "llama") {
    file.refuse(fmt::format("key '{}' is {}; supported: gpt2, llama", kKey, quoted(model)));
  }
  return model == "llama";
}

/// A special token; -1: none. Texts need it where the file puts it around them; elsewhere a wrong id, often -1, is as none.
std::int32_t special_id(const GgufFile& file, std::string_view key, const Vocabulary& vocabulary, bool needed,
                        std::vector<std::string>& warnings) {
  if (needed && !file.has(key)) {
    file.refuse(fmt::format("key '{}' is missing, though texts need that token", key));
  }
  try {
    return static_cast<std::int32_t>(file.integer_or(key, 0, vocabulary.size() - 1, -1));
  } catch (const Error& error) {
    if (needed || error.code() != ErrorCode::invalid_argument) throw;
    warnings.push_back(fmt::format("{}; it is taken for none", error.what()));
    return -1;
  }
}

}  // namespace

struct Tokenizer::State {
  std::vector<std::string> warnings;
  Vocabulary vocabulary;
  SpecialTokens always;        ///< user-defined tokens
  SpecialTokens with_control;  ///< and control tokens
  std::unique_ptr<Encoder> encoder;
  std::int32_t bos = -1;
  std::int32_t eos = -1;
  bool adds_bos = false;
  bool adds_eos = false;
  std::set<std::int32_t> ends;

  State(const GgufFile& file, bool sentence)
      : vocabulary(file, sentence, warnings),
        always(vocabulary, false),
        with_control(vocabulary, true),
        encoder(sentence ? make_sentence_bpe(file, vocabulary) : make_byte_bpe(file, vocabulary)) {
    const auto id_of = [&](const char* name, bool needed) {
      return special_id(file, fmt::format("tokenizer.ggml.{}_token_id", name), vocabulary, needed, warnings);
    };
    adds_bos = file.boolean_or("tokenizer.ggml.add_bos_token", encoder->adds_bos());
    adds_eos = file.boolean_or("tokenizer.ggml.add_eos_token", false);
    bos = id_of("bos", adds_bos);
    eos = id_of("eos", adds_eos);
    for (const std::int32_t id : {eos, id_of("eot", false), id_of("eom", false)}) {
      if (id >= 0) ends.insert(id);
    }
    find_ends();
    // Nothing reads these; a wrong one says something about the file.
    for (const char* const name : {"unknown", "padding"}) (void)id_of(name, false);
  }

  void find_ends() {
    for (const std::string_view text : kEnds) {
      const std::int32_t id = vocabulary.find(text);
      if (id >= 0 && vocabulary[id].kind != TokenKind::normal) ends.insert(id);
    }
  }

  [[nodiscard]] const Token& token(std::int32_t id) const {
    if (id < 0 || id >= vocabulary.size()) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("token id {} is not in the vocabulary; allowed: 0 .. {}", id, vocabulary.size() - 1));
    }
    return vocabulary[id];
  }
};

Tokenizer::Tokenizer(std::unique_ptr<const State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

std::unique_ptr<Tokenizer> Tokenizer::from_gguf(const GgufFile& file) {
  const bool sentence = is_sentence_model(file);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::make_unique<const State>(file, sentence)));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special,
                                            bool parse_special) const {
  std::vector<std::int32_t> ids;
  if (add_special && state_->adds_bos) ids.push_back(state_->bos);
  append(well_formed_utf8(text), parse_special, true, ids);
  if (add_special && state_->adds_eos) ids.push_back(state_->eos);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_more(std::string_view text, bool parse_special) const {
  std::vector<std::int32_t> ids;
  append(well_formed_utf8(text), parse_special, false, ids);
  return ids;
}

std::optional<std::size_t> Tokenizer::first_without_token(std::string_view text) const {
  if (!state_->encoder->lacks_bytes()) return std::nullopt;
  const std::string clean = well_formed_utf8(text);
  std::vector<std::int32_t> ids;
  const auto dropped = append(clean, true, true, ids);
  if (!dropped) return std::nullopt;
  std::size_t place = 0;
  for (std::size_t at = 0;;) {
    const std::size_t length = next_utf8(std::string_view(clean).substr(at)).length;
    if (at + length > *dropped) return place;
    at += length;
    place += next_utf8(text.substr(place)).length;
  }
}

std::optional<std::size_t> Tokenizer::append(std::string_view clean, bool parse_special, bool after_special,
                                             std::vector<std::int32_t>& ids) const {
  std::optional<std::size_t> dropped;
  const SpecialTokens& specials = parse_special ? state_->with_control : state_->always;
  for (std::size_t at = 0; at < clean.size();) {
    const SpecialTokens::Match match = specials.find(clean, at);
    if (match.begin > at) {
      const auto place = state_->encoder->encode(clean.substr(at, match.begin - at), after_special, ids);
      if (place && !dropped) dropped = at + *place;
      after_special = false;
    }
    if (match.length > 0) {
      ids.push_back(match.id);
      after_special = true;
    }
    at = match.begin + match.length;
  }
  return dropped;
}

Tokenizer::SpecialText Tokenizer::next_special(std::string_view text, std::size_t from) const {
  const SpecialTokens::Match match = state_->with_control.find(text, from);
  return {match.begin, match.length, match.id};
}

std::string Tokenizer::piece(std::int32_t id) const {
  const Token& token = state_->token(id);
  const bool spelled =
      token.kind == TokenKind::normal || token.kind == TokenKind::unused || token.kind == TokenKind::byte;
  return spelled ? state_->encoder->piece(id) : token.text;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids) const {
  std::string text;
  for (const std::int32_t id : ids) {
    if (!is_control(id)) text += piece(id);
  }
  if (state_->encoder->adds_space() && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

bool Tokenizer::is_control(std::int32_t id) const {
  const TokenKind kind = state_->token(id).kind;
  return kind == TokenKind::control || kind == TokenKind::unknown;
}

bool Tokenizer::is_end(std::int32_t id) const { return state_->ends.contains(id); }
std::int32_t Tokenizer::size() const { return state_->vocabulary.size(); }
std::int32_t Tokenizer::bos() const { return state_->bos; }
std::int32_t Tokenizer::eos() const { return state_->eos; }
const std::vector<std::string>& Tokenizer::warnings() const { return state_->warnings; }
bool Tokenizer::adds_bos() const { return state_->adds_bos; }

std::optional<std::int32_t> Tokenizer::find_special(std::string_view text) const {
  const std::int32_t id = state_->vocabulary.find(text);
  if (id < 0) return std::nullopt;
  const TokenKind kind = state_->vocabulary[id].kind;
  if (kind != TokenKind::control && kind != TokenKind::user_defined) return std::nullopt;
  return id;
}

}  // namespace headwater::runtime
