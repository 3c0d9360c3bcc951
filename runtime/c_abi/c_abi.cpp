// The C ABI of runtime.h over the C++ classes of the runtime. Every argument is checked by name, every exception becomes a
// status.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "bindings/c_abi_support.hpp"
#include "headwater/preset.hpp"
#include "headwater/runtime.h"
#include "runtime/generate/conversation.hpp"
#include "runtime/generate/model_file.hpp"
#include "runtime/generate/sampler.hpp"
#include "runtime/generate/teacher_forcing.hpp"
#include "runtime/model/threads.hpp"
#include "runtime/support/utf8.hpp"
#include "runtime/tokenizer/chat.hpp"

using namespace headwater::c_abi;  // the helpers of bindings/
using headwater::DType;
using headwater::Error;
using headwater::ErrorCode;
namespace runtime = headwater::runtime;

struct headwater_model {
  std::shared_ptr<runtime::ModelFile> file;
  std::string name;
  std::string warnings;  // a line each
  runtime::Precision precision;
  std::string chat_template;                         // empty: the file's own
  std::shared_ptr<const runtime::TokenTexts> texts;  // of all restricted samplers; keeps the file
};

struct headwater_conversation {
  headwater_conversation(const std::shared_ptr<const runtime::Model>& model,
                         const runtime::TransformerOptions& options, std::int64_t dense_tail)
      : transformer(model, options), talk(transformer, dense_tail) {
    seen.session.reset(&transformer.session());
  }
  /// A fork.
  explicit headwater_conversation(headwater_conversation& from)
      : transformer(from.transformer, 0), talk(transformer, from.talk) {
    seen.session.reset(&transformer.session());
  }
  ~headwater_conversation() { (void)seen.session.release(); }
  headwater_conversation(const headwater_conversation&) = delete;
  headwater_conversation& operator=(const headwater_conversation&) = delete;

  runtime::Transformer transformer;
  runtime::Conversation talk;
  headwater_session seen;  // borrows the transformer's
  headwater_interrupt interrupt = nullptr;
  void* user = nullptr;
};

struct headwater_sampler {
  runtime::SamplingOptions options;
  std::int64_t vocabulary;
  runtime::Sampler sampler;
  bool begun = false;  // a token was drawn or accepted
};

namespace {

constexpr std::int64_t kMostElements = std::numeric_limits<std::int32_t>::max();
// Sizes of HEADWATER_RUNTIME_ABI_VERSION 1: the least that any caller can know. Never change these numbers.
constexpr std::size_t kFactsSize1 = 112;
constexpr std::size_t kModelOptionsSize1 = 64;
constexpr std::size_t kConversationOptionsSize1 = 48;
constexpr std::size_t kSamplingSize1 = 48;
constexpr std::size_t kMessageSize1 = 40;
static_assert(sizeof(headwater_model_facts) >= kFactsSize1);
static_assert(sizeof(headwater_model_options) >= kModelOptionsSize1);
static_assert(sizeof(headwater_conversation_options) >= kConversationOptionsSize1);
static_assert(sizeof(headwater_sampling) >= kSamplingSize1);
static_assert(sizeof(headwater_chat_message) >= kMessageSize1);

bool flag(std::int32_t value, const char* field) {
  check_range(value, 0, 1, field);
  return value == 1;
}

/// `count` elements of the caller.
template <class Element>
std::span<const Element> elements(const Element* data, std::int64_t count, const std::string& name,
                                  const std::string& count_name) {
  check_range(count, 0, kMostElements, count_name);
  if (count > 0) needed(data, name);
  return {data, static_cast<std::size_t>(count)};
}

std::string_view text_of(const char* text, std::int64_t bytes, const std::string& name,
                         const std::string& bytes_name) {
  const std::span<const char> all = elements(text, bytes, name, bytes_name);
  return {all.data(), all.size()};
}

/// The caller's array for a result of any length.
template <class Element>
class Room {
 public:
  Room(Element* data, std::int64_t capacity, std::int64_t* count, const char* name)
      : data_(data), capacity_(capacity), count_(needed(count, "count")) {
    check_range(capacity, 0, kMostElements, "capacity");
    if (capacity > 0) needed(data, name);
  }
  template <class Result>
  void take(const Result& result) const {
    const auto all = static_cast<std::int64_t>(result.size());
    std::copy_n(result.begin(), std::min(all, capacity_), data_);
    *count_ = all;
  }

