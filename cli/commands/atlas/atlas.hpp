#pragma once

#include <functional>
#include <string>

#include "cli/commands/atlas/flags.hpp"
#include "cli/commands/atlas/input.hpp"
#include "cli/commands/commands.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {

/// Writes the page, the picture where asked for, and the report. Both files appear complete, or neither where anything
/// before the last rename fails; their places are taken before `trace` is called. `input` may not be overwritten.
void write_atlas(const AtlasOutputs& outputs, const runtime::MappedFile& input, const std::string& title,
                 const std::function<AtlasTrace()>& trace);

/// `headwater atlas -m`: runs a text through a model, and shows which of its tokens survive in every layer and head. Only in
/// builds with the model runtime.
[[nodiscard]] ExitCode atlas_model_command(const Arguments& arguments);

}  // namespace headwater::cli
