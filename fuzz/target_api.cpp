// libFuzzer target: any body of a request to `headwater serve`. It is refused in one line, or what it asks for can be sampled and
// answered in every form. The first byte chooses the path.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands/serve/api_answer.hpp"
#include "cli/commands/serve/api_request.hpp"
#include "headwater/error.hpp"
#include "runtime/generate/sampler.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace {

using namespace headwater;
using namespace headwater::cli;
using Json = nlohmann::json;
using runtime::Completion;

void must(bool holds) {
  if (!holds) std::abort();
}

const ServedModel& model() {
  static const runtime::GgufFile file = runtime::GgufFile::open(FIXTURES "/tiny.gguf");
  static const auto tokenizer = runtime::testing::tiny_with("qwen2").build();
  static const runtime::ChatTemplate chat(file, *tokenizer, "chatml");
  static const ServedModel one{
      "tiny", *tokenizer, &chat, 4096, -1, 4, std::make_shared<const runtime::TokenTexts>(*tokenizer)};
  return one;
}

void answer(const ApiRequest& asked) {
  AnswerWriter writer(asked, model(), "id", 1);
  const auto check = [](const std::vector<ServerEvent>& events) {
    for (const ServerEvent& event : events) {
      must(event.data == "[DONE]" || Json::parse(event.data).is_object());
      must(event.data.find('\n') == std::string::npos);
    }
  };
  const int choices = static_cast<int>(asked.prompts.size()) * asked.n;
  for (int choice = 0; choice < choices; ++choice) {
    const runtime::CompletionRequest& one = asked.prompts[static_cast<std::size_t>(choice / asked.n)];
    Completion::Event event;
    event.prompt_done = 1;
    check(writer.on_event(choice, event, {}));
    event.prompt_done = 0;
    event.text = model().tokenizer.piece(one.prompt.back());
    event.tokens.push_back({{one.prompt.back(), -1}, {{one.prompt.front(), -2}}});
    check(writer.on_event(choice, event, {}));
    event.end = choice % 2 == 0 ? Completion::End::stop : Completion::End::error;
    check(writer.on_event(choice, event, {}));
  }
  check(writer.end());
  must(Json::parse(writer.whole()).is_object());
}

void ask(std::uint8_t path, const Json& body) {
  switch (path % 7) {
    case 0: (void)tokenize(body, model()); return;
    case 1: (void)detokenize(body, model()); return;
    case 2: (void)apply_template(body, model()); return;
    default: break;
  }
  constexpr ApiRequest (*kForms[])(const Json&, const ServedModel&) = {parse_chat, parse_text, parse_native,
                                                                       parse_responses};
  const ApiRequest asked = kForms[path % 7 - 3](body, model());
  must(!asked.prompts.empty() && asked.n >= 1 && asked.n <= 4);
  for (const runtime::CompletionRequest& one : asked.prompts) {
    must(!one.prompt.empty() && std::ssize(one.prompt) < model().context && one.max_tokens >= -1);
    for (const std::int32_t id : one.prompt) must(id >= 0 && id < model().tokenizer.size());
    runtime::Sampler sampler(one.sampling, model().tokenizer.size());
    const std::vector<float> logits(static_cast<std::size_t>(model().tokenizer.size()), 1.0F);
    try {
      for (int i = 0; i < 4; ++i) sampler.accept(sampler.draw(logits));
    } catch (const Error&) {
      must(one.sampling.answer.grammar != nullptr);  // which takes too much, or characters without a token
    }
  }
  answer(asked);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  try {
    ask(data[0], parse_body({reinterpret_cast<const char*>(data) + 1, size - 1}));
  } catch (const ApiError& error) {
    must(error.status() >= 400 && error.status() < 500);
    must(std::string_view(error.what()).find('\n') == std::string_view::npos);
    (void)error.body().dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return 0;
}