 private:
  Element* data_;
  std::int64_t capacity_;
  std::int64_t* count_;
};

/// A structure of the caller that may be shorter or longer than this library's.
template <class Struct>
Struct struct_of(const void* from, std::size_t size, std::size_t smallest, const std::string& name) {
  check_struct_size(size, smallest, name + ".struct_size");
  const auto* bytes = static_cast<const unsigned char*>(from);
  check_unknown(bytes, size, sizeof(Struct), name);
  Struct known{};
  std::memcpy(&known, bytes, std::min(size, sizeof known));
  return known;
}

const runtime::ModelFile& file_of(const headwater_model* model) { return *needed(model, "model")->file; }

headwater_conversation& open(headwater_conversation* conversation) {
  return *needed(conversation, "conversation");
}
const headwater_conversation& open(const headwater_conversation* conversation) {
  return *needed(conversation, "conversation");
}

runtime::ChatTemplate chat_template_of(const headwater_model& model) {
  return {model.file->file(), model.file->tokenizer(), model.chat_template};
}

/// A model that cannot chat has its facts all the same.
std::int32_t turn_end(const headwater_model& model) {
  try {
    return chat_template_of(model).turn_end().value_or(-1);
  } catch (const headwater::Error&) {
    return -1;
  }
}

std::vector<runtime::ChatMessage> messages_of(const headwater_chat_message* messages, std::int64_t count,
                                              std::size_t size) {
  constexpr std::int64_t kMostMessages = 65536;
  check_range(count, 1, kMostMessages, "message_count");
  needed(messages, "messages");
  std::vector<runtime::ChatMessage> all;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(messages) + static_cast<std::size_t>(i) * size;
    const std::string name = "messages[" + std::to_string(i) + "]";
    const auto from = struct_of<headwater_chat_message>(bytes, size, kMessageSize1, name);
    all.push_back({needed(from.role, name + ".role"),
                   std::string(text_of(from.text, from.text_bytes, name + ".text", name + ".text_bytes")),
                   std::string(text_of(from.question, from.question == nullptr ? 0 : from.question_bytes,
                                       name + ".question", name + ".question_bytes"))});
  }
  return all;
}

/// In the order of HEADWATER_PROJECTIONS_F32 and what follows it.
constexpr runtime::Precision kPrecisions[] = {runtime::Precision::f32, runtime::Precision::bf16,
                                              runtime::Precision::int8};
static_assert(HEADWATER_PROJECTIONS_BF16 == HEADWATER_PROJECTIONS_F32 + 1 &&
              HEADWATER_PROJECTIONS_INT8 == HEADWATER_PROJECTIONS_F32 + 2);

runtime::Precision precision_of(std::int32_t projections) {
  check_range(projections, 0, HEADWATER_PROJECTIONS_INT8, "projections");
  if (projections == HEADWATER_PROJECTIONS_AUTO) return runtime::automatic_precision();
  const runtime::Precision precision = kPrecisions[projections - HEADWATER_PROJECTIONS_F32];
  const std::string missing = runtime::missing_for(precision);
  if (!missing.empty()) {
    invalid(fmt::format("projections is {}: {} needs a processor with {}, this one has {}; allowed: 0, 1",
                        projections, runtime::precision_name(precision), missing, runtime::product_isa()));
  }
  return precision;
}

