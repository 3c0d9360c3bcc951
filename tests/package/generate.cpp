#include <cstdio>
#include <headwater/headwater.hpp>
#include <memory>
#include <runtime/generate/conversation.hpp>
#include <runtime/generate/sampler.hpp>
#include <runtime/tokenizer/tokenizer.hpp>

int main(int count, char** arguments) try {
  using namespace headwater::runtime;
  if (count != 3) return std::fputs("usage: generate MODEL.gguf PROMPT\n", stderr), 2;
  const auto file = std::make_shared<const GgufFile>(GgufFile::open(arguments[1]));
  const auto tokenizer = Tokenizer::from_gguf(*file);
  Transformer transformer(Model::load(file, {}), {.capacity = 4096});
  Conversation conversation(transformer, 64);
  conversation.feed(tokenizer->encode(arguments[2], true, true));
  StreamDecoder text(*tokenizer);
  for (int i = 0; i < 32; ++i) {
    const std::int32_t id = best_token(conversation.logits());
    if (tokenizer->is_end(id)) break;
    std::fputs(text.push(id).c_str(), stdout);
    conversation.append(id);
  }
  std::puts(text.finish().c_str());
} catch (const headwater::Error& error) {
  return std::fprintf(stderr, "%s\n", error.what()), 1;
}
