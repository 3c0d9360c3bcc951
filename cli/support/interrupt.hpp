#pragma once

#include <string>
#include <string_view>

namespace headwater::cli {

/// Exit status of a command that SIGINT ended; SIGTERM and SIGHUP end with their own 128 + number.
inline constexpr int kInterrupted = 130;

/// From now on SIGINT, SIGTERM, SIGHUP (unless ignored, as under nohup) and SIGBUS remove the temporary files, clear
/// the progress line and end the process.
/// SIGBUS means that the mapped input became shorter while it was read: `input` names it in the error line.
void install_signal_handlers(const std::string& command, const std::string& input);

/// From now on the first SIGINT only asks for an end, which stop_requested() then says; the second ends the process.
void install_stop_request();
[[nodiscard]] bool stop_requested();
/// What was asked is done; the next SIGINT is a first one again.
void clear_stop_request();
/// Waits until the descriptor has input or its end; false once an end is asked for. install_stop_request() came before.
[[nodiscard]] bool wait_for_input(int descriptor);

/// Most files that a signal removes at once.
inline constexpr int kMostTemporaryFiles = 4;

/// A file that a signal removes from now on; returns its place, for forget_temporary_file(). Failure where the path is
/// longer than the system can open, or there are kMostTemporaryFiles already.
[[nodiscard]] int add_temporary_file(const std::string& path);
/// The file at this place is no longer a signal's business; a negative place means none.
void forget_temporary_file(int place) noexcept;

/// Writes to standard error, but never after a signal has cleared the line.
void draw_progress(std::string_view line);
/// Whether a progress line stands on the terminal.
void set_progress_shown(bool shown);
[[nodiscard]] bool progress_line_shown();

}  // namespace headwater::cli
