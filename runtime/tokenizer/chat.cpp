#include "runtime/tokenizer/chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "headwater/error.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/jinja/render.hpp"

namespace headwater::runtime {
namespace {

struct Family {
  std::string_view name;
  std::vector<std::string_view> markers;  ///< that the vocabulary must have
  std::vector<std::string_view> known_by;
  bool begins;  ///< with a token of its own
  std::string_view text;
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"chatml",
       {"<|im_start|>", "<|im_end|>"},
       {"<|im_start|>", "<|im_end|>"},
       false,
       "{% for message in messages %}"
       R"({{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }})"
       R"({% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %})"},
      {"llama3",
       {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       {"<|start_header_id|>", "<|eot_id|>"},
       true,
       "{{ '<|begin_of_text|>' }}{% for message in messages %}"
       R"({{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim }})"
       R"({{ '<|eot_id|>' }}{% endfor %})"
       R"({% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %})"}};
  return all;
}

const Family* family_named(std::string_view name) {
  for (const Family& family : families()) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

// Where a byte of what was written is from; 0: from the template.
constexpr char kText = 1;
constexpr char kQuestion = 2;  // the last one
constexpr char kAnswer = 3;    // the assistant's last message

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Honest templates take some 40 steps for a message, and make a text of it a few times.
constexpr std::size_t kUnits = std::size_t{1} << 25U;
constexpr std::size_t kUnitsOfMessage = 4000;
constexpr std::size_t kUnitsOfByte = 64;

template <class Work>
auto within(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("chat template: {}; --chat-template (in Python chat_template) chooses another: "
                            "chatml, llama3, or a file",
                            error.what()));
  }
}

/// The text of `token`; none is undefined, as in transformers.
void add_token(std::vector<std::pair<std::string, jinja::Value>>& variables, const char* name,
               std::int32_t token, const Tokenizer& tokenizer) {
  if (token >= 0)
    variables.emplace_back(name, jinja::Value(std::string_view(well_formed_utf8(tokenizer.piece(token)))));
}

using Json = nlohmann::ordered_json;
using Items = std::vector<std::pair<jinja::Value, jinja::Value>>;

/// JSON as a value of the language; its texts are not the template's.
jinja::Value value_of(const Json& json, int depth = 0) {
  constexpr int kMostDepth = 64;
  if (depth > kMostDepth) jinja::refuse(fmt::format("JSON of more than {} levels", kMostDepth));
  const auto text_value = [](const std::string& text) { return jinja::Value(jinja::Text(text, kText)); };
  switch (json.type()) {
    case Json::value_t::boolean: return jinja::Value(json.get<bool>());
    case Json::value_t::number_integer: return jinja::Value(json.get<std::int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<std::uint64_t>() <= std::uint64_t{1} << 62) return jinja::Value(json.get<std::int64_t>());
      return jinja::Value(json.get<double>());
    case Json::value_t::number_float: return jinja::Value(json.get<double>());
    case Json::value_t::string: return text_value(json.get<std::string>());
    case Json::value_t::array: {
      std::vector<jinja::Value> items;
      for (const Json& one : json) items.push_back(value_of(one, depth + 1));
      return jinja::Value(std::move(items));
    }
    case Json::value_t::object: {
      Items items;
      for (const auto& [key, value] : json.items())
        items.emplace_back(text_value(key), value_of(value, depth + 1));
      return jinja::Value(std::move(items));
    }
    default: return jinja::Value(jinja::None{});
  }
}

/// A list of JSON. Error(invalid_argument) where it is none.
Json list_of(std::string_view text, const char* what) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_array()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} are no JSON list; allowed: [...]", what));
  }
  return json;
}

/// Clients write arguments as a text of JSON; templates print them as JSON.
Json calls_of(const ChatMessage& message) {
  Json calls = list_of(message.tool_calls, "tool_calls");
  for (Json& call : calls) {
    Json* const function = call.is_object() && call.contains("function") ? &call["function"] : nullptr;
    if (function == nullptr || !function->is_object() || !function->contains("arguments")) continue;
    Json& arguments = (*function)["arguments"];
    if (!arguments.is_string()) continue;
    Json parsed = Json::parse(arguments.get_ref<const std::string&>(), nullptr, false);
    if (parsed.is_object()) arguments = std::move(parsed);
  }
  return calls;
}