/// What is set, by its field's name.
std::vector<runtime::Replacement> replacements_of(const headwater_model_options& options) {
  constexpr const char* kKinds[] = {"", "none", "linear", "yarn"};
  check_range(options.rope_scaling, 0, HEADWATER_ROPE_SCALING_YARN, "rope_scaling");
  std::vector<runtime::Replacement> all;
  if (options.rope_scaling != HEADWATER_ROPE_SCALING_FILE)
    all.push_back({"rope.scaling.type", std::string(kKinds[options.rope_scaling]), "rope_scaling"});
  struct Number {
    const char* key;
    double value;
    const char* name;
  };
  for (const Number& number : {Number{"rope.scaling.factor", options.rope_scale, "rope_scale"},
                               {"rope.freq_base", options.rope_freq_base, "rope_freq_base"},
                               {"rope.scaling.attn_factor", options.yarn_attn_factor, "yarn_attn_factor"},
                               {"rope.scaling.yarn_beta_fast", options.yarn_beta_fast, "yarn_beta_fast"},
                               {"rope.scaling.yarn_beta_slow", options.yarn_beta_slow, "yarn_beta_slow"}}) {
    if (number.value != 0) all.push_back({number.key, static_cast<float>(number.value), number.name});
  }
  if (options.yarn_orig_ctx != 0)
    all.push_back({"rope.scaling.original_context_length", options.yarn_orig_ctx, "yarn_orig_ctx"});
  return all;
}

/// Refuses what is the model's, and what would take rows away from the transformer.
void check_attention(const headwater::Options& options) {
  const std::pair<const char*, bool> fields[] = {
      {"scale", options.scale.has_value()},
      {"softcap", options.softcap != 0},
      {"sinks", !options.sinks.empty()},
      {"alibi", !options.alibi.empty()},
      {"layers", !options.layers.empty()},
      {"kv_owner", options.kv_owner != headwater::KvOwner::session},
      {"row_memory", options.row_memory != headwater::RowMemory::host},
      {"stream", options.stream != nullptr}};
  for (const auto& [name, set] : fields) {
    if (set) invalid(fmt::format("attention.{} is set, and the model decides; allowed: the default", name));
  }
}

DType cache_type_of(std::int32_t type, runtime::Precision precision) {
  check_range(type, 0, HEADWATER_CACHE_Q8_0, "options.cache_type");
  if (type == HEADWATER_CACHE_AUTO || type == HEADWATER_CACHE_Q8_0)
    return row_precision(precision) == runtime::Precision::bf16 ? DType::bf16 : DType::f16;
  return dtype(type - 1, "options.cache_type");
}
static_assert(HEADWATER_CACHE_F32 - 1 == HEADWATER_F32 && HEADWATER_CACHE_F16 - 1 == HEADWATER_F16 &&
              HEADWATER_CACHE_BF16 - 1 == HEADWATER_BF16);

headwater_conversation_options default_conversation() {
  headwater_conversation_options options{};
  options.dense_tail = headwater::kDenseTail;
  return options;
}

headwater_sampling sampling_of(const runtime::SamplingOptions& options) {
  return {0, options.temperature, options.top_k, options.top_p, options.min_p, options.seed};
}

/// The tokenizer lives as long as the texts.
std::shared_ptr<const runtime::TokenTexts> texts_of(const std::shared_ptr<const runtime::ModelFile>& file) {
  struct Kept {
    std::shared_ptr<const runtime::ModelFile> file;
    runtime::TokenTexts texts;
  };
  const std::shared_ptr<const Kept> kept(new Kept{file, runtime::TokenTexts(file->tokenizer())});
  return {kept, &kept->texts};
}

std::shared_ptr<const runtime::Grammar> grammar_of(std::int32_t kind, std::string_view text) {
  check_range(kind, HEADWATER_GRAMMAR_GBNF, HEADWATER_GRAMMAR_JSON_OBJECT, "kind");
  if (kind == HEADWATER_GRAMMAR_GBNF) return runtime::Grammar::gbnf(text);
  if (kind == HEADWATER_GRAMMAR_JSON_SCHEMA) return runtime::Grammar::json_schema(text);
  if (!text.empty())
    invalid(fmt::format("bytes is {}, and kind is HEADWATER_GRAMMAR_JSON_OBJECT; allowed: 0", text.size()));
  return runtime::Grammar::json_object();
}

void check_ids(const headwater_conversation& conversation, std::span<const std::int32_t> ids) {
  const std::int64_t last = conversation.transformer.model().config().vocabulary - 1;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] > last) check_range(ids[i], 0, last, "ids[" + std::to_string(i) + "]");
  }
}

