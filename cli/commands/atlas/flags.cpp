#include "cli/commands/atlas/flags.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "cli/support/arguments.hpp"
#include "cli/support/failure.hpp"
#include "cli/support/numbers.hpp"
#include "cli/support/streams.hpp"
#include "cli/support/text.hpp"

namespace headwater::cli {
namespace {

constexpr std::int64_t kMostHeads = 65536;  ///< of a tensor, see Shape

constexpr const char* kFooter = R"(
OUT is what `headwater attend` wrote, with its trace (not --no-trace). The page needs no network and nothing beside it;
it shows for each head which tokens each chunk read (local window, heavy hitters), the score of every token, how long
tokens survive, and the share of query-key pairs that was computed. It takes about 1.4 bytes a BF16 score and 3 bytes
an entry of a memory set, and is refused beyond 64 MiB: choose heads then. Of an output of another rule than h2o it
shows for each key/value head which tokens each query block read; there are neither scores nor survival.

Survival is Kaplan and Meier's estimate. The age of a token is the number of memory sets since its own chunk; at risk are
the tokens that every earlier set held and for which a set of this age exists, and the share falls by the part of them that
this set dropped. --json has both for every head, from age 1 on, as "survival" and "survival_at_risk".

Example: the atlas of a real trace, as a page and as a picture
  headwater attend models/trace-layer6.safetensors -o out.safetensors
  headwater atlas out.safetensors -o atlas.html --png atlas.png
Example: what every layer and head of a model keeps of a text, with the text (headwater atlas -m MODEL --help)
  headwater atlas -m models/headwater-tiny-f16.gguf -f models/eval-8k.txt -o atlas.html

Exit status: 0 done, 2 bad usage or bad input.)";

}  // namespace

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  return std::filesystem::weakly_canonical(a, error) == std::filesystem::weakly_canonical(b, error);
}

bool AtlasOutputs::take_standard_output() const {
  return page == kStandardOutput || picture == kStandardOutput;
}

void declare_atlas_outputs(FlagSet& set, AtlasOutputs& outputs) {
  set.file("-o,--output", "--output", "PAGE.html", "where to write the page; - is standard output",
           outputs.page)
      ->required();
  set.file("--png", "--png", "FILE", "where to write the picture (none)", outputs.picture);
}

void declare_atlas_reports(FlagSet& set, AtlasOutputs& outputs) {
  set.quiet(outputs.quiet);
  set.json(outputs.json);
  set.check([&outputs] {
    check_output_beside_json(outputs.page, outputs.json);
    check_output_beside_json(outputs.picture, outputs.json);
    if (outputs.picture.empty() || !same_file(outputs.page, outputs.picture)) return;
    throw Failure(fmt::format("--output {} and --png {} are one file; use two", in_quotes(outputs.page),
                              in_quotes(outputs.picture)));
  });
}

std::vector<std::int64_t> parse_indices(const char* flag, std::string_view text) {
  std::vector<std::int64_t> indices = parse_numbers(flag, text, kMostHeads - 1);
  std::sort(indices.begin(), indices.end());
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

std::optional<AtlasFlags> parse_atlas_flags(const std::vector<std::string>& arguments) {
  AtlasFlags flags;
  FlagSet set("Which tokens each chunk of an attention run read, as one HTML page and a picture.",
              "headwater atlas", kFooter);
  set.file("OUT", "OUT", "", "what `headwater attend` wrote, a safetensors file", flags.input)->required();
  declare_atlas_outputs(set, flags.outputs);
  set.value("--head,--heads", "LIST",
            "query heads (of other rules than h2o: key/value heads) to show, as 0,3,8-11 (all)",
            [&](const std::string& text) { flags.heads = parse_indices("--head", text); });
  declare_atlas_reports(set, flags.outputs);
  if (!set.parse(arguments)) return std::nullopt;
  return flags;
}

}  // namespace headwater::cli