jinja::Value message_value(const ChatMessage& message, char mark, char question) {
  jinja::Text content(well_formed_utf8(message.text), mark);
  content.append(jinja::Text(well_formed_utf8(message.question), question));
  Items items;
  items.emplace_back(jinja::Value("role"), jinja::Value(std::string_view(message.role)));
  items.emplace_back(jinja::Value("content"), jinja::Value(std::move(content)));
  if (!message.tool_calls.empty())
    items.emplace_back(jinja::Value("tool_calls"), value_of(calls_of(message)));
  for (const auto& [key, text] :
       {std::pair{"tool_call_id", &message.tool_call_id}, std::pair{"name", &message.name}}) {
    if (!text->empty())
      items.emplace_back(jinja::Value(key), jinja::Value(jinja::Text(well_formed_utf8(*text), kText)));
  }
  return jinja::Value(std::move(items));
}

std::size_t last_answer(std::span<const ChatMessage> messages) {
  for (std::size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "assistant") return i;
  }
  return kNone;
}

}  // namespace

ChatTemplate::ChatTemplate(const GgufFile& file, const Tokenizer& tokenizer, std::string_view chosen)
    : tokenizer_(&tokenizer) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  const Family* family = family_named(chosen);
  std::string_view text = family != nullptr ? family->text : chosen;
  if (text.empty()) text = file.text_or(kKey, "");
  for (std::size_t i = 0; text.empty() && i < families().size(); ++i) {
    const auto has = [&](std::string_view marker) { return tokenizer.find_special(marker).has_value(); };
    const Family& one = families()[i];
    if (!std::all_of(one.known_by.begin(), one.known_by.end(), has)) continue;
    family = &one;
    text = one.text;
  }
  within([&] {
    if (text.empty()) {
      jinja::refuse(
          "the file has none, and its vocabulary has the control tokens of neither ChatML nor Llama 3");
    }
    if (family != nullptr) {
      begins_ = family->begins;
      for (const std::string_view marker : family->markers) {
        if (!tokenizer.find_special(marker))
          jinja::refuse(fmt::format("{}: the vocabulary has no token {}", family->name, quoted(marker)));
      }
    }
    root_ = jinja::parse(text);
    const auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
    if (has("tools")) {
      tools_ = has("<tool_call>")                                ? Tools::tagged
               : has("\"parameters\":") && !has("\"arguments\"") ? Tools::parameters
                                                                 : Tools::arguments;
    }
  });
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

bool ChatTemplate::is_family(std::string_view name) { return family_named(name) != nullptr; }

jinja::Text ChatTemplate::render(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                 std::time_t now, std::size_t answer, std::string_view tools) const {
  std::size_t asked = kNone;
  std::size_t units = kUnits;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (message.role != "system" && message.role != "user" && message.role != "assistant" &&
        message.role != "tool") {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("role {} is not known; allowed: system, user, assistant, tool",
                              runtime::quoted(message.role)));
    }
    if (!message.question.empty()) asked = i;
    units += kUnitsOfMessage +
             kUnitsOfByte * (message.text.size() + message.question.size() + message.tool_calls.size());
  }
  units += kUnitsOfByte * tools.size();
  return within([&] {
    std::vector<jinja::Value> all;
    for (std::size_t i = 0; i < messages.size(); ++i)
      all.push_back(
          message_value(messages[i], i == answer ? kAnswer : kText, i == asked ? kQuestion : kText));
    std::vector<std::pair<std::string, jinja::Value>> variables;
    variables.emplace_back("messages", jinja::Value(std::move(all)));
    variables.emplace_back("add_generation_prompt", jinja::Value(add_generation_prompt));
    variables.emplace_back("tools",
                           tools.empty() ? jinja::Value(jinja::None{}) : value_of(list_of(tools, "tools")));
    variables.emplace_back("documents", jinja::Value(jinja::None{}));
    add_token(variables, "bos_token", tokenizer_->bos(), *tokenizer_);
    add_token(variables, "eos_token", tokenizer_->eos(), *tokenizer_);
    return jinja::render(*root_, variables, units, now);
  });
}

std::string ChatTemplate::rendered(std::span<const ChatMessage> messages, bool add_generation_prompt,
                                   std::time_t now, std::string_view tools) const {
  return render(messages, add_generation_prompt, now, kNone, tools).bytes;
}

