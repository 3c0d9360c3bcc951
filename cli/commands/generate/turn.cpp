#include "cli/commands/generate/turn.hpp"

#include <fmt/format.h>

#include <utility>

#include "cli/support/failure.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "headwater/preset.hpp"

namespace headwater::cli {
namespace {

using Ids = std::vector<std::int32_t>;

Turn encode_chat(const GenerateFlags& flags, const runtime::ChatTemplate& chat, const Words& words,
                 std::span<const runtime::ChatMessage> said) {
  Turn turn;
  if (said.empty() && flags.system) turn.messages.push_back({"system", *flags.system});
  turn.messages.push_back({"user", words.text, words.question});
  std::vector<runtime::ChatMessage> all(said.begin(), said.end());
  all.insert(all.end(), turn.messages.begin(), turn.messages.end());
  runtime::ChatTurn written = said.empty() ? chat.begin(all) : chat.go_on(all);
  // A template that leaves the question out has none that could be dense.
  if (!words.question.empty() && written.question > 0)
    turn.question = static_cast<std::int64_t>(written.ids.size() - written.question);
  turn.ids = std::move(written.ids);
  turn.anew = written.anew;
  return turn;
}

}  // namespace

Turn encode_turn(const GenerateFlags& flags, const LoadedModel& model, const runtime::ChatTemplate* chat,
                 const Words& words, bool first, std::span<const runtime::ChatMessage> said) {
  if (chat != nullptr) return encode_chat(flags, *chat, words, said);
  const runtime::Tokenizer& tokenizer = model.tokenizer();
  Turn turn;
  if (words.question.empty()) {
    turn.ids = tokenizer.encode(words.text, first && !flags.no_bos, first);
    return turn;
  }
  Ids& ids = turn.ids;
  if (tokenizer.adds_bos() && !flags.no_bos) ids.push_back(tokenizer.bos());
  const Ids document = tokenizer.encode(words.text, false, true);
  const Ids question = tokenizer.encode_more(words.question, true);
  ids.insert(ids.end(), document.begin(), document.end());
  ids.insert(ids.end(), question.begin(), question.end());
  turn.question = static_cast<std::int64_t>(question.size());
  return turn;
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