void stop_if_asked(const headwater_conversation& conversation) {
  if (conversation.interrupt == nullptr || conversation.interrupt(conversation.user) == 0) return;
  throw Error(ErrorCode::interrupted, "the interrupt asked to stop");
}

/// A call that changes the conversation, undone where it ends by an exception. What is refused has not begun.
template <class Call>
void changed_or_not(headwater_conversation& conversation, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    const bool refused =
        error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::capacity_exceeded;
    if (!refused) conversation.talk.recover();
    throw;
  } catch (...) {
    conversation.talk.recover();
    throw;
  }
}

/// Resets a conversation when a scope ends, also by an exception.
class Emptied {
 public:
  explicit Emptied(runtime::Conversation& talk) : talk_(talk) { talk.reset(); }
  ~Emptied() {
    try {
      talk_.reset();
    } catch (const std::exception&) {  // the next call says it
    }
  }
  Emptied(const Emptied&) = delete;
  Emptied& operator=(const Emptied&) = delete;

 private:
  runtime::Conversation& talk_;
};

/// The ids of a window that these conversations can hold, checked: n - decode of a turn, then decode of a step.
std::span<const std::int32_t> window_of(std::initializer_list<const headwater_conversation*> conversations,
                                        const int32_t* ids, int64_t n, int64_t decode) {
  check_range(n, 2, kMostElements, "n");
  const std::span<const std::int32_t> window = elements(ids, n, "ids", "n");
  check_range(decode, 0, n - 1, "decode");
  for (const headwater_conversation* const conversation : conversations) {
    const std::int64_t capacity = conversation->transformer.session().shape().capacity;
    if (n > capacity) {
      throw Error(ErrorCode::capacity_exceeded,
                  fmt::format("a window of {} tokens does not fit; allowed: {}", n, capacity));
    }
    check_ids(*conversation, window);
  }
  return window;
}

}  // namespace

int32_t headwater_runtime_abi_version(void) { return HEADWATER_RUNTIME_ABI_VERSION; }

const char* headwater_runtime_last_error(void) { return last_error_text(); }

headwater_status headwater_model_open(const char* path, int32_t projections, headwater_model** model) {
  headwater_model_options options{};
  options.struct_size = sizeof options;
  options.projections = projections;
  return headwater_model_open_with(path, &options, model);
}

headwater_status headwater_model_options_init(headwater_model_options* options, size_t struct_size) {
  return guarded([&] {
    headwater_model_options filled{};
    filled.struct_size = struct_size;
    write_struct(options, struct_size, kModelOptionsSize1, filled, "options");
  });
}

headwater_status headwater_model_open_with(const char* path, const headwater_model_options* options,
                                           headwater_model** model) {
  return guarded([&] {
    *needed(model, "model") = nullptr;
    const headwater_model_options from =
        options == nullptr ? headwater_model_options{}
                           : struct_of<headwater_model_options>(options, options->struct_size,
                                                                kModelOptionsSize1, "options");
    const runtime::Precision precision = precision_of(from.projections);
    auto file = std::make_shared<runtime::ModelFile>(needed(path, "path"), replacements_of(from));
    std::string name = file->config().name;
    std::string warnings;
    for (const std::string& line : file->tokenizer().warnings()) warnings += line + "\n";
    auto texts = texts_of(file);
    *model = new headwater_model{std::move(file), std::move(name), std::move(warnings), precision, {},
                                 std::move(texts)};
  });
}

void headwater_model_close(headwater_model* model) { delete model; }

const char* headwater_model_name(const headwater_model* model) {
  const char* name = nullptr;
  guarded([&] { name = needed(model, "model")->name.c_str(); });
  return name;
}

const char* headwater_model_architecture(const headwater_model* model) {
  const char* name = nullptr;
  guarded([&] { name = file_of(model).config().architecture.c_str(); });
  return name;
}

const char* headwater_model_warnings(const headwater_model* model) {
  const char* lines = nullptr;
  guarded([&] { lines = needed(model, "model")->warnings.c_str(); });
  return lines;
}

