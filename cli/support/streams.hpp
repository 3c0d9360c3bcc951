#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headwater::cli {

/// Thrown by print_out() where the reader of standard output has gone, as `head` does. It is no error: main() ends without
/// a word, with kReaderGone. No std::exception, so that nothing that handles errors takes it for one.
struct ReaderGone {};

/// The name of an output that means standard output.
inline constexpr const char* kStandardOutput = "-";

/// Exit status of a program whose reader has gone: what a shell shows for a tool that SIGPIPE ended.
inline constexpr int kReaderGone = 141;

/// What main() begins with. Descriptors 0, 1 and 2 that are closed are taken, by something that can be neither read nor
/// written: no file that is opened later becomes standard output. SIGPIPE and SIGXFSZ are ignored, so that writing fails
/// with an error code.
void prepare_streams() noexcept;

/// From now on print_out() and print_error() write nothing: of a process that works for another one, which writes.
void mute_streams() noexcept;

/// Writes all of the text to a descriptor: 0, or the error that kept the rest from being written.
[[nodiscard]] int write_all(int descriptor, std::string_view text) noexcept;

/// Writes to standard output. Failure where that is closed or full; ReaderGone where nobody reads it any more.
void print_out(std::string_view text);

/// Writes the summary of a result to standard output, or to standard error where the result itself went to the former.
void print_summary(std::string_view text, bool output_taken);

/// Has the reader of standard output gone?
[[nodiscard]] bool reader_gone() noexcept;

/// Writes to standard error, as far as it can be written: a failure could be told to nobody, and changes no result.
void print_error(std::string_view text) noexcept;

/// Columns of the terminal that standard error is; 80 where it does not say.
[[nodiscard]] std::size_t terminal_columns() noexcept;

/// The line "warning: ..." on standard error. Warnings that are known before the work are given once nothing of the input
/// can be refused any more, before the work begins.
void warn(std::string_view warning);
void warn(const std::vector<std::string>& warnings);

}  // namespace headwater::cli
