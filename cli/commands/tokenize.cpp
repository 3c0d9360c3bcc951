#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/commands/commands.hpp"
#include "cli/support/flag_set.hpp"
#include "cli/support/interrupt.hpp"
#include "cli/support/json_text.hpp"
#include "cli/support/prompt.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "runtime/tokenizer/tokenizer.hpp"

namespace headwater::cli {
namespace {

constexpr const char* kCommand = "headwater tokenize";

constexpr const char* kFooter = R"(
A line for each token: its id, and what it stands for between single quotes, where control characters and bytes that are
no whole character of UTF-8 are \xNN. Texts are read as `headwater generate` reads a prompt: tokens that the model puts
around a text come with it (--no-bos leaves them out), and the text of a control token is that token
(--no-parse-special makes it text). With --json: `tokens`, their number, `ids` and `pieces`, where bytes that are no
whole character are U+FFFD.

Example: the tokens of a line
  headwater tokenize -m models/headwater-tiny-f16.gguf -p 'import os'

Exit status: 0 done, 2 bad usage or bad input.)";

struct TokenizeFlags {
  std::string model;
  std::string flag;  ///< that names the text in messages
  std::string text;
  bool add_special = true;
  bool parse_special = true;
  bool json = false;
};

std::optional<TokenizeFlags> parse(const std::vector<std::string>& arguments) {
  TokenizeFlags flags;
  std::string prompt;
  std::string file;
  bool escape = false;
  FlagSet set("The tokens of a text: ids and pieces.", kCommand, kFooter);
  set.file("-m,--model", "-m (--model)", "MODEL", "a GGUF file with a tokenizer", flags.model)->required();
  const auto* prompt_option = set.text("-p,--prompt", "TEXT", "the text", prompt);
  const auto* file_option =
      set.file("-f,--file", "-f (--file)", "FILE", "a file with the text; - is standard input", file);
  set.flag("-e,--escape", escape, kEscapeHelp);
  set.flag("--no-bos", flags.add_special, "without the tokens that the model puts around a text", false);
  set.flag("--no-parse-special", flags.parse_special, "texts of control tokens are text", false);
  set.json(flags.json);
  if (!set.parse(arguments)) return std::nullopt;
  const auto refuse = [](const char* what) {
    throw Failure(fmt::format("{}; see {} --help", what, kCommand));
  };
  const bool has_prompt = prompt_option->count() > 0;
  const bool has_file = file_option->count() > 0;
  if (has_prompt && has_file) refuse("-p and -f are both given; allowed is one of them");
  if (!has_prompt && !has_file) refuse("the text is missing; use -p TEXT or -f FILE");
  flags.flag = has_file ? "-f (--file)" : "-p (--prompt)";
  flags.text = has_file ? read_text("-f (--file)", file, LastLineEnd::dropped)
               : escape ? unescaped(prompt)
                        : prompt;
  return flags;
}

}  // namespace

ExitCode tokenize_command(const std::vector<std::string>& arguments) {
  const auto flags = parse(arguments);
  if (!flags) return ExitCode::done;
  install_signal_handlers(kCommand, flags->model);
  const auto tokenizer = runtime::Tokenizer::from_gguf(runtime::GgufFile::open(flags->model));
  std::vector<std::string> warnings = tokenizer->warnings();
  check_text(flags->flag, flags->text, *tokenizer, warnings);
  const auto ids = tokenizer->encode(flags->text, flags->add_special, flags->parse_special);
  if (flags->add_special && flags->parse_special) check_bos(flags->flag, ids, *tokenizer, warnings);
  warn(warnings);
  std::vector<std::string> pieces;
  pieces.reserve(ids.size());
  for (const std::int32_t id : ids) pieces.push_back(tokenizer->piece(id));
  if (flags->json) {
    nlohmann::ordered_json json;
    json["tokens"] = ids.size();
    json["ids"] = ids;
    json["pieces"] = pieces;
    json["warnings"] = warnings;
    print_out(json_line(json));
    return ExitCode::done;
  }
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    text += fmt::format("{:>7}  '{}'\n", ids[i], one_line(pieces[i]));
  }
  print_out(text);
  return ExitCode::done;
}

}  // namespace headwater::cli
