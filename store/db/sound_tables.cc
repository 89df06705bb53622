// SPDX-License-Identifier: Apache-2.0
#include "store/db/sound_tables.h"

#include <map>
#include <string>
#include <utility>

#include "store/db/manifest_file_system.h"
#include "store/db/manifest_log.h"
#include "store/db/manifest_tables.h"
#include "store/db/salvage_view.h"
#include "store/db/served_file.h"

namespace varve::internal {

namespace {

class ServingFileSystem : public ManifestFileSystem {
 public:
  explicit ServingFileSystem(std::map<std::string, std::string> files) : files_(std::move(files)) {}

  static const char* kClassName() { return "varve.ServingFileSystem"; }
  const char* Name() const override { return kClassName(); }

  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* result,
                                      rocksdb::IODebugContext* debug) override {
    const auto served = files_.find(name);
    if (served == files_.end()) {
      return ManifestFileSystem::NewSequentialFile(name, options, result, debug);
    }
    *result = std::make_unique<ServedFile>(served->second);
    return rocksdb::IOStatus::OK();
  }

 private:
  const std::map<std::string, std::string> files_;  // bytes by path
};

}  // namespace

Result<std::shared_ptr<rocksdb::FileSystem>> FileSystemWithout(const std::filesystem::path& store,
                                                               std::span<const LostTable> lost) {
  auto text = ReadManifestText(store);
  if (!text.has_value()) {
    return Status::Unavailable("the manifest of " + store.string() +
                               " is being written, or cannot be read, or is too large");
  }
  text->log = WithoutTables(std::move(text->log), lost);
  const std::string db = DbPath(store).string();
  const std::string manifest = db + "/" + text->current.substr(0, text->current.find('\n'));
  std::map<std::string, std::string> files;
  files[manifest] = std::move(text->log);
  files[db + "/CURRENT"] = std::move(text->current);
  return std::shared_ptr<rocksdb::FileSystem>(
      std::make_shared<ServingFileSystem>(std::move(files)));
}

}  // namespace varve::internal