headwater_status headwater_model_describe(const headwater_model* model, headwater_model_facts* facts,
                                          size_t struct_size) {
  return guarded([&] {
    const runtime::ModelFile& file = file_of(model);
    const runtime::ModelConfig& config = file.config();
    const runtime::Tokenizer& tokenizer = file.tokenizer();
    headwater_model_facts known{};
    known.layers = config.layers;
    known.width = config.width;
    known.heads = config.heads;
    known.heads_kv = config.heads_kv;
    known.d_head = config.d_head;
    known.d_value = config.d_value;
    known.feed_forward = config.feed_forward;
    known.vocabulary = config.vocabulary;
    known.tokens = tokenizer.size();
    known.context = config.context;
    known.bytes = static_cast<std::int64_t>(file.file().file_bytes());
    known.bos = tokenizer.bos();
    known.eos = tokenizer.eos();
    known.adds_bos = tokenizer.adds_bos() ? 1 : 0;
    known.turn_end = turn_end(*model);
    known.projections = HEADWATER_PROJECTIONS_F32 +
                        static_cast<std::int32_t>(
                            std::find(std::begin(kPrecisions), std::end(kPrecisions), model->precision) -
                            std::begin(kPrecisions));
    write_struct(facts, struct_size, kFactsSize1, known, "facts");
  });
}

headwater_status headwater_model_set_chat_template(headwater_model* model, const char* text, int64_t bytes) {
  return guarded([&] {
    const runtime::ModelFile& file = file_of(model);
    std::string chosen(text_of(text, bytes, "text", "bytes"));
    if (!chosen.empty()) (void)runtime::ChatTemplate(file.file(), file.tokenizer(), chosen);
    model->chat_template = std::move(chosen);
  });
}

headwater_status headwater_tokenize(const headwater_model* model, const char* text, int64_t bytes,
                                    int32_t add_special, int32_t parse_special, int32_t* ids,
                                    int64_t capacity, int64_t* count) {
  return guarded([&] {
    const runtime::Tokenizer& tokenizer = file_of(model).tokenizer();
    const Room<std::int32_t> room(ids, capacity, count, "ids");
    room.take(tokenizer.encode(text_of(text, bytes, "text", "bytes"), flag(add_special, "add_special"),
                               flag(parse_special, "parse_special")));
  });
}

headwater_status headwater_text_losses(const headwater_model* model, const char* text, int64_t bytes,
                                       int64_t* ill_formed, int64_t* without_token) {
  return guarded([&] {
    const runtime::Tokenizer& tokenizer = file_of(model).tokenizer();
    needed(ill_formed, "ill_formed");
    needed(without_token, "without_token");
    const std::string_view all = text_of(text, bytes, "text", "bytes");
    const auto place = [](std::optional<std::size_t> at) { return at ? static_cast<std::int64_t>(*at) : -1; };
    *ill_formed = place(runtime::first_ill_formed_utf8(all));
    *without_token = place(tokenizer.first_without_token(all));
  });
}

headwater_status headwater_detokenize(const headwater_model* model, const int32_t* ids, int64_t n, char* text,
                                      int64_t capacity, int64_t* count) {
  return guarded([&] {
    const runtime::Tokenizer& tokenizer = file_of(model).tokenizer();
    const Room<char> room(text, capacity, count, "text");
    room.take(tokenizer.decode(elements(ids, n, "ids", "n")));
  });
}

headwater_status headwater_token_piece(const headwater_model* model, int32_t id, char* piece,
                                       int64_t capacity, int64_t* count, int32_t* flags) {
  return guarded([&] {
    const runtime::Tokenizer& tokenizer = file_of(model).tokenizer();
    const Room<char> room(piece, capacity, count, "piece");
    needed(flags, "flags");
    const std::string bytes = tokenizer.piece(id);
    room.take(bytes);
    *flags = (tokenizer.is_control(id) ? HEADWATER_TOKEN_CONTROL : 0) |
             (tokenizer.is_end(id) ? HEADWATER_TOKEN_END : 0);
  });
}