ChatTurn ChatTemplate::encode(const jinja::Text& text, bool opens) const {
  ChatTurn turn;
  const std::string_view all = text.bytes;
  const std::size_t asked = std::min(text.marks.find(kQuestion), all.size());
  bool after_token = opens;
  // Text that holds no special token of the template's: words form across the borders of messages, as in training.
  const auto add_text = [&](std::size_t begin, std::size_t end) {
    const auto add = [&](std::size_t from, std::size_t to) {
      if (from == to) return;
      if (from == asked) turn.question = turn.ids.size();
      const std::string_view part = all.substr(from, to - from);
      const std::vector<std::int32_t> more =
          after_token ? tokenizer_->encode(part, false, false) : tokenizer_->encode_more(part, false);
      turn.ids.insert(turn.ids.end(), more.begin(), more.end());
      after_token = false;
    };
    const std::size_t middle = std::clamp(asked, begin, end);
    add(begin, middle);
    add(middle, end);
  };
  std::size_t done = 0;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = text.marks.empty() ? all.size() : begin;
    while (end < all.size() && text.marks[end] == text.marks[begin]) ++end;
    const std::string_view run = all.substr(begin, end - begin);
    for (std::size_t at = 0; text.mark(begin) == 0 && at < run.size();) {
      const Tokenizer::SpecialText special = tokenizer_->next_special(run, at);
      if (special.length == 0) break;
      add_text(done, begin + special.begin);
      turn.ids.push_back(special.id);
      after_token = true;
      at = special.begin + special.length;
      done = begin + at;
    }
    begin = end;
  }
  add_text(done, all.size());
  if (opens && tokenizer_->adds_bos() && !begins_ &&
      (turn.ids.empty() || turn.ids.front() != tokenizer_->bos())) {
    turn.ids.insert(turn.ids.begin(), tokenizer_->bos());
    if (asked < all.size()) ++turn.question;
  }
  return turn;
}

ChatTurn ChatTemplate::begin(std::span<const ChatMessage> messages, std::string_view tools) const {
  return encode(render(messages, true, std::time(nullptr), kNone, tools), true);
}

ChatTurn ChatTemplate::go_on(std::span<const ChatMessage> messages) const {
  const std::size_t answer = last_answer(messages);
  const std::time_t now = std::time(nullptr);
  const jinja::Text all = render(messages, true, now, answer);
  if (answer != kNone && answer > 0) {
    const jinja::Text fed = render(messages.first(answer), true, now, kNone);
    const std::size_t first = std::min(all.marks.find(kAnswer), all.bytes.size());
    if (all.bytes.starts_with(fed.bytes) && first >= fed.bytes.size()) {
      const std::size_t last = all.marks.rfind(kAnswer);
      const std::size_t end = last == std::string::npos ? fed.bytes.size() : last + 1;
      return encode(all.part(end, std::string::npos), false);
    }
  }
  ChatTurn turn = encode(all, true);
  turn.anew = true;
  return turn;
}

ChatTurn ChatTemplate::go_on_after_unknown(std::span<const ChatMessage> messages) const {
  std::vector<ChatMessage> all = {{"user", "x"}, {"assistant", "x"}};
  all.insert(all.end(), messages.begin(), messages.end());
  const jinja::Text text = render(all, true, std::time(nullptr), 1);
  const std::size_t last = text.marks.rfind(kAnswer);
  if (last == std::string::npos) {
    within([] {
      jinja::refuse("it leaves out what the assistant said, so that the turns before must be known");
    });
  }
  ChatTurn turn = encode(text.part(last + 1, std::string::npos), false);
  const std::optional<std::int32_t> end = turn_end();
  const auto closed = end ? std::find(turn.ids.begin(), turn.ids.end(), *end) : turn.ids.end();
  if (closed != turn.ids.end()) {
    const auto length = static_cast<std::size_t>(closed - turn.ids.begin()) + 1;
    turn.ids.erase(turn.ids.begin(), closed + 1);
    turn.question -= std::min(turn.question, length);
  }
  return turn;
}

std::optional<std::int32_t> ChatTemplate::turn_end() const {
  const ChatMessage both[] = {{"user", "x"}, {"assistant", "x"}};
  const jinja::Text text = render(both, false, std::time(nullptr), 1);
  const std::size_t last = text.marks.rfind(kAnswer);
  if (last == std::string::npos) return std::nullopt;
  const std::string_view behind = std::string_view(text.bytes).substr(last + 1);
  const Tokenizer::SpecialText special = tokenizer_->next_special(behind, 0);
  return special.length > 0 ? std::optional(special.id) : std::nullopt;
}

}  // namespace headwater::runtime
