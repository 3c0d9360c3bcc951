// The program `headwater`: finds the command and turns every failure into one line and an exit status.

#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <vector>

#include "cli/commands/commands.hpp"
#include "cli/support/machine.hpp"
#ifdef HEADWATER_HAS_RUNTIME
#include "cli/support/ranks.hpp"
#endif
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"
#include "headwater/error.hpp"
#include "headwater/version.hpp"

namespace headwater::cli {

#ifndef HEADWATER_HAS_BENCH
// In the place of commands/bench/.
ExitCode bench_command(const Arguments& /*arguments*/) {
  throw Failure(
      ExitCode::no_engine,
      "this build has no benchmarks; they are built where HEADWATER_BENCH is on and Eigen is found");
}
#endif

namespace {

struct Command {
  const char* name;
  const char* help;
  ExitCode (*run)(const Arguments& arguments);
};

ExitCode help(const Arguments& arguments);
ExitCode completion(const Arguments& arguments);
ExitCode manual(const Arguments& arguments);

constexpr Command kCommands[] = {
    {"atlas", "which tokens each chunk read, as a page and a picture", atlas_command},
    {"attend", "sparse or dense attention on tensors dumped to a file", attend_command},
    {"bench", "sparse against dense attention on your shape and machine", bench_command},
    {"completion", "completion of commands and flags for bash and zsh", completion},
    {"conform", "check the engines against the specification", conform_command},
#ifdef HEADWATER_HAS_RUNTIME
    {"generate", "continue a prompt with a model: sparse prefill, dense decode", generate_command},
#endif
    {"help", "what a command does, and its flags", help},
    {"info", "the machine, the engines, and what this build has", info_command},
    {"man", "the manual page of a command", manual},
#ifdef HEADWATER_HAS_RUNTIME
    {"perplexity", "what sparse prefill costs in prediction of a text", perplexity_command},
    {"retrieval", "how often a code planted in a long text is found again", retrieval_command},
#ifdef HEADWATER_HAS_SERVER
    {"serve", "answer OpenAI's clients over HTTP; long prompts once", serve_command},
#endif
    {"tokenize", "the tokens of a text: ids and pieces", tokenize_command},
#endif
};

std::string usage() {
  std::string text =
      "headwater: chunked sparse prefill attention with heavy hitters\n\n"
      "Usage: headwater COMMAND [ARGUMENT...]\n       headwater --version | --help\n\nCommands:\n";
  for (const Command& command : kCommands) text += fmt::format("  {:<10} {}\n", command.name, command.help);
  text +=
      "\nEach has its own help: headwater COMMAND --help, or headwater help COMMAND\n\n"
      "Example:\n  headwater attend models/trace-layer6.safetensors -o out.safetensors\n\n"
      "Exit status: 0 done, 1 a check failed, 2 bad usage or bad input, 3 engine not available.\n";
  return text;
}

std::string command_names() {
  std::string names;
  for (const Command& command : kCommands)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", command.name);
  return names;
}

std::vector<CommandLine> command_lines() {
  std::vector<CommandLine> lines;
  for (const Command& command : kCommands) lines.push_back({command.name, command.help});
  return lines;
}

ExitCode completion(const Arguments& arguments) { return completion_command(arguments, command_lines()); }

ExitCode manual(const Arguments& arguments) { return manual_command(arguments, command_lines()); }

ExitCode help(const Arguments& arguments) {
  if (arguments.empty() || arguments.front() == "--help" || arguments.front() == "-h") {
    print_out(usage());
    return ExitCode::done;
  }
  if (arguments.size() > 1) {
    throw Failure(fmt::format("help takes one command, but {} follows", in_quotes(arguments[1])));
  }
  for (const Command& command : kCommands) {
    if (arguments.front() == command.name && command.run != help) return command.run({"--help"});
  }
  throw Failure(
      fmt::format("command {} is not known; use one of: {}", in_quotes(arguments.front()), command_names()));
}

ExitCode run(const Arguments& arguments, std::string& who) {
  if (arguments.empty()) {
    throw Failure(fmt::format("a command is missing; use one of: {}; see headwater --help", command_names()));
  }
  const std::string& first = arguments.front();
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  for (const Command& command : kCommands) {
    if (first != command.name) continue;
    who += fmt::format(" {}", command.name);
    return command.run(rest);
  }
  if (first == "--version" || first == "-h" || first == "--help") {
    if (!rest.empty()) {
      throw Failure(fmt::format("{} takes no argument, but {} follows", first, in_quotes(rest.front())));
    }
    print_out(first == "--version" ? fmt::format("headwater {}\n", kVersion) : usage());
    return ExitCode::done;
  }
  throw Failure(fmt::format("command {} is not known; use one of: {}; see headwater --help", in_quotes(first),
                            command_names()));
}

int report(const std::string& who, const std::string& message, ExitCode code) {
  const std::string line = one_line(fmt::format("{}: {}", who, message));
#ifdef HEADWATER_HAS_RUNTIME
  if (serves()) say_by_rank_0(message, static_cast<int>(code));
  if (ranks() != nullptr) ranks()->node().claim_word();
#endif
  print_error(line + "\n");
  return static_cast<int>(code);
}

int run_program(int argc, char** argv) {
  std::string who = "headwater";
  try {
    settle_threads(argv);
    return static_cast<int>(run({argv + (argc > 0 ? 1 : 0), argv + argc}, who));
#ifdef HEADWATER_HAS_RUNTIME
  } catch (const pipeline::EndsQuietly& end) {
    return end.status;
#endif
  } catch (const ReaderGone&) {
    return kReaderGone;
  } catch (const Failure& failure) {
    return report(who, failure.what(), failure.code());
  } catch (const headwater::Error& error) {
    const bool engine = error.code() == headwater::ErrorCode::engine_unavailable;
    return report(who, error.what(), engine ? ExitCode::no_engine : ExitCode::bad_input);
  } catch (const std::bad_alloc&) {
    return report(who, "out of memory; use a smaller input, --batch or memory, or --no-trace",
                  ExitCode::bad_input);
  } catch (const std::exception& error) {
    return report(who, error.what(), ExitCode::bad_input);
  }
}

}  // namespace
}  // namespace headwater::cli

int main(int argc, char** argv) {
  headwater::cli::prepare_streams();
  const int status = headwater::cli::run_program(argc, argv);
#ifdef HEADWATER_HAS_RUNTIME
  return headwater::cli::end_ranks(status);
#else
  return status;
#endif
}