headwater_status headwater_chat_encode(const headwater_model* model, const headwater_chat_message* messages,
                                       int64_t message_count, size_t message_size, int32_t first,
                                       int32_t* ids, int64_t capacity, int64_t* count, int64_t* question) {
  return guarded([&] {
    (void)file_of(model);
    const Room<std::int32_t> room(ids, capacity, count, "ids");
    needed(question, "question");
    const std::vector<runtime::ChatMessage> all = messages_of(messages, message_count, message_size);
    const bool opens = flag(first, "first");
    const runtime::ChatTemplate chat = chat_template_of(*model);
    const runtime::ChatTurn turn = opens ? chat.begin(all) : chat.go_on_after_unknown(all);
    room.take(turn.ids);
    *question = static_cast<std::int64_t>(turn.question);
  });
}

headwater_status headwater_chat_continue(const headwater_model* model, const headwater_chat_message* messages,
                                         int64_t message_count, size_t message_size, int32_t* ids,
                                         int64_t capacity, int64_t* count, int64_t* question, int32_t* anew) {
  return guarded([&] {
    (void)file_of(model);
    const Room<std::int32_t> room(ids, capacity, count, "ids");
    needed(question, "question");
    needed(anew, "anew");
    const std::vector<runtime::ChatMessage> all = messages_of(messages, message_count, message_size);
    const runtime::ChatTurn turn = chat_template_of(*model).go_on(all);
    room.take(turn.ids);
    *question = static_cast<std::int64_t>(turn.question);
    *anew = turn.anew ? 1 : 0;
  });
}

headwater_status headwater_conversation_options_init(headwater_conversation_options* options,
                                                     size_t struct_size) {
  return guarded([&] {
    headwater_conversation_options filled = default_conversation();
    filled.struct_size = struct_size;
    write_struct(options, struct_size, kConversationOptionsSize1, filled, "options");
  });
}

headwater_status headwater_conversation_open(headwater_model* model,
                                             const headwater_conversation_options* options,
                                             headwater_conversation** conversation) {
  return guarded([&] {
    *needed(conversation, "conversation") = nullptr;
    runtime::ModelFile& file = *needed(model, "model")->file;
    const runtime::ModelConfig& config = file.config();
    const headwater_conversation_options from =
        options == nullptr ? default_conversation()
                           : struct_of<headwater_conversation_options>(options, options->struct_size,
                                                                       kConversationOptionsSize1, "options");
    check_reserved(from.reserved, "options.reserved");
    check_range(from.capacity, 0, kMostElements, "options.capacity");
    check_range(from.dense_tail, 0, kMostElements, "options.dense_tail");
    runtime::TransformerOptions chosen;
    chosen.engine = from.engine == nullptr ? "" : from.engine;
    chosen.capacity = from.capacity == 0 ? config.context : from.capacity;
    chosen.cache_type = cache_type_of(from.cache_type, model->precision);
    if (from.attention != nullptr) {
      headwater::Shape shape;  // what the fields are held against
      shape.n_layer = config.layers;
      shape.n_head = config.heads;
      chosen.attention = options_of(*from.attention, shape);
      check_attention(chosen.attention);
    }
    if (from.cache_type == HEADWATER_CACHE_Q8_0) chosen.attention.kv_bits = 8;
    // An engine that is not here is said before the weights are read.
    (void)headwater::engine(chosen.engine);
    int& threads = chosen.attention.threads;
    check_range(threads, 0, runtime::kMostThreads, "options.threads");
    if (threads == 0) threads = runtime::default_threads();
    *conversation = std::make_unique<headwater_conversation>(file.load({model->precision, threads}), chosen,
                                                             from.dense_tail)
                        .release();
  });
}

void headwater_conversation_close(headwater_conversation* conversation) { delete conversation; }

headwater_status headwater_conversation_set_interrupt(headwater_conversation* conversation,
                                                      headwater_interrupt interrupt, void* user) {
  return guarded([&] {
    headwater_conversation& own = open(conversation);
    own.interrupt = interrupt;
    own.user = user;
    if (!own.transformer.engine().claims().interrupt) return;
    own.transformer.session().set_interrupt(interrupt == nullptr ? std::function<bool()>()
                                                                 : [=] { return interrupt(user) != 0; });
  });
}

