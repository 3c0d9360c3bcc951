#pragma once

#include <string>

namespace headwater::cli {

/// Exit status of a command that SIGINT ended; SIGTERM and SIGHUP end with their own 128 + number.
inline constexpr int kInterrupted = 130;

/// From now on SIGINT, SIGTERM, SIGHUP (unless ignored, as under nohup) and SIGBUS remove the temporary file, clear
/// the progress line and end the process; SIGPIPE and SIGXFSZ are ignored, so that writing fails with an error code.
/// SIGBUS means that the mapped input became shorter while it was read: `input` names it in the error line.
void install_signal_handlers(const std::string& command, const std::string& input);

/// The file that a signal removes; an empty path means none. The path must be short enough for the system to open.
void set_temporary_file(const std::string& path);

/// Whether a progress line stands on the terminal.
void set_progress_shown(bool shown);

}  // namespace headwater::cli
