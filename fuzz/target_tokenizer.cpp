// libFuzzer target: any text, in six tokenizers: ids of the vocabulary, the text back, whole characters in a stream.
// The first byte chooses the tokenizer, the second whether control tokens are looked for.

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "runtime/support/utf8.hpp"
#include "tests/tokenizer/vocabularies.hpp"

namespace {

using namespace headwater::runtime;

const Tokenizer& tokenizer(std::uint8_t which) {
  static const std::unique_ptr<Tokenizer> all[] = {testing::tiny_with("qwen2").build(),
                                                   testing::tiny_with("llama-bpe").build(),
                                                   testing::tiny_with("gpt-2").build(),
                                                   testing::tiny_with("default").build(),
                                                   testing::open_tokenizer(FIXTURES "/sentence.gguf"),
                                                   testing::tiny_with("smollm").build()};
  return *all[which % 6];
}

void stream(const Tokenizer& t, const std::vector<std::int32_t>& ids) {
  StreamDecoder decoder(t);
  std::string all;
  std::string bytes;
  for (const std::int32_t id : ids) {
    const std::string text = decoder.push(id);
    if (first_ill_formed_utf8(text)) std::abort();
    all += text;
    if (!t.is_control(id)) bytes += t.piece(id);
  }
  if (all + decoder.finish() != well_formed_utf8(bytes)) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const Tokenizer& t = tokenizer(data[0]);
  const bool parse_special = (data[1] & 1) != 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const std::vector<std::int32_t> ids = t.encode(text, true, parse_special);
  stream(t, ids);
  const bool sentence = data[0] % 6 == 4;  // it reads "▁" as a space, so it does not give every text back
  if (!parse_special && !sentence && t.decode(ids) != well_formed_utf8(text)) std::abort();
  return 0;
}
