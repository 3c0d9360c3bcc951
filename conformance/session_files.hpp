#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "headwater/engine.hpp"

namespace headwater::conformance {

/// An engine that writes and reads files of sessions by functions of its own: a plug-in. Sessions of all others give their
/// parts to an archive (state.hpp).
class EngineWithFiles : public Engine {
 public:
  /// save() and load() of state.hpp; `session` is one of this engine's.
  virtual void save(Session& session, const std::string& path, const std::string& fingerprint) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Session> load(const Shape& shape, const Options& options,
                                                      const std::string& path,
                                                      const std::string& fingerprint) const = 0;
};

/// A folder of its own among the system's temporary files, gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] std::int64_t files() const;

 private:
  std::string path_;
};

[[nodiscard]] inline bool has_files_of_its_own(const Engine& engine) {
  return dynamic_cast<const EngineWithFiles*>(&engine) != nullptr;
}
/// save() and load() of any engine.
void save_session(const Engine& engine, Session& session, const std::string& path,
                  const std::string& fingerprint);
[[nodiscard]] std::unique_ptr<Session> load_session(const Engine& engine, const Shape& shape,
                                                    const Options& options, const std::string& path,
                                                    const std::string& fingerprint);

}  // namespace headwater::conformance