headwater_status headwater_conversation_set_dense_tail(headwater_conversation* conversation,
                                                       int64_t dense_tail) {
  return guarded([&] {
    headwater_conversation& own = open(conversation);
    check_range(dense_tail, 0, kMostElements, "dense_tail");
    own.talk.set_dense_tail(dense_tail);
  });
}

headwater_status headwater_conversation_feed(headwater_conversation* conversation, const int32_t* ids,
                                             int64_t n) {
  return guarded([&] {
    headwater_conversation& own = open(conversation);
    const std::span<const std::int32_t> turn = elements(ids, n, "ids", "n");
    check_ids(own, turn);
    changed_or_not(own, [&] { own.talk.feed(turn, [&](double) { stop_if_asked(own); }); });
  });
}

headwater_status headwater_conversation_append(headwater_conversation* conversation, int32_t id) {
  return guarded([&] {
    headwater_conversation& own = open(conversation);
    check_ids(own, {&id, 1});
    changed_or_not(own, [&] { own.talk.append(id); });
  });
}

headwater_status headwater_conversation_logits(const headwater_conversation* conversation,
                                               const float** logits, int64_t* count) {
  return guarded([&] {
    const headwater_conversation& own = open(conversation);
    needed(logits, "logits");
    needed(count, "count");
    const std::span<const float> all = own.talk.logits();
    if (all.empty()) {
      throw Error(ErrorCode::wrong_state,
                  fmt::format("the conversation {}; allowed: after a turn",
                              own.talk.tokens() == 0 ? "is empty" : "was truncated and holds no logits"));
    }
    *logits = all.data();
    *count = static_cast<std::int64_t>(all.size());
  });
}

headwater_status headwater_conversation_tokens(const headwater_conversation* conversation, int64_t* tokens) {
  return guarded([&] { *needed(tokens, "tokens") = open(conversation).talk.tokens(); });
}

headwater_status headwater_conversation_reset(headwater_conversation* conversation) {
  return guarded([&] { open(conversation).talk.reset(); });
}

headwater_status headwater_conversation_fork(headwater_conversation* conversation,
                                             headwater_conversation** fork) {
  return guarded([&] {
    *needed(fork, "fork") = nullptr;
    *fork = std::make_unique<headwater_conversation>(open(conversation)).release();
  });
}

headwater_status headwater_conversation_truncate(headwater_conversation* conversation, int64_t n) {
  return guarded([&] { open(conversation).talk.truncate(n); });
}

headwater_status headwater_conversation_session(const headwater_conversation* conversation,
                                                const headwater_session** session) {
  return guarded([&] { *needed(session, "session") = &open(conversation).seen; });
}

headwater_status headwater_conversation_losses(headwater_conversation* conversation, const int32_t* ids,
                                               int64_t n, int64_t decode, double* losses) {
  return guarded([&] {
    headwater_conversation& own = open(conversation);
    const std::span<const std::int32_t> window = window_of({&own}, ids, n, decode);
    needed(losses, "losses");
    const Emptied emptied(own.talk);
    runtime::WindowReader({&own.transformer}, decode)
        .read(
            window,
            [&](std::int64_t position, const runtime::Judgement& judgement, bool) {
              if (position + 1 < n) losses[position] = judgement.losses[0];
            },
            [&](std::int64_t) { stop_if_asked(own); });
  });
}

