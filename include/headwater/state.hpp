#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headwater/engine.hpp"
#include "headwater/export.h"
#include "headwater/session.hpp"

namespace headwater {

/// What a session saves or loads (STATE-12). The session names its parts, always in the same order; for each it says where
/// they lie in its memory, and the archive reads them from there or writes them there.
///
/// All engines use these names, so that one may load what another has saved (T tokens, l a layer):
/// numbers `chunks`: begin, end and mode of each chunk; `steps`: for each step the index of its first chunk and the
/// length of its turn; rule h2o: `sets`: for each layer the entries of its sets and the position before which they were
/// built. Arrays `key.l` [Hkv][T][d] and `value.l` [Hkv][T][dv] of the KV type, unless the caller keeps the rows (with
/// kv_bits = 8 U8 [Hkv][T][34 d / 32] and [Hkv][T][34 dv / 32], STATE-13); rule h2o: `score.l` [Hq][T], `set.l` [Hq][width] I32.
class HEADWATER_API StateArchive {
 public:
  enum class Element : std::uint8_t { f32, f16, bf16, i32, u8 };
  /// Consecutive bytes of an array; all pieces of an array in turn are the array.
  struct Piece {
    void* data;  ///< only read unless loading()
    std::int64_t bytes;
  };

  StateArchive() = default;
  StateArchive(const StateArchive&) = delete;
  StateArchive& operator=(const StateArchive&) = delete;
  virtual ~StateArchive() = default;

  /// Whether the session takes what the archive holds; else it gives.
  [[nodiscard]] virtual bool loading() const = 0;
  /// Loading: `values` becomes what was saved. Errors: invalid_argument (no such numbers, more than `most`).
  virtual void numbers(std::string_view name, std::vector<std::int64_t>& values, std::int64_t most) = 0;
  /// Loading: fills the pieces. The sum of their bytes is that of the dimensions. Errors: invalid_argument (no such array,
  /// another type or other dimensions), internal (the file cannot be read or written).
  virtual void array(std::string_view name, Element type, std::span<const std::int64_t> dims,
                     std::span<const Piece> pieces) = 0;
};

/// Writes a session to a file (STATE-12): safetensors, whose metadata name version, shape, options and `fingerprint`, a text
/// of the caller that says of which model the rows are, at most 1024 bytes of printable ASCII. The file is there whole or
/// not at all; one that exists is replaced. Errors: wrong_state (a step is open), invalid_argument (path, fingerprint),
/// internal (the file cannot be written, and why), unsupported.
HEADWATER_API void save(Session& session, const std::string& path, std::string_view fingerprint = {});

/// A session of this engine with the state of a file that save() wrote. It behaves as the saved one would, to the bit where
/// the engine and the machine are the same; with rule h2o it can be truncated within what follows (STATE-12). Shape (the
/// capacity apart, which must hold the tokens) and all options that results depend on must be those of the file.
/// Errors: those of open(); invalid_argument (no such file; damaged, foreign, of another version; another shape, option or
/// fingerprint: what stands in the file and what was asked for), internal (it cannot be read), unsupported.
[[nodiscard]] HEADWATER_API std::unique_ptr<Session> load(const Engine& engine, const Shape& shape,
                                                          const Options& options, const std::string& path,
                                                          std::string_view fingerprint = {});

}  // namespace headwater
