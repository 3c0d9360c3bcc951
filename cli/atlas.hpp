#pragma once

#include <functional>
#include <string>
#include <vector>

#include "atlas_flags.hpp"
#include "atlas_input.hpp"
#include "failure.hpp"
#include "runtime/support/mapped_file.hpp"

namespace headwater::cli {

/// Writes the page, the picture where asked for, and the report. Both files appear complete, or neither where anything
/// before the last rename fails; their places are taken before `trace` is called. `input` may not be overwritten.
void write_atlas(const AtlasOutputs& outputs, const runtime::MappedFile& input, const std::string& title,
                 const std::function<AtlasTrace()>& trace);

/// `headwater atlas`: one HTML page, and a picture where asked for, of what an attention run read, or with -m a run of a
/// model.
[[nodiscard]] ExitCode atlas_command(const std::vector<std::string>& arguments);

}  // namespace headwater::cli