headwater_status headwater_conversation_compare(headwater_conversation* conversation,
                                                headwater_conversation* other, const int32_t* ids, int64_t n,
                                                int64_t decode, headwater_comparison* positions) {
  return guarded([&] {
    headwater_conversation& first = open(conversation);
    headwater_conversation& second = *needed(other, "other");
    if (&first == &second) invalid("other is the same conversation; allowed: another one");
    const std::int64_t vocabulary = first.transformer.model().config().vocabulary;
    if (second.transformer.model().config().vocabulary != vocabulary) {
      invalid(fmt::format("other is of a model of {} tokens; allowed: {}, as conversation",
                          second.transformer.model().config().vocabulary, vocabulary));
    }
    const std::span<const std::int32_t> window = window_of({&first, &second}, ids, n, decode);
    needed(positions, "positions");
    const Emptied emptied(first.talk);
    const Emptied other_emptied(second.talk);
    const headwater::Session& session = second.transformer.session();
    const std::int64_t first_chunk = std::min(session.options().chunk, n - decode);
    runtime::WindowReader({&first.transformer, &second.transformer}, decode)
        .read(
            window,
            [&](std::int64_t position, const runtime::Judgement& judgement, bool ends_block) {
              positions[position] = {judgement.losses[0], judgement.losses[1], judgement.divergence,
                                     judgement.rank1 > 0 ? 1 : 0,
                                     (position >= first_chunk ? HEADWATER_AFTER_FIRST_CHUNK : 0) |
                                         (ends_block ? HEADWATER_ENDS_QUERY_BLOCK : 0)};
            },
            [&](std::int64_t) {
              stop_if_asked(first);
              stop_if_asked(second);
            });
  });
}

headwater_status headwater_sampling_init(headwater_sampling* sampling, size_t struct_size) {
  return guarded([&] {
    headwater_sampling filled = sampling_of({});
    filled.struct_size = struct_size;
    write_struct(sampling, struct_size, kSamplingSize1, filled, "sampling");
  });
}

headwater_status headwater_sampler_open(const headwater_sampling* sampling, int64_t vocabulary,
                                        headwater_sampler** sampler) {
  return guarded([&] {
    *needed(sampler, "sampler") = nullptr;
    const headwater_sampling from =
        sampling == nullptr
            ? sampling_of({})
            : struct_of<headwater_sampling>(sampling, sampling->struct_size, kSamplingSize1, "sampling");
    check_range(vocabulary, 1, kMostElements, "vocabulary");
    const runtime::SamplingOptions options = {from.temperature, from.top_k, from.top_p, from.min_p,
                                              from.seed};
    *sampler = new headwater_sampler{options, vocabulary, runtime::Sampler(options, vocabulary)};
  });
}

void headwater_sampler_close(headwater_sampler* sampler) { delete sampler; }

headwater_status headwater_sampler_restrict(headwater_sampler* sampler, const headwater_model* model,
                                            int32_t kind, const char* text, int64_t bytes) {
  return guarded([&] {
    headwater_sampler& own = *needed(sampler, "sampler");
    const std::int64_t vocabulary = file_of(model).config().vocabulary;
    if (own.vocabulary != vocabulary) {
      invalid(fmt::format("model has a vocabulary of {} tokens; allowed: {}, as sampler", vocabulary,
                          own.vocabulary));
    }
    if (own.begun) {
      throw Error(ErrorCode::wrong_state,
                  "the sampler has drawn or accepted a token; allowed: before the first one");
    }
    runtime::SamplingOptions options = own.options;
    options.answer = {grammar_of(kind, text_of(text, bytes, "text", "bytes")), model->texts};
    own.sampler = runtime::Sampler(options, vocabulary);
  });
}

headwater_status headwater_sampler_draw(headwater_sampler* sampler, const float* logits, int64_t count,
                                        int32_t* id) {
  return guarded([&] {
    headwater_sampler& own = *needed(sampler, "sampler");
    check_range(count, own.vocabulary, own.vocabulary, "count");
    const std::span<const float> all = elements(logits, count, "logits", "count");
    *needed(id, "id") = own.sampler.draw(all);
    own.begun = true;
  });
}

headwater_status headwater_sampler_accept(headwater_sampler* sampler, int32_t id) {
  return guarded([&] {
    headwater_sampler& own = *needed(sampler, "sampler");
    check_range(id, 0, own.vocabulary - 1, "id");
    if (!own.sampler.allows(id)) {
      invalid(fmt::format(
          "id is {}, which does not go on with a text of the grammar; allowed: a token that does", id));
    }
    own.sampler.accept(id);
    own.begun = true;
  });
}
