#include "cli/commands/generate/turn.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/support/failure.hpp"
#include "cli/support/text.hpp"
#include "headwater/preset.hpp"
#include "runtime/tokenizer/chat.hpp"

namespace headwater::cli {
namespace {

using Ids = std::vector<std::int32_t>;

Turn encode_chat(const GenerateFlags& flags, const LoadedModel& model, const Words& words, bool first,
                 bool ended) {
  const runtime::Tokenizer& tokenizer = model.tokenizer();
  const auto format = runtime::chat_format_of(tokenizer);
  if (!format) {
    throw Failure(fmt::format("--chat: {} has the control tokens of neither ChatML nor Llama 3",
                              in_quotes(flags.model.model)));
  }
  std::vector<runtime::ChatMessage> messages;
  if (first && flags.system) messages.push_back({"system", *flags.system});
  messages.push_back({"user", words.text, words.question});
  std::size_t begin = 0;
  Ids ids = runtime::encode_chat(tokenizer, *format, messages, first, &begin);
  const std::size_t question = words.question.empty() ? 0 : ids.size() - begin;
  if (!first && !ended) {
    const auto end = tokenizer.find_special(runtime::end_of_turn(*format));
    if (end) ids.insert(ids.begin(), *end);
  }
  return {std::move(ids), static_cast<std::int64_t>(question)};
}

}  // namespace

Turn encode_turn(const GenerateFlags& flags, const LoadedModel& model, const Words& words, bool first,
                 bool ended) {
  if (flags.chat) return encode_chat(flags, model, words, first, ended);
  const runtime::Tokenizer& tokenizer = model.tokenizer();
  if (words.question.empty()) return {tokenizer.encode(words.text, first, first), 0};
  Ids ids;
  if (tokenizer.adds_bos()) ids.push_back(tokenizer.bos());
  const Ids document = tokenizer.encode(words.text, false, true);
  const Ids question = tokenizer.encode_more(words.question, true);
  ids.insert(ids.end(), document.begin(), document.end());
  ids.insert(ids.end(), question.begin(), question.end());
  return {std::move(ids), static_cast<std::int64_t>(question.size())};
}

std::int64_t dense_tail_of(const GenerateFlags& flags, const Turn& turn) {
  return flags.dense_tail.value_or(turn.question > 0 ? turn.question : kDenseTail);
}

void check_prompt(const std::string& what, std::int64_t tokens, const LoadedModel& model) {
  if (tokens <= model.context()) return;
  const bool asked = model.flags().context.has_value();
  throw Failure(fmt::format("{} has {}, but the context {} ({}); use a shorter prompt{}", what,
                            count_text(tokens, "token"), model.context(), asked ? "-c" : "of the model",
                            asked ? " or a larger -c" : ", or -c at the price of quality"));
}

}  // namespace headwater::cli
